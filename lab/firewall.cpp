#include "firewall.h"

#include <algorithm>

namespace linkcpp::lab {
namespace {

/// What a filter looks at: protocol, and the port of the one who is outside.
std::optional<std::pair<Protocol, std::uint16_t>> outer_port(ByteSpan packet, bool outward) {
  if (const auto flow = flow_of(packet)) return std::pair(flow->protocol, outward ? flow->to.port : flow->from.port);
  if (const auto flow = flow6_of(packet)) return std::pair(flow->protocol, outward ? flow->to.port : flow->from.port);
  return std::nullopt;
}

}  // namespace

bool Filter::passes(ByteSpan packet, bool outward) const {
  if (!blocks_udp && only_ports.empty()) return true;
  const auto seen = outer_port(packet, outward);
  if (!seen) return false;
  const auto [protocol, port] = *seen;
  if (protocol == Protocol::icmp) return true;
  if (protocol == Protocol::udp && blocks_udp) return false;
  return only_ports.empty() || std::ranges::contains(only_ports, port);
}

void Firewall::outbound(ByteSpan packet, Time now) {
  const auto flow = flow6_of(packet);
  if (!flow) return;
  Time& expires = expires_[{flow->protocol, flow->from, flow->to}];
  expires = std::max(expires, now + timeout(flow->protocol));
}

bool Firewall::lets_in(ByteSpan packet, Time now) {
  const auto flow = flow6_of(packet);
  if (!flow) return false;
  const auto known = expires_.find({flow->protocol, flow->to, flow->from});
  if (known == expires_.end()) return false;
  if (known->second > now) return true;
  expires_.erase(known);
  return false;
}

}  // namespace linkcpp::lab
