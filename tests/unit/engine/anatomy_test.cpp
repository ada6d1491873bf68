#include "engine/anatomy.h"

#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "support/tiny_gguf.h"

namespace linkcpp::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace linkcpp::test;  // NOLINT: the fixture

class AnatomyTest : public ::testing::Test {
 protected:
  std::filesystem::path save(const GgufBuilder& gguf, std::string_view name = "m.gguf") { return save_bytes(gguf.bytes(), name); }
  std::filesystem::path save_bytes(std::string_view bytes, std::string_view name = "m.gguf") {
    write_file(folder_ / name, bytes);
    return folder_ / name;
  }
  std::filesystem::path save_parts(const std::vector<GgufBuilder>& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) save(parts[i], part_name(i + 1, parts.size()));
    return folder_ / part_name(1, parts.size());
  }
  /// The error that a broken model gives; fails the test if there is none.
  Error error_of(const GgufBuilder& gguf) { return error_at(save(gguf)); }
  static Error error_at(const std::filesystem::path& path) {
    auto anatomy = read_anatomy(path);
    EXPECT_FALSE(anatomy.has_value()) << path << " was accepted";
    return anatomy ? Error{} : anatomy.error();
  }
  wire::Digest digest_of(const GgufBuilder& gguf) {
    auto anatomy = read_anatomy(save(gguf));
    EXPECT_TRUE(anatomy.has_value()) << anatomy.error().message;
    return anatomy ? anatomy->digest : wire::Digest{};
  }
  ScratchFolder folder_;
};

/// What every accepted anatomy promises: slices lie within their files and divide their tensors.
void expect_sound(const Anatomy& anatomy) {
  for (const MoeLayer& layer : anatomy.layers) {
    EXPECT_FALSE(layer.tensors.empty());
    EXPECT_EQ(anatomy.find(layer.key), &layer);
    for (const ExpertTensor& tensor : layer.tensors) {
      ASSERT_LT(tensor.file, anatomy.files.size());
      EXPECT_EQ(tensor.n_expert, layer.n_expert);
      EXPECT_GT(tensor.slice_bytes, 0u);
      EXPECT_LE(tensor.offset + tensor.slice_bytes * tensor.n_expert, std::filesystem::file_size(anatomy.files[tensor.file]))
          << tensor.name;
    }
  }
}

TEST(ParseExpertName, TakesRoutedExpertsOnly) {
  const auto layer = [](std::string_view name) {
    const auto parsed = parse_expert_name(name);
    return parsed ? std::optional(parsed->layer) : std::nullopt;
  };
  EXPECT_EQ(layer("blk.7.ffn_gate_exps.weight"), 7);
  EXPECT_EQ(layer("blk.0.ffn_up_exps.weight"), 0);
  EXPECT_EQ(layer("blk.123.ffn_down_exps.bias"), 123);
  EXPECT_EQ(layer("blk.4.ffn_gate_up_exps.weight"), 4);
  EXPECT_EQ(layer("blk.4.ffn_gate_chexps.weight"), 4 | chunk_experts_bit);
  EXPECT_EQ(layer("blk.32767.ffn_up_chexps.bias"), 0xFFFF);
  EXPECT_EQ(parse_expert_name("blk.7.ffn_gate_exps.weight")->role, "ffn_gate_exps.weight");
  EXPECT_EQ(parse_expert_name("blk.7.ffn_gate_up_chexps.bias")->role, "ffn_gate_up_chexps.bias");
  for (const char* name : {"",
                           "blk",
                           "blk.",
                           "blk.7",
                           "blk.7.",
                           "blk..ffn_up_exps.weight",
                           "blk.-1.ffn_up_exps.weight",
                           "blk.+1.ffn_up_exps.weight",
                           "blk.01.ffn_up_exps.weight",
                           "blk.32768.ffn_up_exps.weight",
                           "blk.99999999999.ffn_up_exps.weight",
                           "blk.1x.ffn_up_exps.weight",
                           "blk.1.attn_v_exps.weight",
                           "blk.1.ffn_up_shexp.weight",
                           "blk.1.ffn_down_exps.scale",
                           "blk.1.exp_probs_b.bias",
                           "blk.1.ffn_norm_exps.weight",
                           "blk.1.ffn_gate_inp.weight",
                           "blk.1.ffn_up_exps",
                           "blk.1.ffn_up_exps.weight.x",
                           "blk.1.ffn_up.3.weight",
                           "xblk.1.ffn_up_exps.weight",
                           "blk.1.ffn_gate_exps.weight\n",
                           "blk.1.ffn_upexps.weight"}) {
    EXPECT_FALSE(parse_expert_name(name)) << name;
  }
}

