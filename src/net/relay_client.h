// A node's side of a relay: the control connection, kept up, and data connections.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "base/error.h"
#include "net/attempt.h"
#include "net/endpoint.h"
#include "net/name_resolver.h"
#include "net/relay_channel.h"
#include "net/relay_messages.h"
#include "net/transport.h"

namespace linkcpp::net {

/// Connects to a relay as `address` names it, says who this node is, and does so again whenever the connection is lost, with backoff and
/// jitter. On one strand.
class RelayClient : public std::enable_shared_from_this<RelayClient> {
 public:
  struct Hooks {
    std::function<void(const RelayIntroduce&)> on_called;  ///< somebody connects to this node; if set, the node can be connected to
    std::function<void(const Error&)> on_trouble;          ///< each attempt that failed, each connection that was lost
  };
  /// `address` is a relay's (its `key` is not looked at).
  RelayClient(Strand strand, Address address, std::shared_ptr<const Credentials> credentials, LinkKnobs knobs, Hooks hooks);

  void start();
  /// Ends everything; no hook runs any more.
  void stop();

  [[nodiscard]] bool up() const { return channel_ != nullptr; }
  /// Whether an attempt has ended, either way.
  [[nodiscard]] bool tried() const { return tried_; }
  /// The least round trip so far; none before the first.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> round_trip() const { return round_trip_; }
  /// Where the relay is now.
  [[nodiscard]] Tcp::endpoint endpoint() const { return endpoint_; }
  [[nodiscard]] const Address& address() const { return address_; }

  /// Asks for a connection to a node. Waits for the relay if it must, not longer than a handshake may take.
  boost::asio::awaitable<Result<RelayIntroduce>> connect(PeerKey to);

 private:
  using Clock = std::chrono::steady_clock;
  struct Request {
    Request(const Strand& strand, const PeerKey& node) : to(node), timer(strand) {}
    PeerKey to;
    boost::asio::steady_timer timer;
    std::optional<Result<RelayIntroduce>> outcome;
  };

  boost::asio::awaitable<void> run();
  boost::asio::awaitable<Error> stay_connected();
  boost::asio::awaitable<Result<std::shared_ptr<RelayChannel>>> come_in();
  boost::asio::awaitable<Result<std::shared_ptr<RelayChannel>>> try_one(Tcp::endpoint endpoint);
  boost::asio::awaitable<Result<>> introduce_self(RelayChannel& channel);
  Result<> check_key(const PeerKey& key);
  Result<RelayMessage> first_words(RelayChannel& channel) const;
  std::optional<Error> handle(const RelayMessage& message);
  boost::asio::awaitable<void> keep_warm(std::shared_ptr<RelayChannel> channel);
  void settle(std::uint32_t request, Result<RelayIntroduce> outcome);
  void settle_all(const Error& error);
  void trouble(const Error& error);

  Strand strand_;
  const Address address_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  Hooks hooks_;
  std::shared_ptr<const TlsContext> tls_;
  NameResolver resolver_;
  boost::asio::steady_timer pause_;
  std::minstd_rand random_;
  std::shared_ptr<Attempt> attempt_;
  std::shared_ptr<RelayChannel> channel_;  ///< welcome there
  Tcp::endpoint endpoint_;
  std::optional<PeerKey> known_key_;  ///< of the relay: pinned, or learned
  std::uint32_t last_request_ = 0;
  std::map<std::uint32_t, std::shared_ptr<Request>> requests_;
  std::optional<std::chrono::nanoseconds> round_trip_;
  Clock::time_point heard_;
  std::uint64_t ping_stamp_ = 0;
  bool tried_ = false, stopped_ = false;
};

/// Opens the data connection that a ticket is for. On success the attempt has the pipe, behind which is the other node.
boost::asio::awaitable<Result<>> open_relay_data(Attempt& attempt, const Address& relay, Tcp::endpoint endpoint, const RelayTicket& ticket,
                                                 const LinkKnobs& knobs);

}  // namespace linkcpp::net
