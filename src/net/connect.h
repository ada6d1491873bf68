// From the address of a peer to a pipe that leads there.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "base/error.h"
#include "net/attempt.h"
#include "net/endpoint.h"
#include "net/transport.h"

namespace linkcpp::net {

/// Connects to `endpoint`, where `address` resolved to, and goes through the outer layers that the address names (a web server's TLS, a
/// WebSocket). On success the attempt has the pipe. The attempt's deadline must run.
boost::asio::awaitable<Result<>> connect_pipe(Attempt& attempt, const Address& address, boost::asio::ip::tcp::endpoint endpoint,
                                              const LinkKnobs& knobs);

}  // namespace linkcpp::net
