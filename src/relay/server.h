// A relay: connects nodes of a swarm that cannot reach each other, without being able to read what they say (docs/relay.md).
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "net/identity.h"
#include "relay/access.h"
#include "relay/broker.h"
#include "relay/counters.h"

namespace linkcpp::relay {

struct ServerOptions {
  std::string listen = "0.0.0.0:7103";  ///< TCP for nodes, and UDP of the same number for STUN
  Access access;
  Limits limits;
  double rate_mbit = 0;                        ///< that one node may send through the relay; 0: unlimited
  std::size_t max_handshakes = 256;            ///< connections that have not shown whose they are
  std::size_t max_handshakes_of_address = 32;  ///< ... from one IPv4 address or one /64 of IPv6
  std::chrono::milliseconds handshake_deadline{10'000};
  std::chrono::milliseconds control_silence{30'000};  ///< a node that says nothing for so long is gone; it pings every few seconds
  std::chrono::milliseconds link_silence{120'000};    ///< so for links
  std::string congestion_control = "cubic";
};

/// Something that an operator may want to read. The texts are plain.
struct Event {
  enum class What { node_came, node_left, refused, link_began, link_ended };
  What what = What::refused;
  std::string endpoint;  ///< of the connection; empty for links
  std::string who;       ///< short names
  std::string why;
};

/// Runs on a strand of `context`. Destroying it ends everything; its sockets close as soon as the context runs again. The
/// process must ignore SIGPIPE.
class Server {
 public:
  using OnEvent = std::function<void(const Event&)>;
  static Result<std::unique_ptr<Server>> open(boost::asio::io_context& context, net::Identity identity, ServerOptions options,
                                              OnEvent on_event);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// "host:port" with the real port.
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] const net::PeerKey& key() const { return key_; }
  /// Calls back with the counters of this moment, on the server's strand.
  void ask_counters(std::function<void(const Counters&)> then) const;

 private:
  class State;
  Server(std::shared_ptr<State> state, std::string address, net::PeerKey key);
  std::shared_ptr<State> state_;
  std::string address_;
  net::PeerKey key_;
};

}  // namespace linkcpp::relay