TEST_F(AnatomyTest, ReadsAModel) {
  const GgufBuilder gguf = tiny_model();
  const auto anatomy = read_anatomy(save(gguf));
  ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
  expect_sound(*anatomy);
  EXPECT_EQ(anatomy->architecture, "qwen3moe");
  EXPECT_EQ(anatomy->name, "tiny");
  EXPECT_EQ(anatomy->n_layer, 2u);
  EXPECT_EQ(anatomy->n_embd, 64u);
  EXPECT_EQ(anatomy->n_expert, 6u);
  EXPECT_EQ(anatomy->top_k, 2u);
  EXPECT_EQ(anatomy->n_vocab, 40u);
  EXPECT_EQ(anatomy->context_length, 512u);
  EXPECT_FALSE(anatomy->shared_expert);
  ASSERT_EQ(anatomy->layers.size(), 2u);
  EXPECT_EQ(anatomy->layers[1].key, 1);
  EXPECT_EQ(anatomy->find(2), nullptr);
  // One expert: 64x32 in Q8_0 (34 bytes a block of 32), twice 64x32 in F32, a bias of 64.
  EXPECT_EQ(anatomy->layers[0].expert_bytes(), 64u * 34 + 2u * 64 * 32 * 4 + 64u * 4);
  EXPECT_EQ(anatomy->expert_bytes, 2u * 6 * anatomy->layers[0].expert_bytes());
  EXPECT_EQ(anatomy->layers[0].n_in(), 64u);
  EXPECT_EQ(anatomy->layers[0].n_out(), 64u);
  std::uint64_t total = 0;
  for (const auto& tensor : gguf.tensors) total += tensor.data.size();
  EXPECT_EQ(anatomy->total_bytes, total);
  EXPECT_EQ(anatomy->expert_types.at("q8_0"), 2u * 6 * 64 * 34);
  EXPECT_EQ(anatomy->backbone_types.at("f32") + anatomy->expert_bytes, total);
}

TEST_F(AnatomyTest, SlicesAreTheBytesOfTheirExperts) {
  const GgufBuilder gguf = tiny_model();
  const auto anatomy = read_anatomy(save(gguf));
  ASSERT_TRUE(anatomy.has_value());
  const std::string file = gguf.bytes();
  std::size_t compared = 0;
  for (const auto& layer : anatomy->layers) {
    for (const auto& tensor : layer.tensors) {
      const auto spec = std::ranges::find(gguf.tensors, tensor.name, &TensorSpec::name);
      ASSERT_NE(spec, gguf.tensors.end());
      for (std::uint32_t e = 0; e < tensor.n_expert; ++e, ++compared) {
        EXPECT_EQ(file.substr(tensor.offset + e * tensor.slice_bytes, tensor.slice_bytes),
                  spec->data.substr(e * tensor.slice_bytes, tensor.slice_bytes));
      }
    }
  }
  EXPECT_EQ(compared, 2u * 4 * 6);
}

TEST_F(AnatomyTest, SecondSetOfExpertsHasItsOwnLayerKey) {
  GgufBuilder gguf = tiny_model();
  gguf.tensors.push_back(f32_tensor("blk.1.ffn_up_chexps.weight", {64, 32, 3}));
  const auto anatomy = read_anatomy(save(gguf));
  ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
  ASSERT_EQ(anatomy->layers.size(), 3u);
  ASSERT_NE(anatomy->find(1 | chunk_experts_bit), nullptr);
  EXPECT_EQ(anatomy->find(1 | chunk_experts_bit)->n_expert, 3u);
  EXPECT_EQ(anatomy->find(1)->n_expert, 6u);
}

TEST_F(AnatomyTest, CountsMayBeGivenALayer) {
  GgufBuilder gguf = tiny_model();
  std::string counts;
  for (const std::int32_t count : {1, 3}) put(counts, count);
  gguf.values.erase(gguf.values.begin() + 6);  // expert_used_count
  gguf.array("qwen3moe.expert_used_count", gguf_i32, 2, counts);
  const auto anatomy = read_anatomy(save(gguf));
  ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
  EXPECT_EQ(anatomy->top_k, 3u);
}

