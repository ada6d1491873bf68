// From HTTP to WebSocket (RFC 6455, section 4), on both sides.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "base/error.h"
#include "net/attempt.h"
#include "net/endpoint.h"
#include "net/transport.h"

namespace linkcpp::net {

/// Whether a connection whose first byte is this speaks HTTP: a method's first letter. Our TLS begins with 22.
constexpr bool begins_http(std::byte first) { return first >= std::byte{'A'} && first <= std::byte{'Z'}; }

/// Asks the server behind the attempt's pipe for a WebSocket, and puts that around the pipe. Says what the server answered instead.
boost::asio::awaitable<Result<>> open_websocket(Attempt& attempt, const Address& address, const LinkKnobs& knobs);

/// Reads a request, and puts a WebSocket around the attempt's pipe if one is asked for. Anything else gets a short answer that says what
/// this port is (`what_this_is`: a sentence with its line break), and is an error.
boost::asio::awaitable<Result<>> accept_websocket(Attempt& attempt, const char* what_this_is);

}  // namespace linkcpp::net
