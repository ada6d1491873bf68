#include "dispatch/placement.h"

#include <algorithm>

namespace linkcpp::dispatch {
namespace {

const wire::LayerHolding* find(std::span<const wire::LayerHolding> holdings, const LayerSize& layer) {
  const auto found = std::ranges::lower_bound(holdings, layer.layer, {}, &wire::LayerHolding::layer);
  return found == holdings.end() || found->layer != layer.layer || found->n_expert != layer.n_expert ? nullptr : &*found;
}

struct Slice {
  std::size_t layer = 0;  ///< index into the layers
  std::uint32_t expert = 0;
  std::uint32_t holders = 0;  ///< others
  bool stored = false;
};

std::vector<Slice> slices_of(std::span<const LayerSize> layers, std::span<const std::vector<wire::LayerHolding>> others,
                             std::span<const wire::LayerHolding> stored) {
  std::vector<Slice> slices;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::size_t first = slices.size();
    const wire::LayerHolding* own = find(stored, layers[l]);
    for (std::uint32_t e = 0; e < layers[l].n_expert; ++e) slices.push_back({l, e, 0, own != nullptr && own->has(e)});
    for (const auto& other : others) {
      const wire::LayerHolding* held = find(other, layers[l]);
      if (held == nullptr) continue;
      for (std::uint32_t e = 0; e < layers[l].n_expert; ++e) slices[first + e].holders += held->has(e) ? 1 : 0;
    }
  }
  return slices;
}

/// The order in which a budget is spent: see place_slices().
int urgency(const Slice& slice) {
  if (slice.holders == 0) return slice.stored ? 0 : 1;
  return slice.stored ? 2 : 3;
}

void put(std::vector<wire::LayerHolding>& into, const LayerSize& layer, std::uint32_t expert) {
  const auto place = std::ranges::lower_bound(into, layer.layer, {}, &wire::LayerHolding::layer);
  const auto holding =
      place != into.end() && place->layer == layer.layer ? place : into.insert(place, wire::empty_holding(layer.layer, layer.n_expert));
  holding->add(expert);
}

}  // namespace

Placement place_slices(std::span<const LayerSize> layers, std::span<const std::vector<wire::LayerHolding>> others,
                       std::span<const wire::LayerHolding> stored, std::uint64_t budget) {
  std::vector<Slice> slices = slices_of(layers, others, stored);
  // Stable: within one class the layers and experts stay in order.
  std::ranges::stable_sort(slices, [](const Slice& a, const Slice& b) {
    const int first = urgency(a), second = urgency(b);
    return first != second ? first < second : a.holders < b.holders;
  });
  Placement placement;
  for (const Slice& slice : slices) {
    const LayerSize& layer = layers[slice.layer];
    if (layer.slice_bytes > budget - placement.bytes) continue;  // a smaller one of another layer may still fit
    placement.bytes += layer.slice_bytes;
    put(slice.holders == 0 ? placement.urgent : placement.spare, layer, slice.expert);
  }
  return placement;
}

}  // namespace linkcpp::dispatch