TEST_F(AnatomyTest, SharedExpertAndBiggerAlignment) {
  GgufBuilder gguf = tiny_model();
  gguf.tensors.push_back(f32_tensor("blk.0.ffn_up_shexp.weight", {64, 32}));
  gguf.u32("general.alignment", 4096);
  gguf.alignment = 4096;
  const auto anatomy = read_anatomy(save(gguf));
  ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
  EXPECT_TRUE(anatomy->shared_expert);
  EXPECT_EQ(anatomy->layers[0].tensors[0].offset % 4096, 0u);
}

// --- the digest -------------------------------------------------------------------------------------------------------------

TEST_F(AnatomyTest, DigestNamesTheModelNotTheFile) {
  const wire::Digest digest = digest_of(tiny_model());
  GgufBuilder same = tiny_model();
  std::ranges::reverse(same.tensors);
  same.text("general.description", "another text");
  same.u32("general.alignment", 64);
  same.alignment = 64;
  EXPECT_EQ(digest_of(same), digest);
}

TEST_F(AnatomyTest, DigestIsWhatTheHeaderDocuments) {
  // Written out from the definition in anatomy.h: a change would part old workers from new backbones without a word.
  const GgufBuilder gguf = tiny_model();
  const auto data = [&](std::string_view name) { return std::string_view(std::ranges::find(gguf.tensors, name, &TensorSpec::name)->data); };
  std::string text = "linkcpp model 1\narchitecture qwen3moe\nn_embd 64\ntop_k 2\nn_vocab 40\n", samples;
  for (const char* layer : {"0", "1"}) {
    const auto experts = [&](const char* role, const char* shape, std::size_t slice) {
      const std::string name = std::format("blk.{}.{}", layer, role);
      text += std::format("experts {} {} 6\n", name, shape);
      samples += std::format("sample {}\n", name);
      for (const std::size_t expert : {0u, 3u, 5u}) samples += data(name).substr(expert * slice, 64);
    };
    experts("ffn_down_exps.bias", "f32 0 64", 64 * 4);
    experts("ffn_down_exps.weight", "f32 32 64", 32 * 64 * 4);
    experts("ffn_gate_exps.weight", "q8_0 64 32", 64 * 34);
    experts("ffn_up_exps.weight", "f32 64 32", 64 * 32 * 4);
  }
  for (const char* name : {"blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight", "output_norm.weight"}) {
    text += std::format("tensor {} f32 {}\n", name, data(name).size()).append(data(name));
  }
  text += samples;
  wire::Digest expected{};
  ASSERT_EQ(EVP_Digest(text.data(), text.size(), expected.data(), nullptr, EVP_sha256(), nullptr), 1);
  EXPECT_EQ(wire::to_hex(digest_of(gguf)), wire::to_hex(expected));
}

TEST_F(AnatomyTest, DigestTellsModelsApart) {
  const wire::Digest digest = digest_of(tiny_model());
  EXPECT_NE(digest_of(tiny_model({.top_k = 3})), digest);
  EXPECT_NE(digest_of(tiny_model({.n_vocab = 41})), digest);
  EXPECT_NE(digest_of(tiny_model({.n_ff = 64})), digest);
  const auto with_flip = [&](std::string_view tensor, std::size_t byte) {
    GgufBuilder gguf = tiny_model();
    std::ranges::find(gguf.tensors, tensor, &TensorSpec::name)->data[byte] ^= 1;
    return digest_of(gguf);
  };
  EXPECT_NE(with_flip("blk.1.ffn_gate_inp.weight", 700), digest) << "routers count whole";
  EXPECT_NE(with_flip("output_norm.weight", 255), digest);
  const std::size_t slice = 64 * 32 * 4;
  for (const std::size_t expert : {0u, 3u, 5u}) EXPECT_NE(with_flip("blk.0.ffn_up_exps.weight", expert * slice + 63), digest) << expert;
  EXPECT_EQ(with_flip("blk.0.ffn_up_exps.weight", 64), digest) << "experts are sampled";
  EXPECT_EQ(with_flip("token_embd.weight", 5), digest) << "the embedding is the backbone's own affair";
}

// --- several files ------------------------------------------------------------------------------------------------------------

TEST_F(AnatomyTest, PartsAreOneModelWhicheverIsNamed) {
  const wire::Digest digest = digest_of(tiny_model());
  save_parts(tiny_parts(3));
  for (std::size_t part = 1; part <= 3; ++part) {
    const auto anatomy = read_anatomy(folder_ / part_name(part, 3));
    ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
    expect_sound(*anatomy);
    ASSERT_EQ(anatomy->files.size(), 3u);
    EXPECT_EQ(anatomy->files[0], folder_ / part_name(1, 3));
    EXPECT_EQ(anatomy->digest, digest);
    EXPECT_EQ(anatomy->layers[1].tensors.back().file, 2u);
  }
}

