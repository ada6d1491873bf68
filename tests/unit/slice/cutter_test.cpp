#include "slice/cutter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slice/files.h"
#include "slice/index_file.h"
#include "slice/journal.h"
#include "store/content_hash.h"
#include "store/store.h"
#include "support/tiny_gguf.h"

namespace linkcpp::slice {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace linkcpp::test;  // NOLINT: the fixture

// Rows of 33 gates leave a gap between two parts of an object, and weights are of two types.
constexpr TinyShape shape{.n_embd = 64, .n_ff = 33, .n_expert = 6, .n_vocab = 40, .layers = 2, .top_k = 2};
constexpr std::uint64_t n_slices = 12;

class CutterTest : public ::testing::Test {
 protected:
  engine::Anatomy saved(const GgufBuilder& gguf, std::string_view name = "m.gguf") {
    write_file(folder_ / name, gguf.bytes());
    return read(folder_ / name);
  }
  static engine::Anatomy read(const fs::path& path) {
    auto anatomy = engine::read_anatomy(path);
    EXPECT_TRUE(anatomy.has_value()) << anatomy.error().message;
    return anatomy ? *anatomy : engine::Anatomy{};
  }
  [[nodiscard]] CutRequest request(const std::string& experts = "all") const {
    return {.folder = folder_ / "cut", .experts = *engine::parse_expert_ranges(experts, shape.n_expert), .backbone = false};
  }
  CutResult cut_all(const engine::Anatomy& anatomy) const {
    auto done = cut(anatomy, request(), {});
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return done ? *done : CutResult{};
  }
  /// Cuts everything, but is stopped before the index is written.
  void cut_and_stop(const engine::Anatomy& anatomy) const {
    const auto stopped = cut(anatomy, request(), {.threads = 1, .progress = [](auto done, auto all) { return done < all; }});
    ASSERT_FALSE(stopped.has_value());
    ASSERT_EQ(stopped.error().kind, ErrorKind::unavailable) << stopped.error().message;
    ASSERT_FALSE(fs::exists(folder_ / "cut" / index_file_name));
  }
  [[nodiscard]] std::vector<fs::path> objects() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cut" / "objects")) {
      if (entry.is_regular_file()) found.push_back(entry.path());
    }
    std::ranges::sort(found);
    return found;
  }
  ScratchFolder folder_;
};

store::SliceIndex decoded(const std::string& text) {
  auto index = store::decode_index(text);
  EXPECT_TRUE(index.has_value()) << index.error().message;
  return index ? *index : store::SliceIndex{};
}

/// The object as docs/slices.md defines it, from the tensors that the model was built of.
std::string expected_object(const store::LayerSlices& layer, std::uint32_t expert) {
  std::string object;
  for (const TensorSpec& tensor : tiny_tensors(shape)) {
    const auto part = std::ranges::find(layer.parts, tensor.name, &store::SlicePart::tensor);
    if (part == layer.parts.end()) continue;
    const std::size_t bytes = tensor.data.size() / static_cast<std::size_t>(shape.n_expert);
    object.resize(std::max(object.size(), static_cast<std::size_t>(part->object_offset) + bytes));
    object.replace(part->object_offset, bytes, tensor.data, expert * bytes, bytes);
  }
  return object;
}

void flip_byte(const fs::path& path, std::size_t at) {
  std::string bytes = read_file(path);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_file(path, bytes);
}

TEST_F(CutterTest, ObjectsAreTheModelsBytesAndNamedByTheirHash) {
  const auto done = cut_all(saved(tiny_model(shape)));
  EXPECT_EQ(done.written, n_slices);
  EXPECT_EQ(read_file(folder_ / "cut" / index_file_name), done.index);
  EXPECT_EQ(read_file(folder_ / "cut" / "indexes" / (wire::to_hex(done.digest) + ".json")), done.index);
  EXPECT_EQ(store::content_hash(std::as_bytes(std::span(done.index))), done.digest);
  const auto index = decoded(done.index);
  ASSERT_EQ(index.layers.size(), shape.layers);
  bool has_gap = false;
  for (const auto& layer : index.layers) {
    ASSERT_EQ(layer.parts.size(), 4u);
    ASSERT_EQ(layer.slices.size(), static_cast<std::size_t>(shape.n_expert));
    for (std::size_t i = 1; i < layer.parts.size(); ++i)
      has_gap = has_gap || layer.parts[i].object_offset > layer.parts[i - 1].object_offset + layer.parts[i - 1].bytes;
    for (std::uint32_t e = 0; e < layer.slices.size(); ++e) {
      const std::string object = read_file(folder_ / "cut" / store::object_name(layer.slices[e]));
      EXPECT_EQ(object, expected_object(layer, e)) << layer.layer << ":" << e;
      EXPECT_EQ(store::content_hash(std::as_bytes(std::span(object))), layer.slices[e]);
    }
  }
  EXPECT_TRUE(has_gap) << "the shape no longer shows that gaps are zeros";
  EXPECT_FALSE(fs::exists(folder_ / "cut" / "cut.journal"));
  EXPECT_FALSE(fs::exists(folder_ / "cut" / "cutting"));
}

