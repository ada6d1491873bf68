#include "serve/http_client.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "net/coroutine.h"
#include "serve/lines.h"
#include "serve/text.h"

namespace linkcpp::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::ip::tcp;
constexpr std::size_t most_body = 64u << 20;
constexpr std::size_t longest_event = 1u << 20;

std::unexpected<Error> lost(const HostPort& server, const beast::error_code& error) {
  if (error == beast::error::timeout) return fail(ErrorKind::timeout, "{} did not answer in time", server.text());
  return fail(ErrorKind::unavailable, "no answer from {}: {}", server.text(), error.message());
}

/// What the server says of a failure, without its JSON around it.
std::unexpected<Error> refusal(const HostPort& server, unsigned status, const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  std::string message = body.substr(0, 300);
  if (json.is_object() && json.contains("error")) {
    const auto& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) message = error["message"].get<std::string>();
    if (error.is_string()) message = error.get<std::string>();
  }
  const auto kind = status == 401 || status == 403 ? ErrorKind::unauthorized
                    : status == 404                ? ErrorKind::not_found
                                                   : ErrorKind::unavailable;
  return fail(kind, "{} answered {}: {}", server.text(), status, printable(message));
}

http::request<http::string_body> make_request(const HostPort& server, const std::string& target, std::string body) {
  http::request<http::string_body> request(body.empty() ? http::verb::get : http::verb::post, target, 11);
  request.set(http::field::host, server.text());
  request.set(http::field::user_agent, "linkcpp/" LINKCPP_VERSION);
  request.set(http::field::connection, "close");
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

/// Connects and sends the request; the stream's deadline keeps running.
awaitable<beast::error_code> send(beast::tcp_stream& stream, const HostPort& server, const http::request<http::string_body>& request) {
  tcp::resolver resolver(stream.get_executor());
  const auto [resolve_error, endpoints] = co_await resolver.async_resolve(server.host, std::to_string(server.port), net::as_values);
  if (resolve_error) co_return resolve_error;
  const auto [connect_error, endpoint] = co_await stream.async_connect(endpoints, net::as_values);
  if (connect_error) co_return connect_error;
  beast::error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);
  const auto [write_error, written] = co_await http::async_write(stream, request, net::as_values);
  co_return write_error;
}

}  // namespace

Result<HostPort> parse_http_url(const std::string& url) {
  std::string rest = url;
  if (rest.starts_with("https://")) return fail(ErrorKind::invalid_input, "'{}': only http:// is spoken here", url);
  if (rest.starts_with("http://")) rest = rest.substr(7);
  if (rest.ends_with('/')) rest.pop_back();
  if (rest.contains('/'))
    return fail(ErrorKind::invalid_input, "'{}': give the server's address without a path, as in http://127.0.0.1:8080", url);
  const bool has_port = rest.rfind(':') != std::string::npos && !rest.ends_with(']');
  return parse_host_port(has_port ? rest : rest + ":80");
}

awaitable<Result<HttpAnswer>> http_request(HostPort server, std::string target, std::string body, std::chrono::milliseconds limit) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(limit);
  if (const auto error = co_await send(stream, server, make_request(server, target, std::move(body)))) co_return lost(server, error);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(most_body);
  const auto [error, n] = co_await http::async_read(stream, buffer, parser, net::as_values);
  if (error) co_return lost(server, error);
  auto response = parser.release();
  co_return HttpAnswer{response.result_int(), std::move(response.body())};
}

awaitable<Result<nlohmann::json>> http_json(HostPort server, std::string target, std::string body, std::chrono::milliseconds limit) {
  auto answer = co_await http_request(server, target, std::move(body), limit);
  if (!answer) co_return pass(answer);
  if (answer->status != 200) co_return refusal(server, answer->status, answer->body);
  auto json = nlohmann::json::parse(answer->body, nullptr, false);
  if (json.is_discarded()) co_return fail(ErrorKind::invalid_input, "{}{} did not answer with JSON", server.text(), target);
  co_return json;
}

awaitable<Result<>> http_event_stream(HostPort server, std::string target, std::string body, std::chrono::milliseconds limit,
                                      std::function<void(std::string_view)> on_data) {
  beast::tcp_stream stream(co_await asio::this_coro::executor);
  stream.expires_after(limit);
  if (const auto error = co_await send(stream, server, make_request(server, target, std::move(body)))) co_return lost(server, error);
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  const auto [header_error, header_bytes] = co_await http::async_read_header(stream, buffer, parser, net::as_values);
  if (header_error) co_return lost(server, header_error);

  const auto status = parser.get().result_int();
  bool done = false;
  std::string refused, failure;
  LineCutter cutter(longest_event);
  const auto on_line = [&](std::string_view line) {
    if (!line.starts_with("data:")) return;
    line.remove_prefix(line.starts_with("data: ") ? 6 : 5);
    if (line == "[DONE]") {
      done = true;
    } else if (line.starts_with("{\"error\"")) {
      failure = line;
    } else if (!done) {
      on_data(line);
    }
  };
  std::array<char, 16384> chunk;
  while (!parser.is_done() && !done) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    const auto [error, n] = co_await http::async_read_some(stream, buffer, parser, net::as_values);
    if (error && error != http::error::need_buffer) co_return lost(server, error);
    const std::string_view got(chunk.data(), chunk.size() - parser.get().body().size);
    if (status == 200) {
      cutter.feed(got, on_line);
    } else {
      refused.append(got.substr(0, most_body - refused.size()));
    }
  }
  if (status != 200) co_return refusal(server, status, refused);
  if (!failure.empty()) co_return refusal(server, 500, failure);
  co_return Result<>{};
}

}  // namespace linkcpp::serve
