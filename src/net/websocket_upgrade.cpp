#include "net/websocket_upgrade.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/serializer.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "net/pipe_io.h"
#include "net/websocket_pipe.h"
#include "wire/text.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::uint32_t max_header = 16u << 10;  // proxies add theirs
constexpr std::size_t shown_text = 200;
constexpr auto answer_patience = std::chrono::seconds(1);

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string base64(ByteSpan bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), reinterpret_cast<const unsigned char*>(bytes.data()),
                                static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(n));
  return text;
}

/// What proves that a server understood a client's key.
std::string accept_of(std::string_view key) {
  const std::string joined = std::string(key) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  std::array<std::byte, 20> digest{};
  std::size_t n = 0;
  EVP_Q_digest(nullptr, "SHA1", nullptr, joined.data(), joined.size(), reinterpret_cast<unsigned char*>(digest.data()), &n);
  return base64(digest);
}

/// 16 bytes in base64: 22 characters and two signs of padding.
bool is_websocket_key(std::string_view key) {
  return key.size() == 24 && key.ends_with("==") && std::ranges::all_of(key.substr(0, 22), [](unsigned char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
         });
}

template <class Message>
std::string to_text(const Message& message) {
  std::ostringstream text;
  text << message;
  return text.str();
}

/// Reads until the header is complete. What came behind it is left in `rest`.
template <class Parser>
asio::awaitable<Result<>> read_header(Attempt& attempt, Parser& parser, Bytes& rest) {
  parser.header_limit(max_header);
  parser.eager(false);
  std::array<std::byte, 4096> piece;
  while (!parser.is_header_done()) {
    const auto got = co_await read_some(attempt.pipe(), piece);
    if (!got) co_return attempt.broken(got.error());
    if (*got == 0) co_return attempt.ended();
    rest.insert(rest.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(*got));
    error_code error;
    const std::size_t used = parser.put(asio::buffer(rest.data(), rest.size()), error);
    rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(used));
    if (error && error != http::error::need_more)
      co_return fail(ErrorKind::invalid_input, "what the peer sent is not HTTP: {}", error.message());
    if (!parser.is_header_done() && rest.size() > max_header)
      co_return fail(ErrorKind::invalid_input, "the peer's HTTP header is too long");
  }
  co_return Result<>();
}

// ---- the server's side -----------------------------------------------------------------------------------------------

struct Refusal {
  http::status status;
  std::string why;
};

template <class Request>
std::optional<Refusal> refusal_of(const Request& request) {
  if (request.method() != http::verb::get) return Refusal{http::status::method_not_allowed, "only GET is understood here"};
  const bool upgrades = http::token_list(request[http::field::connection]).exists("upgrade") &&
                        http::token_list(request[http::field::upgrade]).exists("websocket");
  if (!upgrades) return Refusal{http::status::upgrade_required, "the request asks for no WebSocket"};
  if (request.version() < 11)
    return Refusal{http::status::bad_request, "WebSocket needs HTTP/1.1; does the proxy speak that to this port?"};
  if (view(request[http::field::sec_websocket_version]) != "13")
    return Refusal{http::status::upgrade_required, "only version 13 of WebSocket is understood here"};
  if (!is_websocket_key(view(request[http::field::sec_websocket_key])))
    return Refusal{http::status::bad_request, "the Sec-WebSocket-Key is missing or malformed"};
  return std::nullopt;
}

/// Answers, and lets the peer read that: closing over unread data would reset the connection and destroy the answer.
asio::awaitable<void> answer(Attempt& attempt, Refusal refusal, const char* what_this_is) {
  http::response<http::string_body> response(refusal.status, 11);
  response.set(http::field::server, "linkcpp");
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  response.set(http::field::connection, "close");
  if (refusal.status == http::status::upgrade_required) {
    response.set(http::field::upgrade, "websocket");
    response.set(http::field::sec_websocket_version, "13");
  }
  if (refusal.status == http::status::method_not_allowed) response.set(http::field::allow, "GET");
  response.body() = refusal.why + ".\n" + what_this_is;
  response.prepare_payload();
  const std::string text = to_text(response);
  attempt.cancel_after(answer_patience);
  if (auto sent = co_await write_all(attempt.pipe(), std::as_bytes(std::span(text))); !sent) co_return;
  attempt.pipe().shutdown_send();
  std::array<std::byte, 4096> ignored;
  Result<std::size_t> got = 1;
  while (got && *got > 0) got = co_await read_some(attempt.pipe(), ignored);
}

}  // namespace

