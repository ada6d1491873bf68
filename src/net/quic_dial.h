// Dialling over QUIC from a coroutine.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "net/connection.h"
#include "net/quic_hub.h"
#include "net/transport.h"

namespace linkcpp::net {

/// The UDP sockets of one dialer: one for each address family, opened when first needed, all on the dialer's strand. Tickets are kept as
/// long as it lives, so that dialling again resumes.
class QuicDialling {
 public:
  QuicDialling(Strand strand, std::shared_ptr<const Credentials> credentials, LinkKnobs knobs);

  /// One attempt, ended after `patience`; on the strand. Errors as Handshake's.
  boost::asio::awaitable<Result<std::shared_ptr<Connection>>> dial(Udp::endpoint to, std::chrono::milliseconds patience);
  /// Ends the attempt that runs.
  void abort(const Error& reason);

 private:
  Strand strand_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  std::map<bool, std::shared_ptr<QuicEndpoint>> endpoints_;  ///< by "is IPv6"
  std::weak_ptr<QuicConnection> attempt_;
};

}  // namespace linkcpp::net
