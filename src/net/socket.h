// The socket type of links, and its options.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <string>

#include "net/endpoint.h"

namespace linkcpp::net {

/// Everything of one connection runs on one strand, because workers run their io_context on several threads.
using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
using Tcp = boost::asio::ip::tcp;
using Socket = boost::asio::basic_stream_socket<Tcp, Strand>;

/// Sets the congestion control of a socket where the kernel permits it; a listening socket hands it on to those it accepts.
void set_congestion_control(int fd, const std::string& name);
/// Sends small frames at once.
void set_no_delay(int fd);
/// "203.0.113.7:41234", "[2001:db8::1]:7101".
template <class Protocol>
std::string to_text(const boost::asio::ip::basic_endpoint<Protocol>& endpoint) {
  return Endpoint{endpoint.address().to_string(), endpoint.port()}.text();
}

}  // namespace linkcpp::net
