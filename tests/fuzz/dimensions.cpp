// Fuzzes the reader of model dimensions: any text is read or refused, and what is accepted adds up.
#include <cstdint>
#include <string_view>

#include "engine/dimensions.h"
#include "require.h"

using linkcpp::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto dimensions = linkcpp::engine::parse_dimensions({reinterpret_cast<const char*>(data), size}, "input");
  if (!dimensions) {
    require(!dimensions.error().message.empty());
    return 0;
  }
  const auto& anatomy = dimensions->anatomy;
  require(!anatomy.layers.empty() && anatomy.layers.size() <= anatomy.n_layer && anatomy.top_k <= anatomy.n_expert);
  std::uint64_t bytes = 0;
  for (const auto& layer : anatomy.layers) bytes += layer.expert_bytes() * layer.n_expert;
  require(bytes == anatomy.expert_bytes && anatomy.total_bytes >= bytes);
  return 0;
}
