#include "swarm/peer.h"

#include <bit>
#include <vector>

namespace linkcpp::swarm {

std::string describe_holdings(const wire::Hello& hello) {
  // A holding reads like a gap: the same compressed ranges.
  std::vector<dispatch::Gap> held;
  for (const wire::LayerHolding& holding : hello.holdings) {
    dispatch::Gap& layer = held.emplace_back(dispatch::Gap{holding.layer, {}});
    for (std::uint16_t e = 0; e < holding.n_expert; ++e) {
      if (holding.has(e)) layer.experts.push_back(e);
    }
    if (layer.experts.empty()) held.pop_back();
  }
  return held.empty() ? "nothing" : dispatch::describe(held);
}

std::size_t count_holdings(const wire::Hello& hello) {
  std::size_t n = 0;
  for (const wire::LayerHolding& holding : hello.holdings) {
    for (const std::uint64_t word : holding.bits) n += static_cast<std::size_t>(std::popcount(word));
  }
  return n;
}

}  // namespace linkcpp::swarm
