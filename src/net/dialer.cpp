#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <random>
#include <set>
#include <utility>

#include "net/attempt.h"
#include "net/callback_gate.h"
#include "net/connect.h"
#include "net/connection.h"
#include "net/coroutine.h"
#include "net/endpoint.h"
#include "net/handshake.h"
#include "net/name_resolver.h"
#include "net/quic_dial.h"
#include "net/relay_dial.h"
#include "net/socket.h"
#include "net/transport.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

/// Another attempt would meet the same refusal.
bool fatal(ErrorKind kind) { return kind == ErrorKind::unauthorized || kind == ErrorKind::incompatible; }

/// The part that asynchronous work shares; all of it, and its connections, run on one strand.
class Dialling : public std::enable_shared_from_this<Dialling> {
 public:
  Dialling(asio::io_context& context, std::vector<std::string> addresses, Credentials credentials, LinkKnobs knobs, Dialer::OnLink on_link,
           Dialer::OnFailure on_failure)
      : strand_(asio::make_strand(context)),
        resolver_(strand_),
        timer_(strand_),
        addresses_(std::move(addresses)),
        credentials_(std::make_shared<const Credentials>(std::move(credentials))),
        knobs_(std::move(knobs)),
        on_link_(std::move(on_link)),
        on_failure_(std::move(on_failure)),
        quic_(strand_, credentials_, knobs_),
        relays_(strand_, credentials_, knobs_),
        random_(std::random_device{}()) {
    knobs_.backoff_min = std::max(knobs_.backoff_min, std::chrono::milliseconds(1));
    knobs_.backoff_max = std::max(knobs_.backoff_max, knobs_.backoff_min);
  }

  void start() {
    const auto self = shared_from_this();
    asio::co_spawn(strand_, [self] { return self->dial_for_ever(); }, asio::detached);
  }

  void stop() {
    gate_.close();
    asio::post(strand_, [self = shared_from_this()] {
      self->stopped_ = true;
      self->resolver_.cancel();
      self->timer_.cancel();
      if (self->attempt_) self->attempt_->abort({ErrorKind::unavailable, "this node stopped dialling"});
      self->quic_.abort({ErrorKind::unavailable, "this node stopped dialling"});
      self->relays_.stop({ErrorKind::unavailable, "this node stopped dialling"});
    });
  }

 private:
  asio::awaitable<void> dial_for_ever() {
    auto tls = TlsContext::create(credentials_->identity, credentials_->expected_peer);
    if (!tls) co_return failed(tls.error());
    tls_ = std::move(*tls);
    if (addresses_.empty()) co_return failed({ErrorKind::invalid_input, "there is no address to dial; give one as host:port or ws://host"});
    auto pause = knobs_.backoff_min;
    while (!stopped_) {
      worst_ = ErrorKind::unavailable;
      if (auto connection = co_await try_all()) {
        const auto up = Clock::now();
        co_await live(std::move(connection));
        // A link that dies young is no reason to hurry: the peer may accept and then refuse for its own reasons.
        if (Clock::now() - up >= knobs_.backoff_max) pause = knobs_.backoff_min;
      }
      if (stopped_) break;
      if (fatal(worst_)) pause = knobs_.backoff_max;
      co_await sleep(jittered(pause));
      pause = std::min(2 * pause, knobs_.backoff_max);
    }
  }

  /// Between half and all of it, so that many nodes do not dial in step.
  Clock::duration jittered(Clock::duration pause) {
    return Clock::duration(std::uniform_int_distribution(pause.count() / 2, pause.count())(random_));
  }

  asio::awaitable<void> sleep(Clock::duration pause) {
    timer_.expires_after(pause);
    co_await timer_.async_wait(as_values);
  }

  asio::awaitable<std::shared_ptr<Connection>> try_all() {
    bool relays_tried = false;
    for (const std::string& address : addresses_) {
      if (stopped_) co_return nullptr;
      auto parsed = parse_address(address);
      if (!parsed) {
        failed(parsed.error());
        continue;
      }
      std::shared_ptr<Connection> connection;
      if (parsed->scheme != Scheme::relay) {
        connection = co_await try_address(address, *parsed);
      } else if (!std::exchange(relays_tried, true)) {
        connection = co_await try_relays();
      }
      if (connection || stopped_) co_return connection;
    }
    co_return nullptr;
  }

  asio::awaitable<std::shared_ptr<Connection>> try_address(const std::string& text, const Address& address) {
    auto endpoints = co_await resolver_.resolve(address.endpoint, knobs_.handshake_deadline);
    if (stopped_) co_return nullptr;
    if (!endpoints) {
      failed({endpoints.error().kind, std::format("cannot join {}: {}", text, endpoints.error().message)});
      co_return nullptr;
    }
    for (const Tcp::endpoint& endpoint : *endpoints) {
      auto connection = co_await try_one(address, endpoint, text.find("://") == std::string::npos);
      if (stopped_) co_return nullptr;
      if (connection) co_return std::move(*connection);
      const std::string numeric = to_text(endpoint);
      failed({connection.error().kind,
              std::format("cannot join {}{}: {}", text, numeric == text ? "" : " (" + numeric + ")", connection.error().message)});
    }
    co_return nullptr;
  }

