#include "net/relay_listener.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <set>
#include <utility>

#include "net/attempt.h"
#include "net/callback_gate.h"
#include "net/connection.h"
#include "net/coroutine.h"
#include "net/handshake.h"
#include "net/relay_client.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

/// The part that asynchronous work shares. On one strand, except the handshakes, which have their own.
class RelayListening : public std::enable_shared_from_this<RelayListening> {
 public:
  RelayListening(asio::io_context& context, Address address, std::shared_ptr<const TlsContext> tls, Credentials credentials,
                 LinkKnobs knobs, Listener::OnLink on_link, Listener::OnRefused on_refused)
      : context_(context),
        strand_(asio::make_strand(context)),
        address_(std::move(address)),
        tls_(std::move(tls)),
        credentials_(std::make_shared<const Credentials>(std::move(credentials))),
        knobs_(std::move(knobs)),
        on_link_(std::move(on_link)),
        on_refused_(std::move(on_refused)) {}

  void start() {
    const auto weak = weak_from_this();
    client_ = std::make_shared<RelayClient>(strand_, address_, credentials_, knobs_,
                                            RelayClient::Hooks{.on_called =
                                                                   [weak](const RelayIntroduce& called) {
                                                                     if (const auto self = weak.lock()) self->admit(called);
                                                                   },
                                                               .on_trouble =
                                                                   [weak](const Error& error) {
                                                                     if (const auto self = weak.lock())
                                                                       self->refused(self->address_.text(), error);
                                                                   }});
    asio::post(strand_, [client = client_] { client->start(); });
  }

  void stop() {
    gate_.close();
    asio::post(strand_, [self = shared_from_this()] {
      self->client_->stop();
      for (const auto& attempt : self->guests_) {
        asio::post(attempt->strand(), [attempt] { attempt->abort({ErrorKind::unavailable, "this node stopped listening"}); });
      }
    });
  }

 private:
  void admit(const RelayIntroduce& called) {
    const std::string endpoint = std::format("{} by {}", short_name(called.peer), address_.text());
    if (guests_.size() >= knobs_.max_handshakes) {
      return refused(endpoint, {ErrorKind::unavailable, std::format("{} connections are shaking hands already", guests_.size())});
    }
    auto attempt = std::make_shared<Attempt>(asio::make_strand(context_), knobs_.handshake_deadline);
    guests_.insert(attempt);
    asio::co_spawn(
        attempt->strand(),
        [self = shared_from_this(), attempt, endpoint, ticket = called.ticket, at = client_->endpoint()] {
          return self->receive(attempt, endpoint, ticket, at);
        },
        asio::detached);
  }

  asio::awaitable<void> receive(std::shared_ptr<Attempt> attempt, std::string endpoint, RelayTicket ticket, Tcp::endpoint at) {
    attempt->start_deadline();
    auto connection = co_await shake_hands(attempt, ticket, at);
    attempt->end_deadline();
    attempt->close();
    if (connection) {
      gate_.run([&] { on_link_(make_link(std::move(*connection))); });
    } else {
      refused(endpoint, connection.error());
    }
    asio::post(strand_, [self = shared_from_this(), attempt] { self->guests_.erase(attempt); });
  }

  asio::awaitable<Result<std::shared_ptr<Connection>>> shake_hands(std::shared_ptr<Attempt> attempt, RelayTicket ticket, Tcp::endpoint at) {
    if (auto opened = co_await open_relay_data(*attempt, address_, at, ticket, knobs_); !opened) co_return pass(opened);
    Handshake handshake(attempt, tls_, credentials_, knobs_);
    co_return co_await handshake.run(TlsSide::server);
  }

  void refused(const std::string& endpoint, const Error& error) {
    gate_.run([&] {
      if (on_refused_) on_refused_(endpoint, error);
    });
  }

  asio::io_context& context_;
  Strand strand_;
  const Address address_;
  std::shared_ptr<const TlsContext> tls_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  Listener::OnLink on_link_;
  Listener::OnRefused on_refused_;
  CallbackGate gate_;
  std::shared_ptr<RelayClient> client_;
  std::set<std::shared_ptr<Attempt>> guests_;
};

class RelayListener final : public Listener {
 public:
  RelayListener(std::shared_ptr<RelayListening> listening, std::string address)
      : listening_(std::move(listening)), address_(std::move(address)) {}
  ~RelayListener() override { listening_->stop(); }
  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] std::shared_ptr<QuicEndpoint> quic() const override { return nullptr; }

 private:
  std::shared_ptr<RelayListening> listening_;
  std::string address_;
};

}  // namespace

Result<std::unique_ptr<Listener>> open_relay_listener(asio::io_context& context, const Address& address, Credentials credentials,
                                                      LinkKnobs knobs, Listener::OnLink on_link, Listener::OnRefused on_refused) {
  if (address.key) {
    return fail(ErrorKind::invalid_input,
                "cannot listen on {}: who listens at a relay names no node; a relay's own key is written as relay://KEY@host:port",
                address.text());
  }
  auto tls = TlsContext::create(credentials.identity, credentials.expected_peer);
  if (!tls) return pass(tls);
  Address reached = address;
  reached.key = credentials.identity.key();
  auto listening = std::make_shared<RelayListening>(context, address, std::move(*tls), std::move(credentials), std::move(knobs),
                                                    std::move(on_link), std::move(on_refused));
  listening->start();
  return std::make_unique<RelayListener>(std::move(listening), reached.text());
}

}  // namespace linkcpp::net
