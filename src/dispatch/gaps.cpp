// How missing (or held) experts are named to people: compressed ranges, equal consecutive layers merged.
#include <format>

#include "dispatch/dispatcher.h"

namespace linkcpp::dispatch {
namespace {

constexpr std::uint16_t chunk_bit = 0x8000;

std::string ranges(const std::vector<std::uint16_t>& experts) {
  std::string text;
  for (std::size_t i = 0; i < experts.size();) {
    std::size_t last = i;
    while (last + 1 < experts.size() && experts[last + 1] == experts[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? std::format("{}", experts[i]) : std::format("{}-{}", experts[i], experts[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

std::string describe(const std::vector<Gap>& gaps) {
  std::string text;
  for (std::size_t i = 0; i < gaps.size();) {
    std::size_t last = i;
    while (last + 1 < gaps.size() && gaps[last + 1].layer == gaps[last].layer + 1 && gaps[last + 1].experts == gaps[i].experts) ++last;
    const unsigned from = gaps[i].layer & ~unsigned{chunk_bit}, to = gaps[last].layer & ~unsigned{chunk_bit};
    if (!text.empty()) text += "; ";
    text += last == i ? std::format("layer {}", from) : std::format("layers {}-{}", from, to);
    text += (gaps[i].layer & chunk_bit) != 0 ? ": chunk experts " : ": experts ";
    text += ranges(gaps[i].experts);
    i = last + 1;
  }
  return text;
}

std::string describe(std::span<const wire::LayerHolding> holdings) {
  std::vector<Gap> held;
  for (const wire::LayerHolding& holding : holdings) {
    Gap layer{holding.layer, {}};
    for (std::uint16_t e = 0; e < holding.n_expert; ++e) {
      if (holding.has(e)) layer.experts.push_back(e);
    }
    if (!layer.experts.empty()) held.push_back(std::move(layer));
  }
  return describe(held);
}

}  // namespace linkcpp::dispatch
