// STUN (RFC 8489) as far as address discovery needs it: the binding request and its answer. Pure.
#pragma once

#include <array>
#include <boost/asio/ip/udp.hpp>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::net {

/// Chosen at random by whoever asks; an answer without it is not one.
using StunId = std::array<std::uint8_t, 12>;

/// Whether a datagram looks like STUN at all: the first two bits are zero and the magic cookie is there (RFC 8489, 5).
bool is_stun(ByteSpan datagram);

/// A binding request. 20 bytes.
Bytes make_stun_request(const StunId& id);

/// The id of a binding request, none for anything else. Attributes that demand understanding, of which none is known here, make a request
/// none.
std::optional<StunId> parse_stun_request(ByteSpan datagram);

/// The answer: "your request came from this address". 32 bytes for IPv4, 44 for IPv6: at most 2.2 times the request.
Bytes make_stun_answer(const StunId& id, const boost::asio::ip::udp::endpoint& from);

/// The address in an answer to the request with this id. `invalid_input` for everything else.
Result<boost::asio::ip::udp::endpoint> parse_stun_answer(ByteSpan datagram, const StunId& id);

}  // namespace linkcpp::net