TEST_F(AnatomyTest, MissingPartsAreNamed) {
  save_parts(tiny_parts(4));
  std::filesystem::remove(folder_ / part_name(2, 4));
  std::filesystem::remove(folder_ / part_name(4, 4));
  const Error error = error_at(folder_ / part_name(3, 4));
  EXPECT_EQ(error.kind, ErrorKind::not_found);
  EXPECT_THAT(error.message, AllOf(HasSubstr("2 of the model's 4 parts"), HasSubstr(part_name(2, 4)), HasSubstr(part_name(4, 4))));
  EXPECT_THAT(error.message, ::testing::Not(HasSubstr(part_name(1, 4))));
}

TEST_F(AnatomyTest, ForeignPartsAreRefused) {
  auto parts = tiny_parts(3);
  const auto first = save_parts(parts);
  save(parts[1], part_name(3, 3));  // a part twice
  EXPECT_THAT(error_at(first).message, AllOf(HasSubstr(part_name(3, 3)), HasSubstr("does not belong"), HasSubstr("part 2 of 3")));
  save(tiny_model(), part_name(3, 3));  // a whole model
  EXPECT_THAT(error_at(first).message, HasSubstr("does not belong"));
  GgufBuilder other = tiny_parts(3, {.layers = 3})[2];  // a part of a deeper model
  save(other, part_name(3, 3));
  EXPECT_THAT(error_at(first).message, HasSubstr("does not belong"));
  other = parts[2];
  other.text("general.architecture", "dbrx");
  save(other, part_name(3, 3));
  EXPECT_THAT(error_at(first).message, AllOf(HasSubstr("dbrx"), HasSubstr("qwen3moe")));
  other = parts[2];
  other.tensors.pop_back();  // fewer tensors than announced
  save(other, part_name(3, 3));
  EXPECT_THAT(error_at(first).message, HasSubstr("another model"));
  other.tensors.push_back(parts[0].tensors[0]);  // the right number, but one twice
  save(other, part_name(3, 3));
  EXPECT_THAT(error_at(first).message, HasSubstr("in two of its parts"));
}

TEST_F(AnatomyTest, PartsInACircleAreRefused) {
  const auto parts = tiny_parts(3);
  for (std::size_t i = 0; i < 3; ++i) save(parts[(i + 1) % 3], part_name(i + 1, 3));  // each calls itself the next one
  for (std::size_t i = 1; i <= 3; ++i) EXPECT_THAT(error_at(folder_ / part_name(i, 3)).message, HasSubstr("does not belong")) << i;

  const auto link = [&](std::size_t from, std::size_t to) {
    std::filesystem::remove(folder_ / part_name(from, 3));
    std::filesystem::create_symlink(folder_ / part_name(to, 3), folder_ / part_name(from, 3));
  };
  save_parts(parts);
  link(2, 1);  // one file under two names
  EXPECT_THAT(error_at(folder_ / part_name(1, 3)).message, AllOf(HasSubstr(part_name(2, 3)), HasSubstr("part 1 of 3")));
  link(2, 3);
  link(3, 2);  // links to each other
  EXPECT_THAT(error_at(folder_ / part_name(1, 3)).message,
              AllOf(HasSubstr("2 of the model's 3 parts are missing"), HasSubstr(part_name(2, 3))));
  EXPECT_THAT(error_at(folder_ / part_name(3, 3)).message, HasSubstr(part_name(3, 3)));
}

TEST_F(AnatomyTest, PartsThatWereRenamedAreExplained) {
  const auto parts = tiny_parts(3);
  EXPECT_THAT(error_at(save(parts[1], "renamed.gguf")).message, AllOf(HasSubstr("3 parts"), HasSubstr("name")));
  save_parts(parts);
  EXPECT_THAT(error_at(save(parts[1], part_name(1, 2))).message, HasSubstr("3 parts"));
}

TEST_F(AnatomyTest, TruncatedPartIsNamed) {
  const auto parts = tiny_parts(2);
  save_parts(parts);
  const std::string bytes = parts[1].bytes();
  save_bytes(std::string_view(bytes).substr(0, bytes.size() - 1000), part_name(2, 2));
  EXPECT_THAT(error_at(folder_ / part_name(1, 2)).message, AllOf(HasSubstr(part_name(2, 2)), HasSubstr("truncated")));
}