TEST_F(CutterTest, ProgressEndsWithEverythingDone) {
  const auto anatomy = saved(tiny_model(shape));
  std::uint64_t last_done = 0, last_total = 1;
  const auto note = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_LE(done, total);
    last_done = done;
    last_total = total;
    return true;
  };
  ASSERT_TRUE(cut(anatomy, request(), {.threads = 2, .progress = note}).has_value());
  EXPECT_EQ(last_done, last_total) << "cutting";
  ASSERT_TRUE(verify(folder_ / "cut", "all", {.threads = 2, .progress = note}).has_value());
  EXPECT_EQ(last_done, last_total) << "verifying";
}

TEST_F(CutterTest, HowAModelIsSplitDoesNotChangeItsSlices) {
  const auto whole = decoded(cut_all(saved(tiny_model(shape))).index);
  const auto parts = tiny_parts(3, shape);
  for (std::size_t i = 0; i < parts.size(); ++i) write_file(folder_ / part_name(i + 1, parts.size()), parts[i].bytes());
  auto split = make_index(read(folder_ / part_name(2, 3)), {});
  ASSERT_TRUE(split.has_value()) << split.error().message;
  EXPECT_EQ(split->files.size(), 3u);
  EXPECT_EQ(split->model, whole.model);
  ASSERT_EQ(split->layers.size(), whole.layers.size());
  for (std::size_t i = 0; i < whole.layers.size(); ++i) EXPECT_EQ(split->layers[i].slices, whole.layers[i].slices);
}

TEST_F(CutterTest, CuttingTwiceWritesNothingAnew) {
  const auto anatomy = saved(tiny_model(shape));
  const auto first = cut_all(anatomy);
  for (const auto& path : objects()) fs::last_write_time(path, fs::file_time_type{});
  const auto second = cut_all(anatomy);
  EXPECT_EQ(second.written, 0u);
  EXPECT_EQ(second.kept, n_slices);
  EXPECT_EQ(second.digest, first.digest);
  ASSERT_EQ(objects().size(), n_slices);
  for (const auto& path : objects()) EXPECT_EQ(fs::last_write_time(path), fs::file_time_type{}) << path;
}

TEST_F(CutterTest, EqualExpertsAreOneObject) {
  auto gguf = tiny_model(shape);
  for (auto& tensor : gguf.tensors) {
    if (tensor.name.contains("_exps.")) std::ranges::fill(tensor.data, '\0');
  }
  const auto anatomy = saved(gguf);
  cut_all(anatomy);
  EXPECT_EQ(objects().size(), 1u);
  const auto checked = verify(folder_ / "cut", "all", {});
  ASSERT_TRUE(checked.has_value()) << checked.error().message;
  EXPECT_TRUE(checked->damaged.empty());
  EXPECT_EQ(checked->missing, 0u);
}

TEST_F(CutterTest, AnInterruptedCutDoesNotReadAgainWhatItKnows) {
  const auto anatomy = saved(tiny_model(shape));
  const auto genuine = make_index(anatomy, {});
  ASSERT_TRUE(genuine.has_value());
  cut_and_stop(anatomy);
  const auto& tensor = anatomy.layers[0].tensors[1];
  const auto path = anatomy.files[0];
  const auto time = fs::last_write_time(path);
  flip_byte(path, tensor.offset + 100);  // behind what the model digest samples
  fs::last_write_time(path, time);
  const auto done = cut_all(read(path));
  EXPECT_EQ(done.written, 0u);
  EXPECT_EQ(done.kept, n_slices);
  EXPECT_EQ(done.index, store::encode_index(*genuine)) << "it hashed the expert again";
}

