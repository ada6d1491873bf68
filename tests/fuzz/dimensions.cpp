// Fuzzes the reader of model dimensions: any text is read or refused, and what is accepted adds up.
#include "engine/dimensions.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "require.h"

using linkcpp::fuzz::require;

namespace {

constexpr std::string_view seed =
    R"({"name": "m", "architecture": "a", "parameters": 9, "n_layer": 3, "moe_layers": {"first": 1, "step": 1},
"n_embd": 64, "n_vocab": 9, "n_expert": 6, "top_k": 2, "n_ff_expert": 32, "n_expert_row": 32, "gated": true, "expert_bias": true,
"n_ff_shared": 1, "expert_type": "q4_0", "backbone_type": "f16", "backbone": [{"what": "x", "shape": [64, 9], "count": 2, "type": "f32"}],
"sources": [{"of": ["parameters", "n_layer", "moe_layers", "n_embd", "n_vocab", "n_expert", "top_k", "n_ff_expert", "n_expert_row", "gated",
"expert_bias", "n_ff_shared", "backbone"], "where": "y"}]})";

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  require(linkcpp::engine::parse_dimensions(seed, "seed").has_value(), "the seed is accepted");
  const auto* data = reinterpret_cast<const std::byte*>(seed.data());
  linkcpp::fuzz::SeedFolder().add("dimensions", linkcpp::Bytes(data, data + seed.size()));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto dimensions = linkcpp::engine::parse_dimensions({reinterpret_cast<const char*>(data), size}, "input");
  if (!dimensions) {
    require(dimensions.error().message.starts_with("input "), "an error names the file");
    return 0;
  }
  const auto& anatomy = dimensions->anatomy;
  require(!anatomy.layers.empty() && anatomy.layers.size() <= anatomy.n_layer, "layers with experts are layers");
  require(anatomy.top_k >= 1 && anatomy.top_k <= anatomy.n_expert, "a token uses experts that exist");
  std::uint64_t bytes = 0;
  for (const auto& layer : anatomy.layers) bytes += layer.expert_bytes() * layer.n_expert;
  require(bytes == anatomy.expert_bytes, "expert bytes are those of all experts");
  require(anatomy.total_bytes >= bytes, "the model is no smaller than its experts");
  return 0;
}
