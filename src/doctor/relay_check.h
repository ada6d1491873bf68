// Whether a relay is there, and lets this node in.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <optional>

#include "doctor/examination.h"
#include "net/endpoint.h"
#include "net/transport.h"

namespace linkcpp::doctor {

/// Without credentials it only sees whether somebody listens there. The context must be run by one thread.
boost::asio::awaitable<RelayFinding> check_relay(boost::asio::io_context& context, net::Address relay,
                                                 std::optional<net::Credentials> credentials, std::chrono::milliseconds limit);

}  // namespace linkcpp::doctor
