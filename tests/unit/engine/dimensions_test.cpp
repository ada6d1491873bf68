#include "engine/dimensions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/tiny_gguf.h"

namespace linkcpp::engine {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using namespace linkcpp::test;  // NOLINT: the fixture

/// Dimensions with every key.
json sample() {
  return json::parse(R"({
    "name": "sample", "architecture": "qwen3moe", "parameters": 100000, "n_layer": 4, "moe_layers": {"first": 1, "step": 2},
    "n_embd": 64, "n_vocab": 40, "n_expert": 6, "top_k": 2, "n_ff_expert": 32, "gated": true, "expert_bias": false, "n_ff_shared": 16,
    "expert_type": "q8_0", "backbone_type": "f16",
    "backbone": [{"what": "token embedding", "shape": [64, 40]}, {"what": "norms", "shape": [64], "count": 9, "type": "f32"}],
    "note": "a sample",
    "sources": [{"of": ["parameters", "n_layer", "moe_layers", "n_embd", "n_vocab", "n_expert", "top_k", "n_ff_expert", "gated",
                        "expert_bias", "n_ff_shared", "backbone"], "where": "this test"}]})");
}

Dimensions read(const json& file) {
  auto dimensions = parse_dimensions(file.dump(), "sample.json");
  EXPECT_TRUE(dimensions.has_value()) << dimensions.error().message;
  return dimensions ? *dimensions : Dimensions{};
}

/// The error of a file that is wrong; it always names the file.
std::string error_of(std::string_view text) {
  const auto dimensions = parse_dimensions(text, "sample.json");
  EXPECT_FALSE(dimensions.has_value()) << text << " was accepted";
  if (dimensions) return {};
  EXPECT_EQ(dimensions.error().kind, ErrorKind::invalid_input);
  EXPECT_THAT(dimensions.error().message, HasSubstr("sample.json"));
  return dimensions.error().message;
}

/// The error of the sample with one key changed.
std::string error_with(const std::string& key, const json& value) {
  json file = sample();
  file[key] = value;
  return error_of(file.dump());
}

TEST(Dimensions, MakeTheAnatomy) {
  const Dimensions dimensions = read(sample());
  const Anatomy& anatomy = dimensions.anatomy;
  EXPECT_EQ(anatomy.name, "sample");
  EXPECT_EQ(anatomy.architecture, "qwen3moe");
  EXPECT_EQ(anatomy.n_layer, 4u);
  EXPECT_EQ(anatomy.top_k, 2u);
  EXPECT_TRUE(anatomy.shared_expert);
  ASSERT_EQ(anatomy.layers.size(), 2u);
  EXPECT_EQ(anatomy.layers[0].key, 1u);
  EXPECT_EQ(anatomy.layers[1].key, 3u);
  constexpr std::uint64_t expert = 3 * 64 * 32 * 34 / 32;  // Q8_0: 34 bytes for 32 weights
  EXPECT_EQ(anatomy.layers[0].expert_bytes(), expert);
  EXPECT_EQ(anatomy.expert_bytes, 2 * 6 * expert);
  EXPECT_EQ(anatomy.total_bytes, 2 * 6 * expert + 2 * 64 * 40 + 4 * 64 * 9);
  EXPECT_EQ(dimensions.published_parameters, 100000u);
  EXPECT_EQ(dimensions.parameters, 2u * 6 * 3 * 64 * 32 + 64 * 40 + 64 * 9);
}

TEST(Dimensions, MayListLayersAndLeaveTheBackboneOut) {
  json file = sample();
  file["moe_layers"] = {0, 3};
  for (const char* key : {"backbone", "backbone_type", "note"}) file.erase(key);
  file["sources"][0]["of"].erase(11);
  const Dimensions dimensions = read(file);
  ASSERT_EQ(dimensions.anatomy.layers.size(), 2u);
  EXPECT_EQ(dimensions.anatomy.layers[1].key, 3u);
  EXPECT_EQ(dimensions.parameters, 0u);
  EXPECT_EQ(dimensions.anatomy.total_bytes, dimensions.anatomy.expert_bytes);
}

TEST(Dimensions, KnowLatentExpertsWithoutGate) {
  json file = sample();
  file["n_expert_row"] = 32;
  file["gated"] = false;
  file["sources"].push_back({{"of", {"n_expert_row"}}, {"where", "this test"}});
  const Dimensions dimensions = read(file);
  const MoeLayer& layer = dimensions.anatomy.layers[0];
  EXPECT_EQ(layer.tensors.size(), 2u);
  EXPECT_EQ(layer.n_in(), 32u);
  EXPECT_EQ(layer.n_out(), 32u);
  EXPECT_EQ(layer.expert_bytes(), 2u * 32 * 32 * 34 / 32);
}

