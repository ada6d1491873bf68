#include "store/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "store/content_hash.h"
#include "support/sample_index.h"

namespace linkcpp::store {
namespace {

using test::sample_index;
using ::testing::HasSubstr;

/// The error of an index that breaks a rule; fails the test if it is accepted.
std::string error_of(const SliceIndex& index) {
  const auto decoded = decode_index(encode_index(index));
  EXPECT_FALSE(decoded.has_value()) << "a wrong index was accepted";
  if (decoded) return {};
  EXPECT_EQ(decoded.error().kind, ErrorKind::invalid_input);
  return decoded.error().message;
}
std::string error_of_text(std::string_view text) {
  const auto decoded = decode_index(text);
  EXPECT_FALSE(decoded.has_value()) << text << " was accepted";
  return decoded ? std::string() : decoded.error().message;
}
std::string error_after(const std::function<void(SliceIndex&)>& change) {
  SliceIndex index = sample_index();
  change(index);
  return error_of(index);
}
std::string replaced(std::string_view from, std::string_view to) {
  std::string text = encode_index(sample_index());
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(SliceIndex, SurvivesEncoding) {
  const SliceIndex index = sample_index();
  const std::string text = encode_index(index);
  const auto decoded = decode_index(text);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(*decoded, index);
  EXPECT_EQ(encode_index(*decoded), text);
}

TEST(SliceIndex, LargestNumbersSurvive) {
  SliceIndex index = sample_index();
  index.n_vocab = UINT32_MAX;
  index.files[1].bytes = INT64_MAX;
  const auto decoded = decode_index(encode_index(index));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(*decoded, index);
}

TEST(SliceIndex, FindsAndCounts) {
  const SliceIndex index = sample_index();
  EXPECT_EQ(index.find(0), nullptr);
  EXPECT_EQ(index.find(2), &index.layers[1]);
  EXPECT_EQ(index.find(3), nullptr);
  EXPECT_EQ(index.layers[0].slice_bytes(), 660u);
  EXPECT_EQ(index.total_bytes(), 8u * 660);
  EXPECT_EQ(LayerSlices{}.slice_bytes(), 0u);
}

TEST(SliceIndex, DigestIsTheHashOfTheText) {
  // printf abc | b3sum
  EXPECT_EQ(wire::to_hex(index_digest("abc")), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
}

TEST(SliceIndex, PiecesCoverTheObjectButItsGaps) {
  const SliceIndex index = sample_index();
  const LayerSlices& layer = index.layers[1];
  const auto all = pieces_of(layer, 3, 0, UINT64_MAX);
  EXPECT_EQ(all, (std::vector<FilePiece>{{1, 96 + 600, 0, 200}, {1, 1024 + 120, 256, 40}, {1, 2048 + 1020, 320, 340}}));
  EXPECT_EQ(pieces_of(layer, 0, 150, 120), (std::vector<FilePiece>{{1, 246, 150, 50}, {1, 1024, 256, 14}}));
  EXPECT_TRUE(pieces_of(layer, 0, 200, 56).empty()) << "a gap has no pieces";
  EXPECT_TRUE(pieces_of(layer, 0, 660, 1).empty());
  EXPECT_TRUE(pieces_of(layer, 0, UINT64_MAX, UINT64_MAX).empty());
  EXPECT_EQ(pieces_of(layer, 0, 659, UINT64_MAX), (std::vector<FilePiece>{{1, 2048 + 339, 659, 1}}));
  for (std::uint64_t at = 0; at < 660; ++at) {  // byte by byte it is the same
    const bool gap = (at >= 200 && at < 256) || (at >= 296 && at < 320);
    const auto pieces = pieces_of(layer, 1, at, 1);
    ASSERT_EQ(pieces.size(), gap ? 0u : 1u) << at;
    if (!gap) {
      EXPECT_EQ(pieces[0].object_offset, at);
    }
  }
}

TEST(SliceIndex, RulesOfPartsAreChecked) {
  const auto part = [](const std::function<void(SlicePart&)>& change) {
    return error_after([&](SliceIndex& index) { change(index.layers[1].parts[1]); });
  };
  EXPECT_THAT(part([](SlicePart& p) { p.object_offset = 128; }), HasSubstr("layers[1].parts[1]: it lies at byte 128"));  // overlaps
  EXPECT_THAT(part([](SlicePart& p) { p.object_offset = 260; }), HasSubstr("the next multiple of 64"));                  // misaligned
  EXPECT_THAT(part([](SlicePart& p) { p.object_offset = 512; }), HasSubstr("byte 512"));                                 // a gap too wide
  EXPECT_THAT(part([](SlicePart& p) { p.file_offset = 8192 - 4 * 40 + 1; }), HasSubstr("outside of m-00002-of-00002.gguf"));
  EXPECT_THAT(part([](SlicePart& p) { p.file_offset = UINT64_MAX; }), HasSubstr("outside of"));
  EXPECT_THAT(part([](SlicePart& p) { p.file = 2; }), HasSubstr("file 2 does not exist"));
  EXPECT_THAT(part([](SlicePart& p) { p.bytes = 0; }), HasSubstr("0 bytes"));
  EXPECT_THAT(part([](SlicePart& p) { p.bytes = UINT64_MAX; }), HasSubstr("bytes of an expert"));
  EXPECT_THAT(part([](SlicePart& p) { p.n_out = 0; }), HasSubstr("elements is not possible"));
  EXPECT_THAT(part([](SlicePart& p) { p.n_in = INT64_MAX; }), HasSubstr("elements is not possible"));
  EXPECT_THAT(part([](SlicePart& p) { p.tensor.clear(); }), HasSubstr("tensor's name"));
  EXPECT_THAT(part([](SlicePart& p) { p.tensor = std::string(64, 'x'); }), HasSubstr("tensor's name"));
  EXPECT_THAT(part([](SlicePart& p) { p.tensor = "blk.2.ffn_up_exps.weight"; }), HasSubstr("layers[1].parts[2]: tensor blk.2.ffn_up"));
  EXPECT_THAT(part([](SlicePart& p) { p.type = "\x1b[2J"; }), HasSubstr("type's name"));
  EXPECT_THAT(part([](SlicePart& p) { p.file_offset = 100; }), HasSubstr("lie in the same bytes"));
}

TEST(SliceIndex, ObjectsAreBounded) {
  const auto error = error_after([](SliceIndex& index) {
    index.files[1].bytes = INT64_MAX;
    index.layers[1].parts[2].bytes = max_slice_bytes;
  });
  EXPECT_THAT(error, HasSubstr("at most 17179869184 are supported"));
}

TEST(SliceIndex, RulesOfTheModelAreChecked) {
  EXPECT_THAT(error_after([](SliceIndex& i) { i.layers[1].layer = 1; }), HasSubstr("layers ascend"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.layers[1].layer = 3; }), HasSubstr("is layer 3, but the model has 3"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.layers.clear(); }), HasSubstr("0 layers"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.layers[0].parts.clear(); }), HasSubstr("0 parts"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.layers[0].slices.clear(); }), HasSubstr("0 slices"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.layers[0].slices.resize(wire::max_experts + 1); }), HasSubstr("more than 4096 slices"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.layers[0].parts.resize(17); }), HasSubstr("more than 16 parts"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.files.clear(); }), HasSubstr("0 files"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.files[1].name = i.files[0].name; }), HasSubstr("same name"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.files[1].bytes = 0; }), HasSubstr("files[1] has 0 bytes"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.n_embd = 0; }), HasSubstr("n_embd is 0"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.top_k = 0; }), HasSubstr("top_k is 0"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.n_expert = 4097; }), HasSubstr("n_expert is 4097"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.architecture.clear(); }), HasSubstr("architecture"));
  EXPECT_THAT(error_after([](SliceIndex& i) { i.name = "\n"; }), HasSubstr("model's name"));
  for (const char* name : {"", ".", "..", "../secret.gguf", "a/b", "a\\b", "line\nbreak"})
    EXPECT_THAT(error_after([&](SliceIndex& i) { i.files[0].name = name; }), HasSubstr("no usable name")) << name;
}

