#include "packet6.h"

#include <arpa/inet.h>

#include <algorithm>

namespace linkcpp::lab {
namespace {

constexpr std::size_t header6_bytes = 40, source6_at = 8, destination6_at = 24;
constexpr unsigned icmp6 = 58, echo_request = 128, echo_reply = 129;

std::uint16_t u16_of6(ByteSpan bytes, std::size_t at) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(bytes[at]) << 8 | std::to_integer<unsigned>(bytes[at + 1]));
}
Address6 address_at(ByteSpan packet, std::size_t at) {
  Address6 address;
  std::ranges::transform(packet.subspan(at, address.size()), address.begin(), [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  return address;
}

}  // namespace

std::optional<Route6> route6_of(ByteSpan packet) {
  if (packet.size() < header6_bytes || std::to_integer<unsigned>(packet[0]) >> 4 != 6) return std::nullopt;
  if (header6_bytes + u16_of6(packet, 4) > packet.size()) return std::nullopt;
  return Route6{address_at(packet, source6_at), address_at(packet, destination6_at)};
}

std::optional<Flow6> flow6_of(ByteSpan packet) {
  const auto route = route6_of(packet);
  if (!route) return std::nullopt;
  const ByteSpan body = packet.subspan(header6_bytes);
  const auto next = std::to_integer<unsigned>(packet[6]);
  if (next == icmp6) {
    const bool echo = body.size() >= 8 && (body[0] == std::byte{echo_request} || body[0] == std::byte{echo_reply});
    if (!echo) return std::nullopt;
    return Flow6{Protocol::icmp, {route->from, u16_of6(body, 4)}, {route->to, u16_of6(body, 4)}};
  }
  const auto protocol = static_cast<Protocol>(next);
  if ((protocol != Protocol::udp || body.size() < 8) && (protocol != Protocol::tcp || body.size() < 20)) return std::nullopt;
  return Flow6{protocol, {route->from, u16_of6(body, 0)}, {route->to, u16_of6(body, 2)}};
}

std::string text_of(const Address6& address) {
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET6, address.data(), text, sizeof text);
  return text;
}

}  // namespace linkcpp::lab