/// Everything that inspect shows of a tensor or computes with; offsets and files exist only in a GGUF.
void expect_same_layers(const Anatomy& a, const Anatomy& b) {
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const MoeLayer &x = a.layers[i], &y = b.layers[i];
    EXPECT_EQ(x.key, y.key);
    EXPECT_EQ(x.n_expert, y.n_expert);
    ASSERT_EQ(x.tensors.size(), y.tensors.size());
    for (std::size_t t = 0; t < x.tensors.size(); ++t) {
      const ExpertTensor &p = x.tensors[t], &q = y.tensors[t];
      EXPECT_EQ(p.name, q.name);
      EXPECT_EQ(p.role, q.role);
      EXPECT_EQ(p.type_name, q.type_name);
      EXPECT_EQ(p.is_bias, q.is_bias);
      EXPECT_EQ(p.n_in, q.n_in);
      EXPECT_EQ(p.n_out, q.n_out);
      EXPECT_EQ(p.n_expert, q.n_expert);
      EXPECT_EQ(p.slice_bytes, q.slice_bytes);
    }
  }
}

TEST(Dimensions, AreTheAnatomyOfAGgufOfTheSameShape) {
  const TinyShape shape{};
  GgufBuilder gguf;
  add_tiny_metadata(gguf, shape);
  gguf.tensors = {f32_tensor("token_embd.weight", {shape.n_embd, shape.n_vocab})};
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    const std::string p = std::format("blk.{}.", i);
    gguf.tensors.push_back(f32_tensor(p + "ffn_gate_inp.weight", {shape.n_embd, shape.n_expert}));
    for (const char* role : {"gate", "up", "down"}) {
      const bool down = std::string_view(role) == "down";
      const std::int64_t n_in = down ? shape.n_ff : shape.n_embd, n_out = down ? shape.n_embd : shape.n_ff;
      gguf.tensors.push_back(q8_tensor(std::format("{}ffn_{}_exps.weight", p, role), {n_in, n_out, shape.n_expert}));
      gguf.tensors.push_back(f32_tensor(std::format("{}ffn_{}_exps.bias", p, role), {n_out, shape.n_expert}));
    }
  }
  const ScratchFolder folder;
  write_file(folder / "m.gguf", gguf.bytes());
  const auto real = read_anatomy(folder / "m.gguf");
  ASSERT_TRUE(real.has_value()) << real.error().message;

  json file = sample();
  file["n_layer"] = shape.layers;
  file["moe_layers"] = {{"first", 0}};
  file["expert_bias"] = true;
  file["n_ff_shared"] = 0;
  file["backbone_type"] = "f32";
  file["backbone"] = {{{"what", "token embedding"}, {"shape", {shape.n_embd, shape.n_vocab}}},
                      {{"what", "router"}, {"shape", {shape.n_embd, shape.n_expert}}, {"count", shape.layers}}};
  const Anatomy written = read(file).anatomy;
  expect_same_layers(written, *real);
  EXPECT_EQ(written.architecture, real->architecture);
  EXPECT_EQ(written.n_layer, real->n_layer);
  EXPECT_EQ(written.n_embd, real->n_embd);
  EXPECT_EQ(written.n_vocab, real->n_vocab);
  EXPECT_EQ(written.n_expert, real->n_expert);
  EXPECT_EQ(written.top_k, real->top_k);
  EXPECT_EQ(written.shared_expert, real->shared_expert);
  EXPECT_EQ(written.expert_bytes, real->expert_bytes);
  EXPECT_EQ(written.total_bytes, real->total_bytes);
  EXPECT_EQ(written.expert_types, real->expert_types);
  EXPECT_EQ(written.backbone_types, real->backbone_types);
}

TEST(Dimensions, RefuseWhatIsNoObjectOfThem) {
  EXPECT_THAT(error_of(""), HasSubstr("no JSON"));
  EXPECT_THAT(error_of("{\"name\": "), HasSubstr("no JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of("\"\xff\""), HasSubstr("no JSON"));
  EXPECT_THAT(error_of(R"({"n_layer": 4, "n_layer": 5})"), HasSubstr("\"n_layer\" twice"));
  EXPECT_THAT(error_of(std::string(200000, '[')), HasSubstr("no JSON"));
}

TEST(Dimensions, NameTheKeyThatIsMissing) {
  for (const char* key : {"name", "architecture", "n_layer", "n_embd", "n_expert", "top_k", "n_ff_expert", "expert_type"}) {
    json file = sample();
    file.erase(key);
    EXPECT_THAT(error_of(file.dump()), HasSubstr(std::format("misses \"{}\"", key)));
  }
}

