// A worker as the backbone sees it: its link, what it said of itself, which programs it was sent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "dispatch/dispatcher.h"
#include "net/link.h"
#include "wire/messages.h"
#include "wire/provision.h"

namespace linkcpp::swarm {

struct Peer {
  net::LinkPtr link;
  std::string name;  ///< unique among the live workers
  wire::Hello hello;
  std::optional<dispatch::WorkerId> id;        ///< set once admitted
  bool suspended = false;                      ///< no connection carries its session at present
  std::optional<wire::Offer> offer;            ///< room for slices
  bool assigned = false;                       ///< it was told which to hold
  std::vector<wire::LayerHolding> assignment;  ///< those
  std::uint64_t bytes_there = 0;               ///< of them, as it said last
  std::string paths_said, transport_said;      ///< what the status channel knows of its paths
  std::unordered_set<std::uint64_t> programs;  ///< ids that were sent over this link
};
using PeerPtr = std::shared_ptr<Peer>;

/// "layers 0-3: experts 0-11; layer 4: experts 0, 5-7": what a hello announces, for people.
std::string describe_holdings(const wire::Hello& hello);
/// Sum of held (layer, expert) slots.
std::size_t count_holdings(const wire::Hello& hello);

}  // namespace linkcpp::swarm
