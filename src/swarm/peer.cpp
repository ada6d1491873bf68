#include "swarm/peer.h"

namespace linkcpp::swarm {

std::string describe_holdings(const wire::Hello& hello) {
  const std::string held = dispatch::describe(hello.holdings);
  return held.empty() ? "nothing" : held;
}

std::size_t count_holdings(const wire::Hello& hello) {
  std::size_t n = 0;
  for (const wire::LayerHolding& holding : hello.holdings) n += holding.count();
  return n;
}

}  // namespace linkcpp::swarm