// --- broken and hostile files -------------------------------------------------------------------------------------------------

TEST_F(AnatomyTest, FilesThatAreNoModels) {
  EXPECT_EQ(error_at(folder_ / "absent.gguf").kind, ErrorKind::not_found);
  EXPECT_THAT(error_at(folder_.path()).message, HasSubstr("is a folder"));
  EXPECT_THAT(error_at("/dev/null").message, HasSubstr("not a regular file"));
  EXPECT_THAT(error_at(save_bytes("")).message, HasSubstr("is empty"));
  EXPECT_THAT(error_at(save_bytes("GG")).message, HasSubstr("not a GGUF"));
  EXPECT_THAT(error_at(save_bytes("Once upon a time there was a text file.\n")).message, HasSubstr("not a GGUF"));
}

TEST_F(AnatomyTest, DenseModelsAndOldLayouts) {
  GgufBuilder gguf = tiny_model();
  std::erase_if(gguf.tensors, [](const TensorSpec& tensor) { return tensor.name.contains("_exps"); });
  EXPECT_THAT(error_of(gguf).message, HasSubstr("has no routed experts"));
  gguf.tensors.push_back(f32_tensor("blk.0.ffn_gate.3.weight", {64, 32}));
  EXPECT_THAT(error_of(gguf).message, HasSubstr("convert the model again"));
  EXPECT_THAT(error_of(GgufBuilder{}).message, HasSubstr("architecture"));
}

TEST_F(AnatomyTest, EveryTruncationIsSaidSo) {
  const std::string whole = tiny_model({.n_embd = 32, .n_expert = 2, .n_vocab = 4, .layers = 1}).bytes();
  const std::size_t data = whole.size() - 32;
  for (std::size_t n = 4; n < whole.size(); n += n < 4000 ? 1 : 97) {
    const Error error = error_at(save_bytes(std::string_view(whole).substr(0, n)));
    EXPECT_EQ(error.kind, ErrorKind::invalid_input);
    EXPECT_THAT(error.message, ::testing::AnyOf(HasSubstr("cut short"), HasSubstr("truncated"), HasSubstr("more than it can hold"))) << n;
  }
  EXPECT_THAT(error_at(save_bytes(std::string_view(whole).substr(0, data))).message, HasSubstr("(32 bytes are missing)"));
}

TEST_F(AnatomyTest, HostileCountsAreNotBelieved) {
  for (const std::int64_t lie : {std::int64_t{1} << 20, std::int64_t{1} << 40, INT64_MAX - 100, std::int64_t{-40}}) {
    GgufBuilder gguf = tiny_model();
    gguf.extra_tensors = lie;
    EXPECT_THAT(error_of(gguf).message, HasSubstr("more than it can hold")) << lie;
    gguf = tiny_model();
    gguf.extra_values = lie;
    EXPECT_THAT(error_of(gguf).message, HasSubstr("more than it can hold")) << lie;
  }
  for (const std::uint64_t count : {std::uint64_t{1} << 33, std::uint64_t{1} << 61, UINT64_MAX}) {
    for (const std::int32_t type : {gguf_text, gguf_u32, gguf_u16}) {
      GgufBuilder gguf = tiny_model();
      gguf.array("general.tags", type, count, "");
      EXPECT_THAT(error_of(gguf).message, HasSubstr("cut short")) << count;
    }
    GgufBuilder gguf = tiny_model();
    std::string length;
    put(length, count);
    gguf.value("general.url", gguf_text, length);
    EXPECT_THAT(error_of(gguf).message, HasSubstr("cut short")) << count;
  }
}

TEST_F(AnatomyTest, BrokenHeaders) {
  const auto broken = [&](auto&& change) {
    GgufBuilder gguf = tiny_model();
    change(gguf);
    return error_of(gguf).message;
  };
  EXPECT_THAT(broken([](auto& g) { g.version = 1; }), HasSubstr("version 1"));
  EXPECT_THAT(broken([](auto& g) { g.version = 4; }), HasSubstr("version 4"));
  EXPECT_THAT(broken([](auto& g) { g.version = 0x03000000; }), HasSubstr("big-endian"));
  EXPECT_THAT(broken([](auto& g) { g.u32("qwen3moe.block_count", 2); }), HasSubstr("twice"));
  EXPECT_THAT(broken([](auto& g) { g.value("x", 77, "1234"); }), HasSubstr("unknown type 77"));
  EXPECT_THAT(broken([](auto& g) { g.array("x", gguf_array, 1, "1234567890123456"); }), HasSubstr("unknown type 9"));
  EXPECT_THAT(broken([](auto& g) { g.u32("general.alignment", 0); }), HasSubstr("alignment of 0"));
  EXPECT_THAT(broken([](auto& g) { g.u32("general.alignment", 33); }), HasSubstr("alignment of 33"));
  EXPECT_THAT(broken([](auto& g) { g.text("general.alignment", "x"); }), HasSubstr("alignment"));
}

