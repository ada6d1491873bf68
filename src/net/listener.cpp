#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <utility>

#include "net/attempt.h"
#include "net/callback_gate.h"
#include "net/connection.h"
#include "net/coroutine.h"
#include "net/endpoint.h"
#include "net/handshake.h"
#include "net/pipe_io.h"
#include "net/quic_hub.h"
#include "net/relay_listener.h"
#include "net/tcp_pipe.h"
#include "net/transport.h"
#include "net/websocket_upgrade.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<Tcp, Strand>;
using Clock = std::chrono::steady_clock;

constexpr auto accept_pause = std::chrono::milliseconds(100);
constexpr const char* what_this_is =
    "This is a node of a linkcpp swarm. Other nodes connect here, by WebSocket or by TLS; there is nothing to see in a browser.\n";
/// When all places are taken, whoever has been shaking hands for so long must make room: honest peers are faster.
constexpr std::chrono::milliseconds handshake_patience{1000};

/// The part that asynchronous work shares. All of it runs on the acceptor's strand, except the handshakes, which have their own.
class Acceptance : public std::enable_shared_from_this<Acceptance> {
 public:
  Acceptance(asio::io_context& context, Acceptor acceptor, std::shared_ptr<const TlsContext> tls, Credentials credentials, LinkKnobs knobs,
             Listener::OnLink on_link, Listener::OnRefused on_refused)
      : context_(context),
        acceptor_(std::move(acceptor)),
        wake_(acceptor_.get_executor()),
        tls_(std::move(tls)),
        credentials_(std::make_shared<const Credentials>(std::move(credentials))),
        knobs_(std::move(knobs)),
        on_link_(std::move(on_link)),
        on_refused_(std::move(on_refused)) {
    knobs_.max_handshakes = std::max<std::size_t>(knobs_.max_handshakes, 1);
  }

  void start() {
    const auto self = shared_from_this();
    asio::co_spawn(acceptor_.get_executor(), [self] { return self->accept_all(); }, asio::detached);
  }

  void stop() {
    gate_.close();
    asio::post(acceptor_.get_executor(), [self = shared_from_this()] {
      self->stopped_ = true;
      error_code ignored;
      self->acceptor_.close(ignored);
      self->wake_.cancel();
      for (const Guest& guest : self->guests_) abort(guest, {ErrorKind::unavailable, "this node stopped listening"});
    });
  }

  void linked(std::shared_ptr<Connection> connection) {
    gate_.run([&] { on_link_(make_link(std::move(connection))); });
  }

  void refused(const std::string& endpoint, const Error& error) {
    gate_.run([&] {
      if (on_refused_) on_refused_(endpoint, error);
    });
  }

 private:
  /// Somebody who has connected, and not yet shown who it is.
  struct Guest {
    std::shared_ptr<Attempt> attempt;
    Clock::time_point begun;
    bool evicted = false;  ///< told to end; its coroutine gives the place back
  };
  using Place = std::list<Guest>::iterator;

  static void abort(const Guest& guest, Error reason) {
    asio::post(guest.attempt->strand(),
               [attempt = guest.attempt, reason = std::move(reason)]() mutable { attempt->abort(std::move(reason)); });
  }

  asio::awaitable<void> accept_all() {
    while (!stopped_) {
      co_await wait_for_place();
      if (stopped_) break;
      auto [error, socket] = co_await acceptor_.async_accept(asio::make_strand(context_), as_values);
      if (stopped_) break;
      if (!error) {
        admit(std::move(socket));
        continue;
      }
      if (error == asio::error::connection_aborted) continue;
      // Out of file descriptors, usually: it may pass.
      refused("(not yet accepted)", {ErrorKind::io, std::format("cannot accept connections: {}", error.message())});
      wake_.expires_after(accept_pause);
      co_await wake_.async_wait(as_values);
    }
  }

  asio::awaitable<void> wait_for_place() {
    const auto patience = std::min(handshake_patience, knobs_.handshake_deadline);
    while (!stopped_ && guests_.size() >= knobs_.max_handshakes) {
      Guest& oldest = guests_.front();
      if (!oldest.evicted && Clock::now() >= oldest.begun + patience) {
        oldest.evicted = true;
        abort(oldest, {ErrorKind::unavailable,
                       std::format("{} connections were shaking hands, and this one was the slowest", knobs_.max_handshakes)});
      }
      wake_.expires_after(accept_pause);
      co_await wake_.async_wait(as_values);
    }
  }

  void admit(Socket socket) {
    error_code error;
    const auto endpoint = socket.remote_endpoint(error);
    if (error) return;  // gone already
    auto attempt = std::make_shared<Attempt>(socket.get_executor(), knobs_.handshake_deadline);
    attempt->set_pipe(std::make_unique<TcpPipe>(std::move(socket), to_text(endpoint)));
    const Place place = guests_.insert(guests_.end(), Guest{attempt, Clock::now()});
    const auto self = shared_from_this();
    asio::co_spawn(attempt->strand(), [self, attempt, place] { return self->receive(attempt, place); }, asio::detached);
  }

  asio::awaitable<void> receive(std::shared_ptr<Attempt> attempt, Place place) {
    const std::string endpoint = attempt->pipe().endpoint();
    attempt->start_deadline();
    auto connection = co_await shake_hands(attempt);
    attempt->end_deadline();
    attempt->close();
    if (connection) {
      linked(std::move(*connection));
    } else if (!attempt->silent()) {
      refused(endpoint, connection.error());
    }
    asio::post(acceptor_.get_executor(), [self = shared_from_this(), place] {
      self->guests_.erase(place);
      self->wake_.cancel();
    });
  }

