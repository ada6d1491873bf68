#include "relay/admin.h"

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <set>
#include <utility>

#include "net/attempt.h"
#include "net/endpoint.h"
#include "net/pipe_io.h"
#include "net/tcp_pipe.h"

namespace linkcpp::relay {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using net::as_values;
using net::Attempt;
using net::Tcp;
using AdminAcceptor = asio::basic_socket_acceptor<Tcp, net::Strand>;

constexpr std::size_t max_visitors = 16;
constexpr std::size_t max_request = 8192;
constexpr auto visit_deadline = std::chrono::seconds(5);

std::string answer_with(const char* status, const std::string& body) {
  return std::format("HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     body.size(), body);
}

}  // namespace

class Admin::State : public std::enable_shared_from_this<Admin::State> {
 public:
  State(AdminAcceptor acceptor, AskText ask) : acceptor_(std::move(acceptor)), strand_(acceptor_.get_executor()), ask_(std::move(ask)) {}

  void start() {
    asio::co_spawn(strand_, [self = shared_from_this()] { return self->accept_all(); }, asio::detached);
  }
  void stop() {
    asio::post(strand_, [self = shared_from_this()] {
      self->stopped_ = true;
      error_code ignored;
      self->acceptor_.close(ignored);
      for (const auto& visitor : self->visitors_) visitor->close();
    });
  }

 private:
  asio::awaitable<void> accept_all() {
    while (!stopped_) {
      auto [error, socket] = co_await acceptor_.async_accept(as_values);
      if (stopped_) co_return;
      if (error) {  // out of file descriptors, usually: it may pass
        asio::steady_timer pause(strand_, std::chrono::milliseconds(100));
        co_await pause.async_wait(as_values);
        continue;
      }
      if (visitors_.size() >= max_visitors) continue;
      auto visitor = std::make_shared<Attempt>(strand_, visit_deadline);
      visitor->set_pipe(std::make_unique<net::TcpPipe>(std::move(socket), ""));
      visitors_.insert(visitor);
      asio::co_spawn(strand_, [self = shared_from_this(), visitor] { return self->serve(visitor); }, asio::detached);
    }
  }

  asio::awaitable<void> serve(std::shared_ptr<Attempt> visitor) {
    visitor->start_deadline();
    std::string request;
    std::array<std::byte, 1024> piece;
    while (!request.contains("\r\n\r\n") && request.size() < max_request) {
      const auto got = co_await net::read_some(visitor->pipe(), piece);
      if (!got || *got == 0) break;
      request.append(reinterpret_cast<const char*>(piece.data()), *got);
    }
    if (request.contains("\r\n\r\n")) {
      const std::string answer = co_await answer_to(request);
      if (co_await net::write_all(visitor->pipe(), std::as_bytes(std::span(answer)))) visitor->pipe().shutdown_send();
      while (true) {
        const auto got = co_await net::read_some(visitor->pipe(), piece);
        if (!got || *got == 0) break;
      }
    }
    visitor->end_deadline();
    visitor->close();
    visitors_.erase(visitor);
  }

  asio::awaitable<std::string> answer_to(const std::string& request) {
    const auto asks = [&request](const char* path) { return request.starts_with(std::format("GET {} HTTP/1.", path)); };
    if (asks("/health")) co_return answer_with("200 OK", "ok\n");
    if (!asks("/metrics")) co_return answer_with("404 Not Found", "GET /metrics or /health\n");
    struct Wait {
      asio::steady_timer timer;
      std::optional<std::string> text;
    };
    const auto wait = std::make_shared<Wait>(Wait{asio::steady_timer(strand_, visit_deadline), std::nullopt});
    ask_([wait, strand = strand_](std::string text) {
      asio::post(strand, [wait, text = std::move(text)]() mutable {
        wait->text = std::move(text);
        wait->timer.cancel();
      });
    });
    if (!wait->text) co_await wait->timer.async_wait(as_values);
    if (!wait->text) co_return answer_with("503 Service Unavailable", "the relay does not answer\n");
    co_return answer_with("200 OK", *wait->text);
  }

  AdminAcceptor acceptor_;
  net::Strand strand_;
  AskText ask_;
  std::set<std::shared_ptr<Attempt>> visitors_;
  bool stopped_ = false;
};

Admin::Admin(std::shared_ptr<State> state, std::string address) : state_(std::move(state)), address_(std::move(address)) {}

Admin::~Admin() { state_->stop(); }

Result<std::unique_ptr<Admin>> Admin::open(asio::io_context& context, const std::string& address, AskText ask) {
  const auto where = net::parse_endpoint(address);
  if (!where) return std::unexpected(where.error());
  error_code error;
  Tcp::resolver resolver(context);
  const auto found = resolver.resolve(where->host, std::to_string(where->port), Tcp::resolver::passive, error);
  AdminAcceptor acceptor(asio::make_strand(context));
  if (!error) acceptor.open(found.begin()->endpoint().protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(found.begin()->endpoint(), error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return fail(ErrorKind::io, "cannot listen on {}: {}; choose another address or port", address, error.message());
  std::string bound = net::to_text(acceptor.local_endpoint(error));
  auto state = std::make_shared<State>(std::move(acceptor), std::move(ask));
  state->start();
  return std::unique_ptr<Admin>(new Admin(std::move(state), std::move(bound)));
}

}  // namespace linkcpp::relay