  /// All relays among the addresses, at the place of the first: of several, the nearest is best.
  asio::awaitable<std::shared_ptr<Connection>> try_relays() {
    std::vector<Address> relays;
    for (const std::string& address : addresses_) {
      if (auto parsed = parse_address(address); parsed && parsed->scheme == Scheme::relay) relays.push_back(std::move(*parsed));
    }
    for (const Address& address : co_await relays_.nearest_first(std::move(relays))) {
      if (stopped_) co_return nullptr;
      auto connection = co_await relays_.dial(address, tls_);
      if (stopped_) co_return nullptr;
      if (connection) co_return std::move(*connection);
      failed({connection.error().kind, std::format("cannot join {}: {}", address.text(), connection.error().message)});
    }
    co_return nullptr;
  }

  asio::awaitable<Result<std::shared_ptr<Connection>>> try_one(const Address& address, Tcp::endpoint endpoint, bool any_transport) {
    if (address.scheme == Scheme::quic) co_return co_await quic_.dial(udp(endpoint), knobs_.handshake_deadline);
    const bool choose = any_transport && address.scheme == Scheme::tcp;
    if (choose && by_quic_.contains(endpoint)) {  // as the last time, which may save round trips
      if (auto connection = co_await quic_.dial(udp(endpoint), quic_patience(knobs_.quic_initial_rtt))) co_return connection;
      by_quic_.erase(endpoint);
      if (stopped_) co_return fail(ErrorKind::unavailable, "this node stopped dialling");
    }
    attempt_ = std::make_shared<Attempt>(strand_, knobs_.handshake_deadline);
    attempt_->start_deadline();
    auto connection = co_await run(attempt_, address, endpoint, choose);
    attempt_->end_deadline();
    attempt_->close();
    attempt_.reset();
    co_return connection;
  }

  static Udp::endpoint udp(const Tcp::endpoint& endpoint) { return {endpoint.address(), endpoint.port()}; }
  /// How long a peer's QUIC may take where TCP is the other choice.
  std::chrono::milliseconds quic_patience(std::chrono::milliseconds round_trip) const {
    return std::min(knobs_.handshake_deadline, 4 * round_trip + std::chrono::milliseconds(500));
  }

  /// A busy machine can make the way to itself look long.
  bool is_far(const Tcp::endpoint& endpoint, std::chrono::milliseconds round_trip) const {
    return round_trip >= knobs_.quic_above && (!endpoint.address().is_loopback() || knobs_.quic_above.count() == 0);
  }

  /// `choose`: over a long way QUIC is better, if it passes: it needs fewer round trips to begin with, and loss holds up less. How long the
  /// way is, TCP's own handshake has shown by then.
  asio::awaitable<Result<std::shared_ptr<Connection>>> run(std::shared_ptr<Attempt> attempt, const Address& address, Tcp::endpoint endpoint,
                                                           bool choose) {
    const auto begun = Clock::now();
    if (auto connected = co_await connect_pipe(*attempt, address, endpoint, knobs_); !connected) co_return pass(connected);
    const auto round_trip = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
    if (choose && is_far(endpoint, round_trip)) {
      if (auto connection = co_await quic_.dial(udp(endpoint), quic_patience(round_trip))) {
        by_quic_.insert(endpoint);
        co_return connection;
      }
      if (attempt->aborted()) co_return std::unexpected(*attempt->aborted());
    }
    Handshake handshake(attempt, tls_, credentials_, knobs_);
    co_return co_await handshake.run(TlsSide::client);
  }

  /// Hands the link out and waits until it has ended.
  asio::awaitable<void> live(std::shared_ptr<Connection> connection) {
    const auto ended = std::make_shared<bool>(false);
    connection->when_finished([ended, weak = weak_from_this()] {
      *ended = true;
      if (auto self = weak.lock()) self->timer_.cancel();
    });
    gate_.run([&] { on_link_(make_link(std::move(connection))); });
    connection.reset();
    while (!*ended && !stopped_) {
      timer_.expires_at(Clock::time_point::max());
      co_await timer_.async_wait(as_values);
    }
  }

  void failed(const Error& error) {
    if (worst_ != ErrorKind::unauthorized) worst_ = fatal(error.kind) ? error.kind : worst_;
    gate_.run([&] {
      if (on_failure_) on_failure_(error);
    });
  }

  Strand strand_;
  NameResolver resolver_;
  asio::steady_timer timer_;
  std::vector<std::string> addresses_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  Dialer::OnLink on_link_;
  Dialer::OnFailure on_failure_;
  CallbackGate gate_;
  std::shared_ptr<const TlsContext> tls_;
  std::shared_ptr<Attempt> attempt_;  ///< in progress
  QuicDialling quic_;
  RelayDialling relays_;
  std::set<Tcp::endpoint> by_quic_;  ///< where the choice fell on QUIC
  std::minstd_rand random_;
  ErrorKind worst_ = ErrorKind::unavailable;  ///< of this round
  bool stopped_ = false;
};

class TcpDialer final : public Dialer {
 public:
  explicit TcpDialer(std::shared_ptr<Dialling> dialling) : dialling_(std::move(dialling)) {}
  ~TcpDialer() override { dialling_->stop(); }

 private:
  std::shared_ptr<Dialling> dialling_;
};

}  // namespace

std::unique_ptr<Dialer> Dialer::start(asio::io_context& context, std::vector<std::string> addresses, Credentials credentials,
                                      LinkKnobs knobs, OnLink on_link, OnFailure on_failure) {
  auto dialling = std::make_shared<Dialling>(context, std::move(addresses), std::move(credentials), std::move(knobs), std::move(on_link),
                                             std::move(on_failure));
  dialling->start();
  return std::make_unique<TcpDialer>(std::move(dialling));
}

}  // namespace linkcpp::net
