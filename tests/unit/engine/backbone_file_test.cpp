#include "engine/backbone_file.h"

#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <memory>

#include "support/tiny_gguf.h"

namespace linkcpp::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using namespace linkcpp::test;  // NOLINT: the fixture

/// A file as the engine's own reader sees it.
struct EngineView {
  explicit EngineView(const fs::path& path)
      : gguf(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}), &gguf_free), bytes(read_file(path)) {}
  [[nodiscard]] std::string_view data(std::int64_t tensor) const {
    return std::string_view(bytes).substr(gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), tensor),
                                          gguf_get_tensor_size(gguf.get(), tensor));
  }
  std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf;
  std::string bytes;
};

bool is_expert(const TensorSpec& tensor) { return tensor.name.contains("_exps."); }

class BackboneFileTest : public ::testing::Test {
 protected:
  Anatomy saved(const GgufBuilder& gguf) {
    write_file(folder_ / "m.gguf", gguf.bytes());
    return read(folder_ / "m.gguf");
  }
  Anatomy saved(const std::vector<GgufBuilder>& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) write_file(folder_ / part_name(i + 1, parts.size()), parts[i].bytes());
    return read(folder_ / part_name(1, parts.size()));
  }
  static Anatomy read(const fs::path& path) {
    auto anatomy = read_anatomy(path);
    EXPECT_TRUE(anatomy.has_value()) << anatomy.error().message;
    return anatomy ? *anatomy : Anatomy{};
  }
  void write(const Anatomy& anatomy, const std::optional<wire::Digest>& index = std::nullopt) const {
    const auto written = write_backbone(anatomy, folder_.path(), index, {});
    ASSERT_TRUE(written.has_value()) << written.error().message;
  }
  /// The first file has the pairs of `values` one behind the other as they were encoded, and the tensors byte by byte.
  void expect_first_file(const std::vector<std::string>& values, const std::vector<TensorSpec>& tensors) const {
    const EngineView view(first());
    ASSERT_TRUE(view.gguf) << "the engine cannot read it";
    std::string encoded;
    for (const auto& pair : values) encoded += pair;
    EXPECT_EQ(view.bytes.substr(24, encoded.size()), encoded) << "metadata";
    std::int64_t at = 0;
    for (const TensorSpec& tensor : tensors) {
      if (is_expert(tensor)) continue;
      ASSERT_LT(at, gguf_get_n_tensors(view.gguf.get()));
      EXPECT_EQ(gguf_get_tensor_name(view.gguf.get(), at), tensor.name);
      EXPECT_EQ(static_cast<int>(gguf_get_tensor_type(view.gguf.get(), at)), tensor.type);
      EXPECT_EQ(view.data(at), tensor.data) << tensor.name;
      ++at;
    }
    EXPECT_EQ(gguf_get_n_tensors(view.gguf.get()), at) << "it has more tensors than those";
  }
  /// The second file has the experts' names, types and sizes, and zeros behind its header.
  void expect_second_file(const std::vector<TensorSpec>& tensors) const {
    const EngineView view(second());
    ASSERT_TRUE(view.gguf) << "the engine cannot read it";
    std::int64_t n = 0;
    for (const TensorSpec& tensor : tensors) {
      if (!is_expert(tensor)) continue;
      const auto at = gguf_find_tensor(view.gguf.get(), tensor.name.c_str());
      ASSERT_GE(at, 0) << tensor.name;
      EXPECT_EQ(static_cast<int>(gguf_get_tensor_type(view.gguf.get(), at)), tensor.type);
      EXPECT_EQ(view.data(at), std::string(tensor.data.size(), '\0')) << tensor.name;
      ++n;
    }
    EXPECT_EQ(gguf_get_n_tensors(view.gguf.get()), n);
  }
  [[nodiscard]] fs::path first() const { return folder_ / backbone_file_name; }
  [[nodiscard]] fs::path second() const { return folder_ / holes_file_name; }
  ScratchFolder folder_;
};

TEST_F(BackboneFileTest, HasTheModelsMetadataAndOtherTensorsByteByByte) {
  const auto gguf = tiny_model();
  write(saved(gguf));
  expect_first_file(gguf.values, gguf.tensors);
  expect_second_file(gguf.tensors);
}

TEST_F(BackboneFileTest, HasThemWithAnAlignmentOfTheModelsOwn) {
  auto gguf = tiny_model({.n_embd = 64, .n_ff = 33, .n_expert = 6, .n_vocab = 41});
  gguf.u32("general.alignment", 256);
  gguf.alignment = 256;
  write(saved(gguf));
  expect_first_file(gguf.values, gguf.tensors);
  expect_second_file(gguf.tensors);
}