TEST_F(AnatomyTest, BrokenTensors) {
  const auto broken = [&](auto&& change) {
    GgufBuilder gguf = tiny_model();
    change(gguf.tensors);
    return error_of(gguf).message;
  };
  EXPECT_THAT(broken([](auto& t) { t[1].name = t[0].name; }), HasSubstr("twice"));
  EXPECT_THAT(broken([](auto& t) { t[1].name = std::string(64, 'x'); }), HasSubstr("64 bytes"));
  EXPECT_THAT(broken([](auto& t) { t[1].name = ""; }), HasSubstr("0 bytes"));
  EXPECT_THAT(broken([](auto& t) { t[1].ne = {1, 1, 1, 1, 1}; }), HasSubstr("5 dimensions"));
  EXPECT_THAT(broken([](auto& t) { t[1].ne = {-64}; }), HasSubstr("impossible shape"));
  EXPECT_THAT(broken([](auto& t) { t[1].ne = {INT64_MAX, INT64_MAX}; }), HasSubstr("impossible shape"));
  EXPECT_THAT(broken([](auto& t) { t[1].ne = {INT64_MAX}; }), HasSubstr("impossible"));
  EXPECT_THAT(broken([](auto& t) { t[1].type = 1000; }), HasSubstr("type number 1000"));
  EXPECT_THAT(broken([](auto& t) { t[1].type = 4; }), HasSubstr("type number 4"));  // a type that was removed
  EXPECT_THAT(broken([](auto& t) { t[1].type = -1; }), HasSubstr("type number -1"));
  EXPECT_THAT(broken([](auto& t) { t[4].ne[0] = 48; }), AllOf(HasSubstr("blk.0.ffn_gate_exps.weight"), HasSubstr("multiple of the 32")));
  EXPECT_THAT(broken([](auto& t) { t[1].offset = 0; }), AllOf(HasSubstr("same bytes"), HasSubstr("token_embd.weight")));
  EXPECT_THAT(broken([](auto& t) { t[1].offset = 7; }), HasSubstr("not aligned"));
  EXPECT_THAT(broken([](auto& t) { t[1].offset = INT64_MAX - 31; }), HasSubstr("impossible offset"));
  EXPECT_THAT(broken([](auto& t) { t[1].offset = std::int64_t{1} << 40; }), HasSubstr("truncated"));
}

TEST_F(AnatomyTest, BrokenExperts) {
  const auto broken = [&](auto&& change) {
    GgufBuilder gguf = tiny_model();
    change(gguf);
    return error_of(gguf).message;
  };
  const auto replaced = [&](std::vector<std::int64_t> ne) {
    return broken([&](GgufBuilder& g) { g.tensors[5] = f32_tensor("blk.0.ffn_up_exps.weight", ne); });
  };
  EXPECT_THAT(replaced({64, 32, 5}), AllOf(HasSubstr("6 experts"), HasSubstr("but 5"), HasSubstr("blk.0.ffn_up_exps.weight")));
  EXPECT_THAT(replaced({64, 32, 2, 3}), HasSubstr("not a stack"));
  EXPECT_THAT(replaced({64, 0, 6}), HasSubstr("not a stack"));
  EXPECT_THAT(replaced({2, 2, 65536}), HasSubstr("not a stack"));
  EXPECT_THAT(broken([](auto& g) { g.tensors[7] = f32_tensor("blk.0.ffn_down_exps.bias", {64, 1, 6}); }), HasSubstr("not a stack"));
  EXPECT_THAT(broken([](auto& g) { g.tensors.push_back(f32_tensor("blk.2.ffn_up_exps.weight", {64, 32, 6})); }), HasSubstr("layer 2"));
  EXPECT_THAT(error_of(tiny_model({.top_k = 0})).message, HasSubstr("uses 0 of 6"));
  EXPECT_THAT(error_of(tiny_model({.top_k = 7})).message, HasSubstr("uses 7 of 6"));
}

