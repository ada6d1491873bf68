#include "packet.h"

#include <arpa/inet.h>

#include <array>
#include <format>

namespace linkcpp::lab {
namespace {

constexpr std::size_t header_checksum = 10, source_at = 12, destination_at = 16;

std::uint16_t u16(ByteSpan bytes, std::size_t at) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(bytes[at]) << 8 | std::to_integer<unsigned>(bytes[at + 1]));
}
std::uint32_t u32(ByteSpan bytes, std::size_t at) { return static_cast<std::uint32_t>(u16(bytes, at)) << 16 | u16(bytes, at + 2); }
void put16(std::span<std::byte> bytes, std::size_t at, std::uint16_t value) {
  bytes[at] = static_cast<std::byte>(value >> 8);
  bytes[at + 1] = static_cast<std::byte>(value);
}

std::size_t header_bytes(ByteSpan packet) { return (std::to_integer<std::size_t>(packet[0]) & 15) * 4; }

/// RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
std::uint16_t adjusted(std::uint16_t checksum, std::uint16_t before, std::uint16_t after) {
  std::uint32_t sum = static_cast<std::uint16_t>(~checksum) + static_cast<std::uint32_t>(static_cast<std::uint16_t>(~before)) + after;
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

struct Checksum {
  std::size_t at;
  bool covers_addresses, zero_means_none;
};

std::optional<Checksum> transport_checksum(ByteSpan packet) {
  const std::size_t start = header_bytes(packet);
  switch (static_cast<Protocol>(packet[9])) {
    case Protocol::udp:
      return Checksum{start + 6, true, true};
    case Protocol::tcp:
      return Checksum{start + 16, true, false};
    case Protocol::icmp:
      return Checksum{start + 2, false, false};
  }
  return std::nullopt;
}

/// Where the port lies: ICMP's identifier serves both directions.
std::size_t port_at(ByteSpan packet, bool source) {
  const std::size_t start = header_bytes(packet);
  return static_cast<Protocol>(packet[9]) == Protocol::icmp ? start + 4 : start + (source ? 0 : 2);
}

void rewrite(std::span<std::byte> packet, std::size_t at, std::uint16_t value, std::optional<Checksum> first,
             std::optional<Checksum> second) {
  const std::uint16_t before = u16(packet, at);
  put16(packet, at, value);
  for (const auto& checksum : {first, second}) {
    if (!checksum) continue;
    const std::uint16_t old = u16(packet, checksum->at);
    if (checksum->zero_means_none && old == 0) continue;
    std::uint16_t now = adjusted(old, before, value);
    if (checksum->zero_means_none && now == 0) now = 0xFFFF;
    put16(packet, checksum->at, now);
  }
}

void set_end(std::span<std::byte> packet, std::size_t address_at, bool source, Endpoint end) {
  const auto transport = transport_checksum(packet);
  const Checksum header{header_checksum, true, false};
  const auto of_addresses = transport && transport->covers_addresses ? transport : std::nullopt;
  rewrite(packet, address_at, static_cast<std::uint16_t>(end.address >> 16), header, of_addresses);
  rewrite(packet, address_at + 2, static_cast<std::uint16_t>(end.address), header, of_addresses);
  rewrite(packet, port_at(packet, source), end.port, transport, std::nullopt);
}

}  // namespace

std::optional<Route> route_of(ByteSpan packet) {
  if (packet.size() < 20 || std::to_integer<unsigned>(packet[0]) >> 4 != 4) return std::nullopt;
  const std::size_t header = header_bytes(packet);
  if (header < 20 || packet.size() < header || u16(packet, 2) > packet.size()) return std::nullopt;
  return Route{u32(packet, source_at), u32(packet, destination_at)};
}

std::optional<Flow> flow_of(ByteSpan packet) {
  const auto route = route_of(packet);
  if (!route || (u16(packet, 6) & 0x3FFF) != 0) return std::nullopt;  // more fragments, or not the first
  const ByteSpan body = packet.subspan(header_bytes(packet));
  const auto protocol = static_cast<Protocol>(packet[9]);
  if (protocol == Protocol::icmp) {
    if (body.size() < 8 || (body[0] != std::byte{0} && body[0] != std::byte{8})) return std::nullopt;
    return Flow{protocol, {route->from, u16(body, 4)}, {route->to, u16(body, 4)}};
  }
  if ((protocol != Protocol::udp || body.size() < 8) && (protocol != Protocol::tcp || body.size() < 20)) return std::nullopt;
  return Flow{protocol, {route->from, u16(body, 0)}, {route->to, u16(body, 2)}};
}

void set_source(std::span<std::byte> packet, Endpoint from) { set_end(packet, source_at, true, from); }
void set_destination(std::span<std::byte> packet, Endpoint to) { set_end(packet, destination_at, false, to); }

bool ends_connection(ByteSpan packet) {
  const auto flow = flow_of(packet);
  return flow && flow->protocol == Protocol::tcp && (std::to_integer<unsigned>(packet[header_bytes(packet) + 13]) & 5) != 0;
}

std::optional<Address> parse_address(const std::string& text) {
  in_addr parsed{};
  if (::inet_pton(AF_INET, text.c_str(), &parsed) != 1) return std::nullopt;
  return ntohl(parsed.s_addr);
}

std::string text_of(Address address) {
  return std::format("{}.{}.{}.{}", address >> 24, address >> 16 & 255, address >> 8 & 255, address & 255);
}

}  // namespace linkcpp::lab