TEST_F(BackboneFileTest, OfASplitModelReplacesTheKeysOfSplitting) {
  const auto parts = tiny_parts(3);
  write(saved(parts));
  auto values = parts[0].values;
  std::erase_if(values, [](const std::string& pair) { return std::string_view(pair).substr(8).starts_with("split."); });
  ASSERT_LT(values.size(), parts[0].values.size());
  expect_first_file(values, tiny_tensors());
  expect_second_file(tiny_tensors());
  const EngineView view(first());
  EXPECT_EQ(gguf_get_val_u16(view.gguf.get(), gguf_find_key(view.gguf.get(), "split.count")), 2);
  EXPECT_EQ(gguf_get_val_i32(view.gguf.get(), gguf_find_key(view.gguf.get(), "split.tensors.count")),
            static_cast<int>(tiny_tensors().size()));
}

TEST_F(BackboneFileTest, IsReadAsTheModelWithoutItsExperts) {
  const auto model = saved(tiny_model());
  EXPECT_TRUE(hole_files(model).empty());
  write(model, wire::Digest{7});
  const auto backbone = read(first());
  EXPECT_TRUE(backbone.experts_absent);
  EXPECT_FALSE(model.experts_absent);
  EXPECT_EQ(backbone.digest, model.digest);
  EXPECT_EQ(backbone.expert_bytes, model.expert_bytes);
  EXPECT_EQ(backbone.layers.size(), model.layers.size());
  EXPECT_EQ(backbone_bytes(backbone), backbone_bytes(model));
  EXPECT_EQ(hole_files(backbone), std::vector{second()});
  const EngineView view(first());
  EXPECT_EQ(gguf_get_val_str(view.gguf.get(), gguf_find_key(view.gguf.get(), std::string(key_index_digest).c_str())),
            wire::to_hex(wire::Digest{7}));
}

TEST_F(BackboneFileTest, ExpertsTakeNoRoom) {
  write(saved(tiny_model({.n_embd = 256, .n_ff = 256, .n_expert = 16})));
  struct stat status{};
  ASSERT_EQ(::stat(second().c_str(), &status), 0);
  EXPECT_GT(status.st_size, 10'000'000);
  EXPECT_LT(status.st_blocks * 512, 1'000'000) << "does " << folder_.path() << " lie on a file system with sparse files?";
}

TEST_F(BackboneFileTest, TheHolesCanBeMadeAgain) {
  const auto model = saved(tiny_model());
  EXPECT_FALSE(*restore_holes(model.files[0])) << "a whole model has none";
  write(model);
  const std::string before = read_file(second());
  EXPECT_FALSE(*restore_holes(first())) << "they are there";
  fs::remove(second());
  EXPECT_TRUE(*restore_holes(first()));
  EXPECT_EQ(read_file(second()), before);
  fs::resize_file(second(), before.size() - 1);
  EXPECT_TRUE(*restore_holes(first()));
  EXPECT_EQ(read_file(second()), before);
  fs::rename(first(), folder_ / "renamed.gguf");
  EXPECT_THAT(restore_holes(folder_ / "renamed.gguf").error().message, HasSubstr("-00001-of-00002.gguf"));
}

TEST_F(BackboneFileTest, RefusesWhatSaysNothingSoundAboutItsHoles) {
  const auto refused = [&](std::uint64_t bytes, const std::string& header, std::int32_t kind = gguf_array) {
    auto gguf = tiny_model();
    gguf.text(key_model_digest, std::string(64, 'a'));
    std::string number;
    put(number, bytes);
    gguf.value(key_holes_bytes, 10, number);
    if (kind == gguf_array) {
      gguf.array(key_holes_header, 0, header.size(), header);
    } else {
      gguf.text(key_holes_header, header);
    }
    write_file(first(), gguf.bytes());
    const auto made = restore_holes(first());
    return !made && !fs::exists(second());
  };
  EXPECT_FALSE(refused(4096, "GGUF")) << "the sound one must pass, or the others show nothing";
  fs::remove(second());
  EXPECT_TRUE(refused(3, "GGUF")) << "shorter than its header";
  EXPECT_TRUE(refused(UINT64_MAX, "GGUF")) << "no file can be as long";
  EXPECT_TRUE(refused(4096, "")) << "no header";
  EXPECT_TRUE(refused(4096, "GGUF", gguf_text)) << "no array";
}

TEST_F(BackboneFileTest, OfABackboneOrCancelledIsRefusedAndLeavesNothing) {
  const auto model = saved(tiny_model());
  const auto cancelled = write_backbone(model, folder_.path(), std::nullopt, [](auto, auto) { return false; });
  ASSERT_FALSE(cancelled.has_value());
  EXPECT_EQ(cancelled.error().kind, ErrorKind::unavailable);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1) << "only the model is there";
  write(model);
  const auto again = write_backbone(read(first()), folder_ / "again", std::nullopt, {});
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().kind, ErrorKind::invalid_input);
}

}  // namespace
}  // namespace linkcpp::engine
