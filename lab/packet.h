// The parts of an IPv4 packet that a router looks at, read and rewritten in place.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"

namespace linkcpp::lab {

/// Host byte order.
using Address = std::uint32_t;

enum class Protocol : std::uint8_t { icmp = 1, tcp = 6, udp = 17 };

/// One end of a flow. For ICMP echo the port is the identifier.
struct Endpoint {
  Address address = 0;
  std::uint16_t port = 0;
  auto operator<=>(const Endpoint&) const = default;
};

struct Flow {
  Protocol protocol = Protocol::udp;
  Endpoint from, to;
  bool operator==(const Flow&) const = default;
};

/// The flow of a packet; none for what a simple router does not translate: IPv6, fragments, other protocols, ICMP but echo, damaged
/// headers.
std::optional<Flow> flow_of(ByteSpan packet);
/// Source and destination of any IPv4 packet.
struct Route {
  Address from = 0, to = 0;
};
std::optional<Route> route_of(ByteSpan packet);
/// Rewrites source (or destination) of a packet that has a flow, with its checksums (RFC 1624).
void set_source(std::span<std::byte> packet, Endpoint from);
void set_destination(std::span<std::byte> packet, Endpoint to);
/// Whether a TCP packet ends its connection (FIN or RST).
bool ends_connection(ByteSpan packet);

std::optional<Address> parse_address(const std::string& text);
std::string text_of(Address address);

}  // namespace linkcpp::lab
