// What kind of NAT stands between this node and the world, from what STUN servers saw. Pure.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/udp.hpp>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace linkcpp::net {

/// How a NAT chooses the outer port of an inner one (RFC 4787, 4.1).
enum class NatKind : std::uint8_t {
  unknown,   ///< nothing was asked, or too little answered
  no_udp,    ///< servers were asked and none answered: UDP is blocked, or none of them is there
  open,      ///< none: servers see an address of this node's own
  cone,      ///< endpoint-independent: all see the same address
  symmetric  ///< address- or port-dependent: each sees another port
};
/// "unknown", "no-udp", "open", "cone", "symmetric".
const char* nat_kind_name(NatKind kind);

/// What one server said to a question from one socket of this node.
struct StunSight {
  boost::asio::ip::udp::endpoint server;
  std::optional<boost::asio::ip::udp::endpoint> seen;  ///< none: no answer
  std::chrono::nanoseconds round_trip{0};
};

struct NatVerdict {
  NatKind kind = NatKind::unknown;
  std::optional<boost::asio::ip::udp::endpoint> outside;  ///< where this node is seen; of several, the first server's
  std::size_t asked = 0, answered = 0;
  bool keeps_port = false;             ///< the outer port is the inner one
  bool carrier_grade = false;          ///< there is (also) a NAT of the provider, on which nobody here can open a port
  std::string why;                     ///< one sentence
  std::string carrier_why;             ///< one sentence if carrier_grade
  std::vector<std::string> not_known;  ///< what the answers do not say, one sentence each
};

/// All sights are of one socket and one family. `own` are addresses of this node, `local_port` the socket's; `router` is the address that
/// the router says to have outside, if it was asked.
NatVerdict judge_nat(std::span<const StunSight> sights, std::span<const boost::asio::ip::address> own, std::uint16_t local_port,
                     const std::optional<boost::asio::ip::address>& router = std::nullopt);

/// Whether addresses mean something in the whole Internet: not private, not a provider's (RFC 6598), not loopback or link-local.
bool is_global(const boost::asio::ip::address& address);
/// 100.64.0.0/10, which providers use behind their own NATs (RFC 6598).
bool is_carrier_shared(const boost::asio::ip::address& address);

/// Whether two nodes can expect to reach each other directly, by hole punching.
enum class DirectChance : std::uint8_t {
  no,      ///< the relay remains
  rarely,  ///< only if the NAT that keeps its mappings lets in every port of an address that it has sent to
  yes,
  unknown
};
DirectChance direct_chance(NatKind one, NatKind other);
/// One sentence.
std::string direct_chance_words(DirectChance chance);

}  // namespace linkcpp::net
