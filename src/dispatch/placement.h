// Placement: which slices a worker that offers room should hold. Pure arithmetic on the model's layers and on what others hold.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/holdings.h"

namespace linkcpp::dispatch {

/// A layer's slices, all of one size.
struct LayerSize {
  std::uint16_t layer = 0;
  std::uint16_t n_expert = 0;
  std::uint64_t slice_bytes = 0;
};

/// What to hold; both in ascending order of layers, disjoint.
struct Placement {
  std::vector<wire::LayerHolding> urgent;  ///< nobody else holds these
  std::vector<wire::LayerHolding> spare;   ///< replicas of what others hold
  std::uint64_t bytes = 0;
  [[nodiscard]] bool empty() const { return urgent.empty() && spare.empty(); }
};

/// Fills a worker's budget, in this order: slices that it has stored already (they cost no transfer) and nobody else holds; slices that
/// nobody holds, layer by layer, so that few workers are touched in a layer and a dispatch carries a token's row once; stored slices that
/// others hold too; then replicas of the least held.
/// `others`: what each other worker holds or was assigned. `layers` in ascending order. Layers of another shape in `stored` are ignored.
Placement place_slices(std::span<const LayerSize> layers, std::span<const std::vector<wire::LayerHolding>> others,
                       std::span<const wire::LayerHolding> stored, std::uint64_t budget);

}  // namespace linkcpp::dispatch
