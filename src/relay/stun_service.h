// Tells whoever asks by UDP from which address the question came.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <map>
#include <memory>

#include "net/udp_socket.h"
#include "relay/bucket.h"
#include "relay/counters.h"

namespace linkcpp::relay {

/// Answers STUN binding requests (net/stun.h) and nothing else, and no address more often than it may ask. On one strand.
class StunService : public std::enable_shared_from_this<StunService> {
 public:
  StunService(std::shared_ptr<net::UdpSocket> socket, std::shared_ptr<Counters> counters)
      : socket_(std::move(socket)), counters_(std::move(counters)) {}
  void start();
  void stop();

 private:
  void answer(const net::UdpSocket::Datagram& datagram);
  bool may_ask(const boost::asio::ip::address& address);

  std::shared_ptr<net::UdpSocket> socket_;
  std::shared_ptr<Counters> counters_;
  std::map<boost::asio::ip::address, Bucket> askers_;
  bool stopped_ = false;
};

}  // namespace linkcpp::relay