TEST(Dimensions, NameTheKeyThatIsWrong) {
  EXPECT_THAT(error_with("n_experts", 6), HasSubstr("unknown key \"n_experts\""));
  EXPECT_THAT(error_with("n_layer", 0), HasSubstr("\"n_layer\" = 0, outside 1 to 1000"));
  EXPECT_THAT(error_with("n_layer", -4), HasSubstr("\"n_layer\" = -4, which is no whole number"));
  EXPECT_THAT(error_with("n_layer", 4.5), HasSubstr("no whole number"));
  EXPECT_THAT(error_with("n_layer", "4"), HasSubstr("no whole number"));
  EXPECT_THAT(error_with("n_expert", 70000), HasSubstr("\"n_expert\" = 70000"));
  EXPECT_THAT(error_with("top_k", 7), HasSubstr("uses 7 of 6 experts"));
  EXPECT_THAT(error_with("n_embd", 1u << 21), HasSubstr("\"n_embd\""));
  EXPECT_THAT(error_with("name", ""), HasSubstr("\"name\""));
  EXPECT_THAT(error_with("name", "a\nb"), HasSubstr("\"name\""));
  EXPECT_THAT(error_with("name", 3), HasSubstr("no text"));
  EXPECT_THAT(error_with("gated", 1), HasSubstr("neither true nor false"));
  EXPECT_THAT(error_with("expert_type", "q4"), HasSubstr("\"q4\", which is no tensor type"));
  EXPECT_THAT(error_with("expert_type", "q4_K"), HasSubstr("blocks of 256"));  // rows of 64 and 32
  EXPECT_THAT(error_with("moe_layers", {{"frist", 1}}), HasSubstr("unknown key \"frist\""));
  EXPECT_THAT(error_with("moe_layers", {{"first", 4}}), HasSubstr("\"first\" = 4, outside 0 to 3"));
  EXPECT_THAT(error_with("moe_layers", {{"step", 0}}), HasSubstr("\"step\" = 0"));
  EXPECT_THAT(error_with("moe_layers", {1, 1}), HasSubstr("layer 1 twice"));
  EXPECT_THAT(error_with("moe_layers", {4}), HasSubstr("outside 0 to 3"));
  EXPECT_THAT(error_with("moe_layers", json::array()), HasSubstr("no layer with experts"));
  EXPECT_THAT(error_with("moe_layers", 3), HasSubstr("neither a list"));
}

TEST(Dimensions, RefuseABackboneThatCannotBe) {
  const auto with = [](const json& entry) { return error_with("backbone", json::array({entry})); };
  EXPECT_THAT(error_with("backbone", json::array()), HasSubstr("\"backbone\""));
  EXPECT_THAT(error_with("backbone", {1}), HasSubstr("no object"));
  EXPECT_THAT(with({{"shape", {64, 64}}}), HasSubstr("misses \"what\""));
  EXPECT_THAT(with({{"what", "x"}}), HasSubstr("no \"shape\""));
  EXPECT_THAT(with({{"what", "x"}, {"shape", {1, 2, 3}}}), HasSubstr("no \"shape\""));
  EXPECT_THAT(with({{"what", "x"}, {"shape", {64, 0}}}), HasSubstr("\"x\" = 0"));
  EXPECT_THAT(with({{"what", "x"}, {"shape", {64}}, {"cuont", 2}}), HasSubstr("unknown key \"cuont\""));
  EXPECT_THAT(with({{"what", "x"}, {"shape", {UINT32_MAX, UINT32_MAX}}, {"count", 1000000}}), HasSubstr("no real model"));
  EXPECT_THAT(with({{"what", "x"}, {"shape", {33}}, {"type", "q8_0"}}), HasSubstr("blocks of 32"));
}

TEST(Dimensions, NeedASourceForEveryFigure) {
  json file = sample();
  file["sources"][0]["of"].erase(0);
  EXPECT_THAT(error_of(file.dump()), HasSubstr("no source for \"parameters\""));
  EXPECT_THAT(error_with("sources", json::array()), HasSubstr("no source for"));
  EXPECT_THAT(error_with("sources", "a book"), HasSubstr("\"sources\""));
  EXPECT_THAT(error_with("sources", {{{"of", {"n_heads"}}, {"where", "a book"}}}), HasSubstr("\"n_heads\", which is no key of it"));
  EXPECT_THAT(error_with("sources", {{{"of", {"n_layer"}}}}), HasSubstr("misses \"where\""));
}

TEST(Dimensions, RefuseFilesThatAreNone) {
  const ScratchFolder folder;
  const auto kind = [](const std::filesystem::path& path) {
    const auto dimensions = read_dimensions(path);
    EXPECT_FALSE(dimensions.has_value());
    return dimensions ? ErrorKind::internal : dimensions.error().kind;
  };
  EXPECT_EQ(kind(folder / "none.json"), ErrorKind::not_found);
  EXPECT_EQ(kind(folder.path()), ErrorKind::invalid_input);
  write_file(folder / "large.json", std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(kind(folder / "large.json"), ErrorKind::invalid_input);
  EXPECT_EQ(kind("/dev/zero"), ErrorKind::invalid_input);
  write_file(folder / "sample.json", sample().dump());
  EXPECT_TRUE(read_dimensions(folder / "sample.json").has_value());
}

}  // namespace
}  // namespace linkcpp::engine