TEST_F(CutterTest, AModelThatChangedIsReadAgain) {
  const auto anatomy = saved(tiny_model(shape));
  cut_and_stop(anatomy);
  const auto path = anatomy.files[0];
  const auto time = fs::last_write_time(path);
  flip_byte(path, anatomy.layers[0].tensors[1].offset + 100);
  fs::last_write_time(path, time + std::chrono::seconds(1));
  const auto done = cut_all(read(path));
  EXPECT_EQ(done.written, 1u);
  EXPECT_EQ(done.kept, n_slices - 1);
}

TEST_F(CutterTest, WritesOnlyTheWantedExpertsButIndexesAll) {
  const auto anatomy = saved(tiny_model(shape));
  const auto some = cut(anatomy, request("0-1"), {});
  ASSERT_TRUE(some.has_value()) << some.error().message;
  EXPECT_EQ(some->written, 4u);
  EXPECT_EQ(objects().size(), 4u);
  const auto all = make_index(anatomy, {});
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(some->index, store::encode_index(*all));
  EXPECT_EQ(verify(folder_ / "cut", "0-1", {})->missing, 0u);
  EXPECT_EQ(verify(folder_ / "cut", "all", {})->missing, n_slices - 4);
  EXPECT_EQ(cut_all(anatomy).written, n_slices - 4) << "the rest can be added";
}

TEST_F(CutterTest, VerifyNamesAndRemovesWhatIsDamaged) {
  const auto anatomy = saved(tiny_model(shape));
  const auto index = decoded(cut_all(anatomy).index);
  const auto flipped = folder_ / "cut" / store::object_name(index.layers[1].slices[4]),
             cut_off = folder_ / "cut" / store::object_name(index.layers[0].slices[2]);
  flip_byte(flipped, 70);
  fs::resize_file(cut_off, fs::file_size(cut_off) - 1);
  const auto found = verify(folder_ / "cut", "all", {.threads = 1, .progress = {}});
  ASSERT_TRUE(found.has_value()) << found.error().message;
  ASSERT_EQ(found->damaged.size(), 2u);
  EXPECT_THAT(found->damaged[0], HasSubstr("layer 0, expert 2: " + cut_off.string()));
  EXPECT_THAT(found->damaged[1], HasSubstr("layer 1, expert 4: " + flipped.string()));
  EXPECT_EQ(found->objects, n_slices - 2);
  EXPECT_FALSE(fs::exists(flipped) || fs::exists(cut_off));
  EXPECT_EQ(verify(folder_ / "cut", "all", {})->missing, 2u);
  EXPECT_EQ(cut_all(anatomy).written, 2u);
  EXPECT_EQ(verify(folder_ / "cut", "all", {})->objects, n_slices);
}

TEST_F(CutterTest, VerifyRefusesADamagedIndex) {
  EXPECT_EQ(verify(folder_ / "cut", "all", {}).error().kind, ErrorKind::not_found);
  cut_all(saved(tiny_model(shape)));
  write_file(folder_ / "cut" / index_file_name, "{}");
  EXPECT_EQ(verify(folder_ / "cut", "all", {}).error().kind, ErrorKind::invalid_input);
}

