#include "serve/admin.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "net/coroutine.h"

namespace linkcpp::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::ip::tcp;

/// What connections share with the server and may outlive it.
struct Shared {
  AdminServer::Snapshot snapshot;
  AdminKnobs knobs;
  std::size_t connections = 0;
};

http::response<http::string_body> answer(const http::request<http::string_body>& request, const AdminServer::Snapshot& snapshot) {
  http::response<http::string_body> response(http::status::ok, request.version());
  response.keep_alive(request.keep_alive());
  response.set(http::field::server, "linkcpp/" LINKCPP_VERSION);
  response.set(http::field::content_type, "application/json");
  response.set(http::field::cache_control, "no-store");
  const auto target = std::string_view(request.target());
  const bool reads = request.method() == http::verb::get || request.method() == http::verb::head;
  if (target.substr(0, target.find('?')) != "/v1/swarm") {
    response.result(http::status::not_found);
    response.body() = R"({"error":"only /v1/swarm is here"})";
  } else if (!reads) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
    response.body() = R"({"error":"/v1/swarm is read-only: use GET"})";
  } else {
    response.body() = snapshot().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  response.prepare_payload();
  if (request.method() == http::verb::head) response.body().clear();
  return response;
}

awaitable<void> converse(beast::tcp_stream stream, std::shared_ptr<Shared> shared) {
  beast::flat_buffer buffer(shared->knobs.max_header_bytes + shared->knobs.max_body_bytes);
  for (;;) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(shared->knobs.max_header_bytes));
    parser.body_limit(shared->knobs.max_body_bytes);
    stream.expires_after(shared->knobs.idle_limit);
    const auto [read_error, read_bytes] = co_await http::async_read(stream, buffer, parser, net::as_values);
    if (read_error) break;
    const auto response = answer(parser.get(), shared->snapshot);
    stream.expires_after(shared->knobs.idle_limit);
    const auto [write_error, written] = co_await http::async_write(stream, response, net::as_values);
    if (write_error || !response.keep_alive()) break;
  }
  beast::error_code ignored;
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
}

class Server final : public AdminServer {
 public:
  Server(asio::io_context& context, std::shared_ptr<Shared> shared)
      : acceptor_(std::make_shared<tcp::acceptor>(context)), shared_(std::move(shared)) {}
  ~Server() override {
    beast::error_code ignored;
    acceptor_->close(ignored);
  }

  Result<> listen(const HostPort& address) {
    beast::error_code error;
    const auto ip = asio::ip::make_address(address.host == "localhost" ? "127.0.0.1" : address.host, error);
    if (error) return fail(ErrorKind::invalid_input, "the admin address '{}' must begin with an IP address", address.text());
    const tcp::endpoint endpoint(ip, address.port);
    acceptor_->open(endpoint.protocol(), error);
    if (!error) acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_->bind(endpoint, error);
    if (!error) acceptor_->listen(16, error);
    if (error) {
      return fail(ErrorKind::unavailable, "cannot listen on {} for the admin endpoint: {} (choose another with --admin, or 'none')",
                  address.text(), error.message());
    }
    asio::co_spawn(acceptor_->get_executor(), accept(acceptor_, shared_), asio::detached);
    return {};
  }

  [[nodiscard]] HostPort address() const override {
    beast::error_code ignored;
    const auto endpoint = acceptor_->local_endpoint(ignored);
    return {endpoint.address().to_string(), endpoint.port()};
  }

 private:
  static awaitable<void> accept(std::shared_ptr<tcp::acceptor> acceptor, std::shared_ptr<Shared> shared) {
    asio::steady_timer pause(acceptor->get_executor());
    while (acceptor->is_open()) {
      auto [error, socket] = co_await acceptor->async_accept(net::as_values);
      if (!acceptor->is_open()) co_return;
      if (error) {  // out of descriptors, perhaps: wait rather than spin
        pause.expires_after(std::chrono::milliseconds(100));
        co_await pause.async_wait(net::as_values);
        continue;
      }
      if (shared->connections >= shared->knobs.max_connections) continue;
      ++shared->connections;
      asio::co_spawn(acceptor->get_executor(), converse(beast::tcp_stream(std::move(socket)), shared),
                     [shared](const std::exception_ptr&) { --shared->connections; });
    }
  }

  std::shared_ptr<tcp::acceptor> acceptor_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<AdminServer>> AdminServer::open(asio::io_context& context, const HostPort& address, Snapshot snapshot,
                                                       AdminKnobs knobs) {
  auto server = std::make_unique<Server>(context, std::make_shared<Shared>(Shared{std::move(snapshot), knobs, 0}));
  if (auto listening = server->listen(address); !listening) return pass(listening);
  return server;
}

}  // namespace linkcpp::serve