  asio::awaitable<Result<std::shared_ptr<Connection>>> shake_hands(std::shared_ptr<Attempt> attempt) {
    attempt->enter("the TLS handshake");
    const auto first = co_await peek(static_cast<TcpPipe&>(attempt->pipe()));
    if (attempt->aborted()) co_return std::unexpected(*attempt->aborted());
    if (!first) attempt->set_silent();  // it may have only measured the way, and chosen QUIC
    if (first && begins_http(*first)) {
      if (auto accepted = co_await accept_websocket(*attempt, what_this_is); !accepted) co_return pass(accepted);
    }
    Handshake handshake(attempt, tls_, credentials_, knobs_);
    co_return co_await handshake.run(TlsSide::server);
  }

  /// The first byte that the peer sent, left where it is. None if the connection ended: reading says how.
  static asio::awaitable<std::optional<std::byte>> peek(TcpPipe& pipe) {
    co_await pipe.socket().async_wait(Socket::wait_read, as_values);
    std::byte first{};
    if (::recv(pipe.socket().native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) co_return std::nullopt;
    co_return first;
  }

  asio::io_context& context_;
  Acceptor acceptor_;
  asio::steady_timer wake_;
  std::shared_ptr<const TlsContext> tls_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  Listener::OnLink on_link_;
  Listener::OnRefused on_refused_;
  CallbackGate gate_;
  std::list<Guest> guests_;
  bool stopped_ = false;
};

class BoundListener final : public Listener {
 public:
  BoundListener(std::shared_ptr<Acceptance> acceptance, std::shared_ptr<QuicEndpoint> quic, std::string address)
      : acceptance_(std::move(acceptance)), quic_(std::move(quic)), address_(std::move(address)) {}
  ~BoundListener() override {
    acceptance_->stop();
    if (quic_) asio::post(quic_->hub()->strand(), [quic = quic_] { quic->hub()->stop_accepting(); });
  }
  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] std::shared_ptr<QuicEndpoint> quic() const override { return quic_; }

 private:
  std::shared_ptr<Acceptance> acceptance_;
  std::shared_ptr<QuicEndpoint> quic_;
  std::string address_;
};

/// Both transports call back through one gate.
void accept_quic(const std::shared_ptr<QuicEndpoint>& quic, const std::shared_ptr<Acceptance>& acceptance) {
  asio::post(quic->hub()->strand(), [hub = quic->hub(), weak = std::weak_ptr(acceptance)] {
    hub->accept(
        [weak](std::shared_ptr<Connection> connection) {
          if (const auto self = weak.lock()) self->linked(std::move(connection));
        },
        [weak](const std::string& endpoint, const Error& error) {
          if (const auto self = weak.lock()) self->refused(endpoint, error);
        });
  });
}

/// A port that the system picked for TCP may be taken for UDP: then it picks another.
constexpr int port_tries = 16;

error_code bind_and_listen(Acceptor& acceptor, const Tcp::endpoint& endpoint, const LinkKnobs& knobs) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (error) return error;
  error_code ignored;
  acceptor.set_option(asio::socket_base::reuse_address(true), ignored);
  if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), ignored);
  set_congestion_control(acceptor.native_handle(), knobs.congestion_control);
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(asio::io_context& context, const std::string& address, Credentials credentials,
                                                 LinkKnobs knobs, OnLink on_link, OnRefused on_refused) {
  const auto parsed = parse_address(address);
  if (!parsed) return std::unexpected(parsed.error());
  if (parsed->scheme == Scheme::relay) {
    return open_relay_listener(context, *parsed, std::move(credentials), std::move(knobs), std::move(on_link), std::move(on_refused));
  }
  if (parsed->scheme != Scheme::tcp) {
    return fail(ErrorKind::invalid_input, "cannot listen on {}: give host:port, which serves TLS, WebSocket and QUIC", address);
  }
  const Endpoint* const where = &parsed->endpoint;
  auto tls = TlsContext::create(credentials.identity, credentials.expected_peer);
  if (!tls) return pass(tls);
  error_code error;
  Tcp::resolver resolver(context);
  const auto found = resolver.resolve(where->host, std::to_string(where->port), Tcp::resolver::passive, error);
  if (error) return fail(ErrorKind::invalid_input, "cannot listen on {}: the host is not known: {}", address, error.message());
  Acceptor acceptor(asio::make_strand(context));
  std::shared_ptr<QuicEndpoint> quic;
  for (int tries = where->port == 0 && knobs.quic_listen ? port_tries : 1; tries > 0; --tries) {
    for (const auto& entry : found) {
      acceptor.close(error);
      error = bind_and_listen(acceptor, entry.endpoint(), knobs);
      if (!error) break;
    }
    if (error) return fail(ErrorKind::io, "cannot listen on {}: {}; choose another address or port", address, error.message());
    if (!knobs.quic_listen) break;
    const auto bound = acceptor.local_endpoint(error);
    auto opened = QuicEndpoint::open(asio::make_strand(context), {bound.address(), bound.port()}, credentials, knobs);
    if (opened) quic = std::move(*opened);
    if (quic) break;
    if (tries == 1) return pass(opened);
  }
  std::string bound = to_text(acceptor.local_endpoint(error));
  auto acceptance = std::make_shared<Acceptance>(context, std::move(acceptor), std::move(*tls), std::move(credentials), std::move(knobs),
                                                 std::move(on_link), std::move(on_refused));
  acceptance->start();
  if (quic) accept_quic(quic, acceptance);
  return std::make_unique<BoundListener>(std::move(acceptance), std::move(quic), std::move(bound));
}

}  // namespace linkcpp::net
