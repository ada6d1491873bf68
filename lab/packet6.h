// The parts of an IPv6 packet that a router and a firewall look at. IPv6 is routed and never translated.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "packet.h"

namespace linkcpp::lab {

/// Network byte order.
using Address6 = std::array<std::uint8_t, 16>;

/// For ICMP echo the port is the identifier.
struct Endpoint6 {
  Address6 address{};
  std::uint16_t port = 0;
  auto operator<=>(const Endpoint6&) const = default;
};

struct Flow6 {
  Protocol protocol = Protocol::udp;  ///< `icmp` stands for ICMPv6
  Endpoint6 from, to;
};

/// Source and destination of any IPv6 packet.
struct Route6 {
  Address6 from{}, to{};
};
std::optional<Route6> route6_of(ByteSpan packet);
/// None for other protocols, extension headers (fragments, too), ICMPv6 but echo, damaged headers.
std::optional<Flow6> flow6_of(ByteSpan packet);

std::string text_of(const Address6& address);

}  // namespace linkcpp::lab
