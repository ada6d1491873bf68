// Which experts of which layers: the part that several messages share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::wire {

/// Experts of one layer: bit e of word e/64.
struct LayerHolding {
  std::uint16_t layer = 0;
  std::uint16_t n_expert = 0;
  std::vector<std::uint64_t> bits;
  [[nodiscard]] bool has(std::uint32_t expert) const {
    return expert < n_expert && expert / 64 < bits.size() && (bits[expert / 64] >> (expert % 64) & 1) != 0;
  }
  /// `expert` is below n_expert.
  void add(std::uint32_t expert);
  [[nodiscard]] std::size_t count() const;
  bool operator==(const LayerHolding&) const = default;
};
LayerHolding empty_holding(std::uint16_t layer, std::uint16_t n_expert);

inline constexpr std::size_t max_holdings = 2048;   ///< layers, chunk experts counted apart
inline constexpr std::uint16_t max_experts = 4096;  ///< of one layer

/// Layout: u16 number of layers; then for each, in strictly ascending order, layer u16, n_expert u16, ceil(n_expert / 64) words of bits.
void encode_holdings(std::span<const LayerHolding> holdings, ByteWriter& out);
/// Fails with `invalid_input` on anything that encode_holdings() would not write; `what` names the message in the error.
Result<std::vector<LayerHolding>> decode_holdings(ByteReader& in, const char* what);

/// What either holds; both in ascending order of layers. A layer of which they disagree about n_expert counts as in `a`.
std::vector<LayerHolding> united(std::span<const LayerHolding> a, std::span<const LayerHolding> b);

}  // namespace linkcpp::wire
