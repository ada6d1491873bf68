// What lets packets through, or not, at the border of a site. Pure: time is an argument.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "line.h"
#include "packet.h"
#include "packet6.h"

namespace linkcpp::lab {

/// What an operator forbids on a line, in both directions and for both families. Looks at each packet alone.
struct Filter {
  bool blocks_udp = false;
  std::vector<std::uint16_t> only_ports;  ///< TCP to and from these ports of others, and no UDP to any other; empty: all
  /// `outward`: the packet leaves the site. Fragments and the like do not pass a filter that forbids anything.
  [[nodiscard]] bool passes(ByteSpan packet, bool outward) const;
};

/// The IPv6 side of a home router: only answers come in. Not thread-safe.
class Firewall {
 public:
  Firewall(Time udp_timeout, Time tcp_timeout) : udp_timeout_(udp_timeout), tcp_timeout_(tcp_timeout) {}
  /// A packet leaves: its answers may come in.
  void outbound(ByteSpan packet, Time now);
  /// Whether an IPv6 packet from outside is an answer.
  bool lets_in(ByteSpan packet, Time now);

 private:
  using Key = std::tuple<Protocol, Endpoint6, Endpoint6>;  ///< inner, outer
  [[nodiscard]] Time timeout(Protocol protocol) const { return protocol == Protocol::tcp ? tcp_timeout_ : udp_timeout_; }
  Time udp_timeout_, tcp_timeout_;
  std::map<Key, Time> expires_;
};

}  // namespace linkcpp::lab