TEST_F(AnatomyTest, ErrorsCarryNoControlCharacters) {
  GgufBuilder gguf = tiny_model();
  gguf.tensors[1].name = "evil\x1b[2J\n";
  gguf.tensors[1].type = 1000;
  const std::string message = error_of(gguf).message;
  EXPECT_THAT(message, HasSubstr("evil?[2J?"));
}

TEST_F(AnatomyTest, RandomDamageNeverCrashes) {
  const std::string whole = tiny_model({.n_embd = 32, .n_expert = 2, .n_vocab = 4, .layers = 1}).bytes();
  const std::size_t header = 1400;  // most damage goes where it is read
  std::mt19937_64 random(7);
  std::size_t accepted = 0, refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = whole;
    for (std::uint64_t n = 1 + random() % 4; n != 0; --n) bytes[random() % header] = static_cast<char>(random());
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    const auto anatomy = read_anatomy(save_bytes(bytes));
    if (anatomy) {
      ++accepted;
      expect_sound(*anatomy);
    } else {
      ++refused;
      EXPECT_FALSE(anatomy.error().message.empty());
    }
  }
  EXPECT_GT(accepted, 20u);
  EXPECT_GT(refused, 1000u);
}

// --- real files -----------------------------------------------------------------------------------------------------------------

using EnginePtr = std::unique_ptr<gguf_context, decltype(&gguf_free)>;

/// The engine's own parser agrees on every expert tensor.
void expect_engine_agrees(const std::filesystem::path& path) {
  const auto anatomy = read_anatomy(path);
  ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
  expect_sound(*anatomy);
  const EnginePtr engine(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}), &gguf_free);
  ASSERT_NE(engine, nullptr);
  std::uint64_t total = 0;
  for (std::int64_t i = 0; i < gguf_get_n_tensors(engine.get()); ++i) total += gguf_get_tensor_size(engine.get(), i);
  EXPECT_EQ(anatomy->total_bytes, total);
  for (const auto& layer : anatomy->layers) {
    for (const auto& tensor : layer.tensors) {
      const std::int64_t id = gguf_find_tensor(engine.get(), tensor.name.c_str());
      ASSERT_GE(id, 0) << tensor.name;
      EXPECT_EQ(tensor.type, gguf_get_tensor_type(engine.get(), id));
      EXPECT_EQ(tensor.offset, gguf_get_data_offset(engine.get()) + gguf_get_tensor_offset(engine.get(), id));
      EXPECT_EQ(tensor.slice_bytes * tensor.n_expert, gguf_get_tensor_size(engine.get(), id));
      EXPECT_EQ(gguf_get_tensor_ne(engine.get(), id)[tensor.is_bias ? 1 : 2], tensor.n_expert);
    }
  }
}

TEST_F(AnatomyTest, EngineAgreesOnTheTinyModel) { expect_engine_agrees(save(tiny_model())); }

/// Folder of the trained models, or nothing.
std::filesystem::path trained_models() {
  const char* folder = std::getenv("LINKCPP_TEST_MODELS");
  return folder != nullptr ? folder : "../shared/models";
}

struct TrainedModel {
  const char* file;
  const char* architecture;
  std::uint32_t layers, n_embd, n_expert, top_k;
  bool shared_expert;
};

class TrainedModels : public ::testing::TestWithParam<TrainedModel> {
 protected:
  void SetUp() override {
    path_ = trained_models() / GetParam().file;
    if (!std::filesystem::exists(path_)) GTEST_SKIP() << path_ << " is absent; set LINKCPP_TEST_MODELS to the folder of the trained models";
  }
  std::filesystem::path path_;
};

TEST_P(TrainedModels, AreRead) {
  const TrainedModel& expected = GetParam();
  expect_engine_agrees(path_);
  const auto anatomy = read_anatomy(path_);
  ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
  EXPECT_EQ(anatomy->architecture, expected.architecture);
  EXPECT_EQ(anatomy->n_layer, expected.layers);
  EXPECT_EQ(anatomy->layers.size(), expected.layers);
  EXPECT_EQ(anatomy->n_embd, expected.n_embd);
  EXPECT_EQ(anatomy->n_expert, expected.n_expert);
  EXPECT_EQ(anatomy->top_k, expected.top_k);
  EXPECT_EQ(anatomy->shared_expert, expected.shared_expert);
  EXPECT_EQ(anatomy->n_vocab, 2048u);
}

