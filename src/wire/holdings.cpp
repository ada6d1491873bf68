#include "wire/holdings.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "wire/malformed.h"

namespace linkcpp::wire {
namespace {

constexpr std::size_t words_of(std::uint32_t n_expert) { return (n_expert + 63) / 64; }

Result<LayerHolding> decode_holding(ByteReader& in, const char* what) {
  LayerHolding holding;
  holding.layer = in.get<std::uint16_t>();
  holding.n_expert = in.get<std::uint16_t>();
  if (!in.ok()) return malformed(what, "it is cut short");
  if (holding.n_expert == 0 || holding.n_expert > max_experts) {
    return malformed(what, "layer {} has {} experts, 1 to {} are allowed", holding.layer, holding.n_expert, max_experts);
  }
  holding.bits.resize(words_of(holding.n_expert));
  for (std::uint64_t& word : holding.bits) word = in.get<std::uint64_t>();
  const unsigned in_last = holding.n_expert % 64;
  if (in_last != 0 && holding.bits.back() >> in_last != 0)
    return malformed(what, "layer {} marks experts beyond its {}", holding.layer, holding.n_expert);
  return holding;
}

}  // namespace

void LayerHolding::add(std::uint32_t expert) {
  assert(expert < n_expert);
  bits.resize(words_of(n_expert));
  bits[expert / 64] |= std::uint64_t{1} << (expert % 64);
}

std::size_t LayerHolding::count() const {
  std::size_t n = 0;
  for (const std::uint64_t word : bits) n += static_cast<std::size_t>(std::popcount(word));
  return n;
}

LayerHolding empty_holding(std::uint16_t layer, std::uint16_t n_expert) {
  return {layer, n_expert, std::vector<std::uint64_t>(words_of(n_expert), 0)};
}

void encode_holdings(std::span<const LayerHolding> holdings, ByteWriter& out) {
  assert(holdings.size() <= max_holdings);
  out.put(static_cast<std::uint16_t>(holdings.size()));
  for (const LayerHolding& holding : holdings) {
    out.put(holding.layer);
    out.put(holding.n_expert);
    for (std::size_t w = 0; w < words_of(holding.n_expert); ++w) out.put<std::uint64_t>(w < holding.bits.size() ? holding.bits[w] : 0);
  }
}

Result<std::vector<LayerHolding>> decode_holdings(ByteReader& in, const char* what) {
  const auto n = in.get<std::uint16_t>();
  if (!in.ok()) return malformed(what, "it is cut short");
  if (n > max_holdings) return malformed(what, "it announces {} layers, the limit is {}", n, max_holdings);
  std::vector<LayerHolding> holdings;
  for (std::uint16_t i = 0; i < n; ++i) {
    auto holding = decode_holding(in, what);
    if (!holding) return pass(holding);
    if (i > 0 && holdings.back().layer >= holding->layer) return malformed(what, "layer {} is out of order", holding->layer);
    holdings.push_back(std::move(*holding));
  }
  if (!in.ok()) return malformed(what, "it is cut short");
  return holdings;
}

std::vector<LayerHolding> united(std::span<const LayerHolding> a, std::span<const LayerHolding> b) {
  std::vector<LayerHolding> result(a.begin(), a.end());
  for (const LayerHolding& other : b) {
    const auto place = std::ranges::lower_bound(result, other.layer, {}, &LayerHolding::layer);
    if (place == result.end() || place->layer != other.layer) {
      result.insert(place, other);
      continue;
    }
    for (std::uint32_t e = 0; e < std::min(place->n_expert, other.n_expert); ++e) {
      if (other.has(e)) place->add(e);
    }
  }
  return result;
}

}  // namespace linkcpp::wire
