// From host names to addresses, with a deadline.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <vector>

#include "base/error.h"
#include "net/endpoint.h"
#include "net/socket.h"

namespace linkcpp::net {

/// One question at a time. On the strand.
class NameResolver {
 public:
  explicit NameResolver(Strand strand) : resolver_(strand), timer_(strand) {}

  /// Errors say that the host is not known, or that the name server does not answer. Must live until it has answered.
  boost::asio::awaitable<Result<std::vector<Tcp::endpoint>>> resolve(Endpoint where, std::chrono::milliseconds limit);
  /// The question under way fails.
  void cancel() { resolver_.cancel(); }

 private:
  boost::asio::ip::basic_resolver<Tcp, Strand> resolver_;
  boost::asio::steady_timer timer_;
};

}  // namespace linkcpp::net