TEST(SliceIndex, SecondSetOfExpertsIsALayerOfItsOwn) {
  SliceIndex index = sample_index();
  index.layers[1].layer = 0x8001;
  EXPECT_TRUE(decode_index(encode_index(index)).has_value());
  index.layers[1].layer = 0x8003;
  EXPECT_THAT(error_of(index), HasSubstr("is layer 3, but the model has 3"));
}

TEST(SliceIndex, FormIsChecked) {
  EXPECT_THAT(error_of_text(replaced("slices 2", "slices 3")), HasSubstr("the format is not \"linkcpp slices 2\""));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\"", "\"n_emb\"")), HasSubstr("\"n_emb\": there is no such member"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64,", "")), HasSubstr("\"n_embd\": it is missing"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64,", "\"n_embd\":64,\"n_embd\":64,")), HasSubstr("twice"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":-1")), HasSubstr("negative"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":64.0")), HasSubstr("whole numbers"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":4294967296")), HasSubstr("too large"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":\"64\"")), HasSubstr("a text has no place"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":[64]")), HasSubstr("a list has no place"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":{}")), HasSubstr("an object has no place"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":null")), HasSubstr("null"));
  EXPECT_THAT(error_of_text(replaced("\"n_embd\":64", "\"n_embd\":true")), HasSubstr("truth"));
  EXPECT_THAT(error_of_text(replaced("\"experts\":4", "\"experts\":5")), HasSubstr("layers[0]: it says 5 experts, but has 4 slices"));
  EXPECT_THAT(error_of_text(replaced("\n\"01", "\n\"0g")), HasSubstr("layers[0].slices[0]: a digest has hexadecimal digits only"));
  EXPECT_THAT(error_of_text(replaced("\"n_in\":5", "\"n_in\":9223372036854775808")), HasSubstr("layers[0].parts[0].\"n_in\""));
  for (const char* text : {"", " ", "null", "[]", "0", "\"\"", "{", "{}", "{\"format\"", "[[[[", "{\"layers\":[[", "\xff"})
    EXPECT_FALSE(error_of_text(text).empty());
  EXPECT_THAT(error_of_text(encode_index(sample_index()) + "x"), HasSubstr("not JSON"));
}

TEST(SliceIndex, EveryTruncationIsRefused) {
  const std::string text = encode_index(sample_index());
  for (std::size_t n = 0; n + 1 < text.size(); ++n) {  // the last byte is a line break
    ASSERT_FALSE(decode_index(std::string_view(text).substr(0, n)).has_value()) << n;
  }
}

TEST(SliceIndex, TooLongATextIsNotRead) {
  const std::string text(max_index_bytes + 1, ' ');
  EXPECT_THAT(error_of_text(text), HasSubstr("at most 268435456"));
}

TEST(ContentHash, StreamsAndStartsAnew) {
  ContentHash hash;
  const std::string text = "abc";
  for (const char& c : text) hash.add(std::as_bytes(std::span(&c, 1)));
  EXPECT_EQ(hash.finish(), index_digest("abc"));
  EXPECT_EQ(hash.finish(), index_digest(""));
  hash.add_zeros(10'000);
  EXPECT_EQ(hash.finish(), index_digest(std::string(10'000, '\0')));
}

}  // namespace
}  // namespace linkcpp::store