asio::awaitable<Result<>> accept_websocket(Attempt& attempt, const char* what_this_is) {
  attempt.enter("the WebSocket upgrade");
  http::request_parser<http::empty_body> parser;
  Bytes rest;
  std::optional<Refusal> refusal;
  auto read = co_await read_header(attempt, parser, rest);
  if (read) {
    refusal = refusal_of(parser.get());
  } else if (attempt.aborted() || read.error().kind != ErrorKind::invalid_input) {
    co_return read;
  } else {
    refusal = Refusal{http::status::bad_request, read.error().message};
  }
  if (refusal) {
    std::string asked =
        read ? std::format("{} {}", view(parser.get().method_string()), view(parser.get().target())) : "something malformed";
    co_await answer(attempt, *refusal, what_this_is);
    co_return fail(ErrorKind::invalid_input, "a web client asked for {}: {}", wire::plain_text(asked, shown_text), refusal->why);
  }
  http::response<http::empty_body> response(http::status::switching_protocols, 11);
  response.set(http::field::upgrade, "websocket");
  response.set(http::field::connection, "Upgrade");
  response.set(http::field::sec_websocket_accept, accept_of(view(parser.get()[http::field::sec_websocket_key])));
  const std::string text = to_text(response);
  if (auto sent = co_await write_all(attempt.pipe(), std::as_bytes(std::span(text))); !sent) co_return attempt.broken(sent.error());
  attempt.set_pipe(std::make_unique<WebSocketPipe>(
      attempt.take_pipe(), WebSocketPipe::Options{.side = WebSocketSide::server, .kind = "ws", .received = std::move(rest)}));
  co_return Result<>();
}

// ---- the client's side -----------------------------------------------------------------------------------------------

asio::awaitable<Result<>> open_websocket(Attempt& attempt, const Address& address, const LinkKnobs& knobs) {
  attempt.enter("the WebSocket upgrade");
  std::array<std::byte, 16> nonce{};
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1)
    co_return fail(ErrorKind::internal, "the system gives no random numbers");
  const std::string key = base64(nonce);
  http::request<http::empty_body> request(http::verb::get, address.path, 11);
  request.set(http::field::host, address.authority());
  request.set(http::field::user_agent, "linkcpp");
  request.set(http::field::upgrade, "websocket");
  request.set(http::field::connection, "Upgrade");
  request.set(http::field::sec_websocket_version, "13");
  request.set(http::field::sec_websocket_key, key);
  const std::string text = to_text(request);
  if (auto sent = co_await write_all(attempt.pipe(), std::as_bytes(std::span(text))); !sent) co_return attempt.broken(sent.error());

  http::response_parser<http::empty_body> parser;
  Bytes rest;
  if (auto read = co_await read_header(attempt, parser, rest); !read) co_return read;
  const auto& response = parser.get();
  if (response.result() != http::status::switching_protocols) {
    const auto kind = response.result_int() == 401 || response.result_int() == 403 ? ErrorKind::unauthorized : ErrorKind::unavailable;
    co_return fail(kind,
                   "the server answered {} {} instead of opening a WebSocket: is the path right, and does the proxy pass upgrades on?",
                   response.result_int(), wire::plain_text(view(response.reason()), shown_text));
  }
  const bool agreed = http::token_list(response[http::field::connection]).exists("upgrade") &&
                      http::token_list(response[http::field::upgrade]).exists("websocket") &&
                      view(response[http::field::sec_websocket_accept]) == accept_of(key) &&
                      response.count(http::field::sec_websocket_extensions) == 0;
  if (!agreed) co_return fail(ErrorKind::invalid_input, "the server's answer opens no WebSocket of the kind that was asked for");
  attempt.set_pipe(std::make_unique<WebSocketPipe>(
      attempt.take_pipe(),
      WebSocketPipe::Options{
          .side = WebSocketSide::client, .kind = scheme_name(address.scheme), .mask = knobs.websocket_mask, .received = std::move(rest)}));
  co_return Result<>();
}

}  // namespace linkcpp::net
