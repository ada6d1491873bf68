// Trying one way to an address: from TCP's handshake to an authenticated link and its round trip.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <string>

#include "doctor/examination.h"
#include "net/endpoint.h"
#include "net/transport.h"

namespace linkcpp::doctor {

/// Dials with the node's real identity, as a worker or backbone would, and lets go again before either has said what it has. The context
/// must be run by one thread.
boost::asio::awaitable<Way> try_way(boost::asio::io_context& context, net::Address address, net::Credentials credentials,
                                    std::chrono::milliseconds limit);

/// How long TCP's handshake takes; the first of the host's addresses that answers.
boost::asio::awaitable<Result<Nanoseconds>> time_tcp(boost::asio::io_context& context, net::Endpoint where,
                                                     std::chrono::milliseconds limit);

}  // namespace linkcpp::doctor
