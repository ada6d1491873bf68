#include "swarm/peer.h"

#include <bit>

namespace linkcpp::swarm {

std::string describe_holdings(const wire::Hello& hello) {
  const std::string held = dispatch::describe(hello.holdings);
  return held.empty() ? "nothing" : held;
}

std::size_t count_holdings(const wire::Hello& hello) {
  std::size_t n = 0;
  for (const wire::LayerHolding& holding : hello.holdings) {
    for (const std::uint64_t word : holding.bits) n += static_cast<std::size_t>(std::popcount(word));
  }
  return n;
}

}  // namespace linkcpp::swarm