TEST_F(CutterTest, RefusesAFolderOfSomethingElse) {
  const auto anatomy = saved(tiny_model(shape));
  cut_all(anatomy);
  auto gguf = tiny_model(shape);
  for (auto& tensor : gguf.tensors) {
    if (tensor.name == "output_norm.weight") tensor.data[0] ^= 1;
  }
  const auto other = saved(gguf, "other.gguf");
  const auto refused = cut(other, request(), {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::invalid_input);
  EXPECT_THAT(refused.error().message, HasSubstr("another model"));
  fs::create_directory(folder_ / "letters");
  write_file(folder_ / "letters" / "to-a-friend.txt", "Dear");
  auto letters = request();
  letters.folder = folder_ / "letters";
  EXPECT_EQ(cut(anatomy, letters, {}).error().kind, ErrorKind::invalid_input);
  letters.folder = folder_ / "letters" / "to-a-friend.txt";
  EXPECT_EQ(cut(anatomy, letters, {}).error().kind, ErrorKind::invalid_input);
}

TEST_F(CutterTest, RefusesRowsThatAreNoWholeBlocks) {
  auto gguf = tiny_model(shape);
  for (auto& tensor : gguf.tensors) {
    if (tensor.name == "blk.1.ffn_gate_exps.weight") tensor.ne[0] = 40;  // q8_0 has blocks of 32
  }
  write_file(folder_ / "m.gguf", gguf.bytes());
  const auto anatomy = engine::read_anatomy(folder_ / "m.gguf");
  ASSERT_FALSE(anatomy.has_value());
  EXPECT_EQ(anatomy.error().kind, ErrorKind::invalid_input);
  EXPECT_THAT(anatomy.error().message, HasSubstr("blk.1.ffn_gate_exps.weight"));
}

TEST_F(CutterTest, RefusesShapesThatCannotBe) {
  const auto sound = saved(tiny_model(shape));
  const auto refused = [&](auto&& spoil) {
    auto anatomy = sound;
    spoil(anatomy);
    const auto index = plan_index(anatomy);
    return !index && index.error().kind == ErrorKind::invalid_input && index.error().message.contains("m.gguf");
  };
  ASSERT_FALSE(refused([](auto&) {})) << "the sound model must pass, or the others show nothing";
  EXPECT_TRUE(refused([](auto& a) { a.layers[0].tensors[0].slice_bytes = 0; }));
  EXPECT_TRUE(refused([](auto& a) { a.layers[0].tensors[0].slice_bytes += 1; })) << "no whole block";
  EXPECT_TRUE(refused([](auto& a) { a.layers[0].tensors[0].slice_bytes = 1ull << 60; }));
  EXPECT_TRUE(refused([](auto& a) { a.layers[0].tensors[0].slice_bytes = UINT64_MAX - 7; }));
  EXPECT_TRUE(refused([](auto& a) { a.layers[1].tensors[3].offset = fs::file_size(a.files[0]); }));
  EXPECT_TRUE(refused([](auto& a) { a.layers[1].tensors[3].file = 1; }));
  EXPECT_TRUE(refused([](auto& a) { a.layers[1].tensors.clear(); }));
  EXPECT_TRUE(refused([](auto& a) { a.layers[1].n_expert = 5000; }));
  EXPECT_TRUE(refused([](auto& a) { std::swap(a.layers[0], a.layers[1]); }));
  EXPECT_TRUE(refused([](auto& a) { a.n_layer = 1; }));
  EXPECT_TRUE(refused([](auto& a) { a.experts_absent = true; }));
}

TEST_F(CutterTest, TheIndexBesideAModelIsMadeOnceAndAgainWhenTheModelChanges) {
  const auto anatomy = saved(tiny_model(shape));
  const auto made = load_or_make_index(anatomy, {});
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_TRUE(made->made);
  EXPECT_EQ(made->path, folder_ / "m.gguf.slices.json");
  const auto loaded = load_or_make_index(anatomy, {});
  ASSERT_TRUE(loaded.has_value());
  EXPECT_FALSE(loaded->made);
  EXPECT_EQ(loaded->text, made->text);
  EXPECT_EQ(loaded->digest, made->digest);
  fs::last_write_time(anatomy.files[0], fs::last_write_time(made->path) + std::chrono::seconds(1));
  EXPECT_TRUE(load_or_make_index(anatomy, {})->made);
  write_file(made->path, "{");
  fs::last_write_time(anatomy.files[0], fs::last_write_time(made->path) - std::chrono::seconds(9));
  EXPECT_TRUE(load_or_make_index(anatomy, {})->made) << "a damaged index was used";
}

TEST_F(CutterTest, AJournalForgetsTheLineThatWasHalfWritten) {
  const auto path = folder_ / "journal";
  const store::Digest digest = store::content_hash({});
  {
    auto journal = Journal::open(path, "stamp 1");
    ASSERT_TRUE(journal.has_value());
    journal->add({.layer = 1, .expert = 2}, digest);
    journal->add({.layer = 0x8001, .expert = 3}, digest);
  }
  fs::resize_file(path, fs::file_size(path) - 1);  // its line break
  {
    auto journal = Journal::open(path, "stamp 1");
    ASSERT_TRUE(journal.has_value());
    ASSERT_EQ(journal->known().size(), 1u);
    EXPECT_EQ(journal->known().begin()->first, (store::SliceKey{.layer = 1, .expert = 2}));
    EXPECT_EQ(journal->known().begin()->second, digest);
  }
  EXPECT_TRUE(Journal::open(path, "stamp 2")->known().empty()) << "another model's";
}

}  // namespace
}  // namespace linkcpp::slice
