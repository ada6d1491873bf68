// Dialling through relays from a coroutine.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/connection.h"
#include "net/endpoint.h"
#include "net/relay_client.h"
#include "net/transport.h"

namespace linkcpp::net {

/// The control connections of one dialer, made when first needed and kept up from then on; all on the dialer's strand.
class RelayDialling {
 public:
  RelayDialling(Strand strand, std::shared_ptr<const Credentials> credentials, LinkKnobs knobs);

  /// The same addresses, those of the nearest relay first; asks relays that were not asked yet, which takes a moment.
  boost::asio::awaitable<std::vector<Address>> nearest_first(std::vector<Address> addresses);
  /// One attempt. An address without a node's key means the backbone of the join token. Errors as Handshake's, and the relay's.
  boost::asio::awaitable<Result<std::shared_ptr<Connection>>> dial(Address address, std::shared_ptr<const TlsContext> tls);
  /// Ends the attempt that runs, and all control connections.
  void stop(const Error& reason);

 private:
  std::shared_ptr<RelayClient> client_of(const Address& address);

  Strand strand_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  std::map<std::string, std::shared_ptr<RelayClient>> clients_;
  std::shared_ptr<Attempt> attempt_;
  bool stopped_ = false;
};

}  // namespace linkcpp::net