TEST_P(TrainedModels, CutShortSaysHowManyBytesAreMissing) {
  const ScratchFolder folder;
  const auto copy = folder / "cut.gguf";
  std::filesystem::copy_file(path_, copy);
  std::filesystem::permissions(copy, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
  std::filesystem::resize_file(copy, std::filesystem::file_size(copy) - 12345);
  const auto anatomy = read_anatomy(copy);
  ASSERT_FALSE(anatomy.has_value());
  EXPECT_THAT(anatomy.error().message, AllOf(HasSubstr("truncated"), HasSubstr("are missing")));
}

INSTANTIATE_TEST_SUITE_P(All, TrainedModels,
                         ::testing::Values(TrainedModel{"tinymoe-a-f16.gguf", "qwen2moe", 4, 256, 24, 4, true},
                                           TrainedModel{"tinymoe-a-q4_k_s.gguf", "qwen2moe", 4, 256, 24, 4, true},
                                           TrainedModel{"tinymoe-b-f16.gguf", "qwen3moe", 6, 256, 32, 4, false},
                                           TrainedModel{"tinymoe-c-f16.gguf", "qwen3moe", 16, 128, 16, 4, false}),
                         [](const auto& instance) {
                           std::string name = instance.param.file;
                           std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

class SynthModel : public AnatomyTest {
 protected:
  void SetUp() override {
    tool_ = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "synth_model";
    if (!std::filesystem::exists(tool_)) GTEST_SKIP() << tool_ << " is not built; build everything";
  }
  void synthesize(const std::string& options) {
    const std::string command = std::format("'{}' {} >/dev/null", tool_.string(), options);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  std::filesystem::path tool_;
};

TEST_F(SynthModel, OneFileAndPartsAreOneModel) {
  const std::string out = (folder_ / "s.gguf").string();
  for (const char* arch : {"qwen3moe", "qwen2moe", "mixtral"}) {
    const std::string options = std::format("--out '{}' --arch {} --type q8_0 --experts 8 --top-k 3 --layers 3", out, arch);
    synthesize(options);
    synthesize(options + " --split 4");
    expect_engine_agrees(out);
    const auto one = read_anatomy(out), parts = read_anatomy(folder_ / "s-00003-of-00004.gguf");
    ASSERT_TRUE(one.has_value() && parts.has_value());
    EXPECT_EQ(one->digest, parts->digest);
    EXPECT_EQ(one->expert_bytes, parts->expert_bytes);
    EXPECT_EQ(parts->files.size(), 4u);
    EXPECT_EQ(one->shared_expert, std::string_view(arch) == "qwen2moe");
    EXPECT_EQ(one->top_k, 3u);
    synthesize(options + " --seed 2");
    EXPECT_NE(read_anatomy(out)->digest, parts->digest);
  }
}

TEST(ExpertTensorFit, TypeAndShapeTellADraftModelsTensorsApart) {
  const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(
      ggml_init({.mem_size = 1 << 16, .mem_buffer = nullptr, .no_alloc = true}), ggml_free);
  ggml_context* c = context.get();
  const ExpertTensor weight{.type = GGML_TYPE_F16, .n_in = 32, .n_out = 16, .n_expert = 8};
  EXPECT_TRUE(weight.fits(*ggml_new_tensor_3d(c, GGML_TYPE_F16, 32, 16, 8)));
  EXPECT_FALSE(weight.fits(*ggml_new_tensor_3d(c, GGML_TYPE_F32, 32, 16, 8)));
  EXPECT_FALSE(weight.fits(*ggml_new_tensor_3d(c, GGML_TYPE_F16, 64, 16, 8)));
  EXPECT_FALSE(weight.fits(*ggml_new_tensor_3d(c, GGML_TYPE_F16, 32, 32, 8)));
  EXPECT_FALSE(weight.fits(*ggml_new_tensor_3d(c, GGML_TYPE_F16, 32, 16, 4)));
  const ExpertTensor bias{.type = GGML_TYPE_F32, .is_bias = true, .n_out = 16, .n_expert = 8};
  EXPECT_TRUE(bias.fits(*ggml_new_tensor_2d(c, GGML_TYPE_F32, 16, 8)));
  EXPECT_FALSE(bias.fits(*ggml_new_tensor_2d(c, GGML_TYPE_F32, 16, 9)));
  EXPECT_FALSE(bias.fits(*ggml_new_tensor_3d(c, GGML_TYPE_F32, 16, 8, 2)));
}

}  // namespace
}  // namespace linkcpp::engine
