// Packets for tests of the lab, and what arrives out of its network.
#pragma once

#include <gtest/gtest.h>

#include "lab/network.h"

namespace linkcpp::lab {

inline void put16(Bytes& bytes, std::size_t at, unsigned value) {
  bytes[at] = static_cast<std::byte>(value >> 8);
  bytes[at + 1] = static_cast<std::byte>(value);
}
inline std::uint16_t get16(const Bytes& bytes, std::size_t at) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(bytes[at]) << 8 | std::to_integer<unsigned>(bytes[at + 1]));
}
/// The Internet checksum (RFC 1071) over a part and a sum to begin with; 0 over sound bytes that contain theirs.
inline std::uint16_t checksum(const Bytes& bytes, std::size_t from, std::uint32_t sum = 0) {
  for (std::size_t i = from; i + 1 < bytes.size(); i += 2) sum += get16(bytes, i);
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}
inline std::uint32_t pseudo_header(const Bytes& packet) {
  std::uint32_t sum = std::to_integer<unsigned>(packet[9]) + static_cast<std::uint32_t>(packet.size() - 20);
  for (std::size_t i = 12; i < 20; i += 2) sum += get16(packet, i);
  return sum;
}

inline Bytes packet_of(Protocol protocol, Endpoint from, Endpoint to, std::size_t payload = 10, unsigned flags = 0x10) {
  const std::size_t head = protocol == Protocol::tcp ? 20 : 8;
  Bytes packet(20 + head + payload);
  packet[0] = std::byte{0x45};
  put16(packet, 2, static_cast<unsigned>(packet.size()));
  packet[8] = std::byte{64};
  packet[9] = static_cast<std::byte>(protocol);
  put16(packet, 12, from.address >> 16), put16(packet, 14, from.address & 0xFFFF);
  put16(packet, 16, to.address >> 16), put16(packet, 18, to.address & 0xFFFF);
  for (std::size_t i = 0; i < payload; ++i) packet[20 + head + i] = static_cast<std::byte>(i * 7 + 1);
  Bytes header(packet.begin(), packet.begin() + 20);
  put16(packet, 10, checksum(header, 0));
  if (protocol == Protocol::icmp) {
    packet[20] = std::byte{8};
    put16(packet, 24, from.port);
    put16(packet, 22, checksum(packet, 20));
    return packet;
  }
  put16(packet, 20, from.port), put16(packet, 22, to.port);
  if (protocol == Protocol::udp) put16(packet, 24, static_cast<unsigned>(packet.size() - 20));
  if (protocol == Protocol::tcp) packet[32] = std::byte{0x50}, packet[33] = static_cast<std::byte>(flags);
  put16(packet, protocol == Protocol::udp ? 26 : 36, checksum(packet, 20, pseudo_header(packet)));
  return packet;
}
inline bool sound(const Bytes& packet) {
  const Bytes header(packet.begin(), packet.begin() + 20);
  const auto protocol = static_cast<Protocol>(packet[9]);
  return checksum(header, 0) == 0 && checksum(packet, 20, protocol == Protocol::icmp ? 0 : pseudo_header(packet)) == 0;
}

/// Without checksums, which nobody on the way looks at.
inline Bytes packet6_of(Protocol protocol, const Endpoint6& from, const Endpoint6& to) {
  Bytes packet(40 + 20);
  packet[0] = std::byte{0x60};
  put16(packet, 4, 20);
  packet[6] = protocol == Protocol::icmp ? std::byte{58} : static_cast<std::byte>(protocol);
  packet[7] = std::byte{64};
  for (std::size_t i = 0; i < 16; ++i)
    packet[8 + i] = static_cast<std::byte>(from.address[i]), packet[24 + i] = static_cast<std::byte>(to.address[i]);
  if (protocol == Protocol::icmp) packet[40] = std::byte{128};
  put16(packet, protocol == Protocol::icmp ? 44 : 40, from.port), put16(packet, protocol == Protocol::icmp ? 46 : 42, to.port);
  return packet;
}

inline Scenario scenario(const std::string& text) {
  auto parsed = parse_scenario(text);
  EXPECT_TRUE(parsed.has_value()) << parsed.error().message;
  return parsed ? *parsed : Scenario{};
}

/// What arrives where and when.
using Arrival = std::tuple<std::size_t, std::int64_t>;
inline std::vector<Arrival> arrivals(Network& network, Time until) {
  std::vector<Arrival> all;
  network.advance(until, [&](std::size_t node, const Bytes& packet, Time due) {
    if (flow_of(packet)) {
      EXPECT_TRUE(sound(packet));
    }
    all.emplace_back(node, due / std::chrono::milliseconds(1));
  });
  return all;
}

}  // namespace linkcpp::lab
