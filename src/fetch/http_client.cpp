#include "fetch/http_client.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <charconv>
#include <cstring>

#include "fetch/proof.h"
#include "wire/text.h"

namespace linkcpp::fetch {
namespace {

namespace http = boost::beast::http;
using ResponseParser = http::response_parser<http::buffer_body>;

constexpr std::size_t buffer_bytes = 512u << 10;
constexpr std::size_t page_bytes = 4096;
constexpr std::uint32_t max_header_bytes = 16u << 10;

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

/// "bytes 5-9/100" says where the bytes begin and end.
bool range_is(std::string_view text, std::uint64_t offset, std::uint64_t bytes) {
  return text.starts_with(std::format("bytes {}-{}/", offset, offset + bytes - 1));
}

ErrorKind kind_of(unsigned status) {
  if (status == 404 || status == 410) return ErrorKind::not_found;
  if (status == 401 || status == 403) return ErrorKind::unauthorized;
  if (status == 408 || status == 429 || status >= 500) return ErrorKind::unavailable;
  return ErrorKind::invalid_input;
}

/// Gives up a source that trickles: in each span of stall_limit a least number of bytes must come.
class Pace {
 public:
  explicit Pace(const HttpKnobs& knobs) : knobs_(knobs) {}
  Result<> moved(std::size_t n) {
    bytes_ += n;
    const auto now = Clock::now();
    if (bytes_ >= knobs_.stall_bytes) {
      bytes_ = 0;
      since_ = now;
    } else if (now - since_ > knobs_.stall_limit) {
      return fail(ErrorKind::timeout, "only {} bytes came in {} ms", bytes_, knobs_.stall_limit.count());
    }
    return {};
  }
  [[nodiscard]] Milliseconds left() const {
    const auto left = std::chrono::ceil<Milliseconds>(knobs_.stall_limit - (Clock::now() - since_));
    return std::max(left, Milliseconds(1));
  }

 private:
  const HttpKnobs& knobs_;
  std::uint64_t bytes_ = 0;
  Clock::time_point since_ = Clock::now();
};

}  // namespace

void HttpClient::cancel() noexcept {
  cancelled_ = true;
  const std::lock_guard lock(mutex_);
  if (stream_) stream_->socket().shut();
}

void HttpClient::drop() {
  const std::lock_guard lock(mutex_);
  stream_.reset();
}

Result<> HttpClient::adopt(std::unique_ptr<Stream> stream, const Url& url) {
  {
    const std::lock_guard lock(mutex_);
    stream_ = std::move(stream);
    if (cancelled_) stream_->socket().shut();
  }
  connected_to_ = url.scheme + "://" + url.authority();
  return {};
}

Result<> HttpClient::connect(const Url& url) {
  if (stream_ && connected_to_ == url.scheme + "://" + url.authority()) return {};
  drop();
  auto socket = connect_to(url.host, url.port, knobs_.connect_limit, cancelled_);
  if (!socket) return pass(socket);
  if (url.scheme == "http") return adopt(plain_stream(std::move(*socket)), url);
  if (url.scheme == "https") {
    auto stream = web_stream(std::move(*socket), url.host, knobs_.connect_limit);
    if (!stream) return pass(stream);
    return adopt(std::move(*stream), url);
  }
  if (!credentials_) return fail(ErrorKind::invalid_input, "{} is a node of a swarm: the join token is needed to ask it", url.text());
  auto context = net::TlsContext::create(credentials_->identity, credentials_->expected_peer);
  if (!context) return pass(context);
  auto stream = NodeStream::handshake(**socket, std::move(*context), net::TlsSide::client, knobs_.connect_limit);
  if (!stream) return pass(stream);
  auto proof = authorization((*stream)->session(), credentials_->secret, credentials_->identity.key());
  if (!proof) return pass(proof);
  authorization_ = std::move(*proof);
  (*stream)->own(std::move(*socket));
  return adopt(std::move(*stream), url);
}

Result<> HttpClient::get_range(const Url& url, std::uint64_t offset, std::uint64_t bytes, const Sink& sink) {
  return get(url, {.range = std::pair(offset, bytes), .max_bytes = bytes}, sink);
}

Result<std::string> HttpClient::get_all(const Url& url, std::uint64_t max_bytes) {
  std::string text;
  auto got = get(url, {.range = std::nullopt, .max_bytes = max_bytes}, [&](ByteSpan part) -> Result<> {
    text.append(reinterpret_cast<const char*>(part.data()), part.size());
    return {};
  });
  if (!got) return pass(got);
  return text;
}

Result<> HttpClient::get(Url url, const Request& request, const Sink& sink) {
  for (int redirects = 0;;) {
    const bool kept = stream_ != nullptr;
    bool heard = false;
    auto next = attempt(url, request, sink, heard);
    if (cancelled_) {
      if (next && !*next) return {};
      return fail(ErrorKind::unavailable, "fetching was stopped");
    }
    if (!next) {
      drop();
      // A kept connection may have been closed by the server meanwhile: that is no failure of the server.
      if (kept && !heard && next.error().kind == ErrorKind::unavailable) continue;
      return fail(next.error().kind, "{}: {}", url.text(), next.error().message);
    }
    if (!*next) return {};
    if (++redirects > knobs_.max_redirects)
      return fail(ErrorKind::invalid_input, "{}: more than {} redirects", url.text(), knobs_.max_redirects);
    if (url.scheme == "lks" || (*next)->scheme == "lks" || (url.scheme == "https" && (*next)->scheme == "http")) {
      return fail(ErrorKind::invalid_input, "{} redirects to {}: that is not followed", url.text(), (*next)->text());
    }
    url = std::move(**next);
  }
}

/// None when it is done, or where to go on.
Result<std::optional<Url>> HttpClient::attempt(const Url& url, const Request& request, const Sink& sink, bool& heard) {
  if (auto connected = connect(url); !connected) return pass(connected);
  std::string text = std::format("GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: linkcpp\r\nAccept: */*\r\n", url.target, url.authority());
  if (url.scheme == "lks") text += "Authorization: " + authorization_ + "\r\n";
  if (request.range) text += std::format("Range: bytes={}-{}\r\n", request.range->first, request.range->first + request.range->second - 1);
  text += "\r\n";
  if (auto sent = stream_->write(std::as_bytes(std::span(text)), knobs_.stall_limit); !sent) return pass(sent);
  return answer(url, request, sink, heard);
}

Result<std::optional<Url>> HttpClient::answer(const Url& url, const Request& request, const Sink& sink, bool& heard) {
  buffer_.resize(buffer_bytes);
  ResponseParser parser;
  parser.header_limit(max_header_bytes);
  parser.body_limit(boost::none);  // bounded below, by what was asked for
  parser.eager(false);
  Pace pace(knobs_);
  std::size_t held = 0;
  const auto more = [&](bool end_is_fine) -> Result<std::size_t> {
    auto got = stream_->read(std::span(buffer_).subspan(held), pace.left());
    if (!got) return got;
    if (*got == 0 && !end_is_fine) return fail(ErrorKind::unavailable, "the server closed the connection");
    heard = heard || *got > 0;
    if (auto fine = pace.moved(*got); !fine) return pass(fine);
    held += *got;
    return got;
  };
  const auto consume = [&](std::size_t n) {
    std::memmove(buffer_.data(), buffer_.data() + n, held - n);
    held -= n;
  };
  boost::system::error_code error;
  while (!parser.is_header_done()) {
    if (auto got = more(false); !got) return pass(got);
    const std::size_t n = parser.put(boost::asio::buffer(buffer_.data(), held), error);
    if (error && error != http::error::need_more) return fail(ErrorKind::invalid_input, "that is no HTTP answer: {}", error.message());
    error = {};
    consume(n);
    if (parser.is_header_done() && parser.get().result_int() / 100 == 1)
      return fail(ErrorKind::invalid_input, "an interim answer was not asked for");
  }
  const auto& head = parser.get();
  const unsigned status = head.result_int();
  if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) {
    auto next = resolve(url, view(head[http::field::location]));
    drop();  // the body of a redirect is of no interest
    if (!next) return pass(next);
    return std::optional(std::move(*next));
  }
  const auto length = parser.content_length();
  bool whole = !request.range && status == 200;
  if (request.range) {
    const auto [offset, bytes] = *request.range;
    if (status == 206) {
      if (!range_is(view(head[http::field::content_range]), offset, bytes) || (length && *length != bytes)) {
        return fail(ErrorKind::invalid_input, "the server sent another range than was asked for: '{}'",
                    wire::plain_text(view(head[http::field::content_range]), 80));
      }
      whole = true;
    } else if (status == 200) {
      // Nothing is lost if exactly that was asked for; else the whole file would have to come.
      if (offset != 0 || !length || *length != bytes)
        return fail(ErrorKind::incompatible, "the server ignores Range requests; use another one");
      whole = true;
    } else if (status == 416) {
      return fail(ErrorKind::not_found, "the file there is shorter than it should be (416)");
    }
  }
  if (!whole) return fail(kind_of(status), "the server answered {} {}", status, wire::plain_text(view(head.reason()), 80));
  if (length && *length > request.max_bytes)
    return fail(ErrorKind::invalid_input, "{} bytes are more than the {} that are allowed", *length, request.max_bytes);

  std::uint64_t delivered = 0;
  const auto deliver = [&](ByteSpan part) -> Result<> {
    if (part.size() > request.max_bytes - delivered)
      return fail(ErrorKind::invalid_input, "the server sends more than the {} bytes that are allowed", request.max_bytes);
    delivered += part.size();
    return sink(part);
  };
  if (length && !parser.chunked()) {  // the common case goes past the parser: what is read is what is delivered
    std::uint64_t left = *length;
    const std::uint64_t start = request.range ? request.range->first : 0;
    if (held > left) return fail(ErrorKind::invalid_input, "the server sent more than it announced");
    for (;;) {
      if (held > 0) {
        if (auto taken = deliver(ByteSpan(buffer_).first(held)); !taken) return pass(taken);
        left -= held;
        held = 0;
      }
      if (left == 0) break;
      // Up to the end of a page, so that what is written next begins with one.
      const std::uint64_t in_page = (start + delivered) % page_bytes;
      auto got = stream_->read(std::span(buffer_).first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size() - in_page, left))),
                               pace.left());
      if (!got) return pass(got);
      if (*got == 0) return fail(ErrorKind::unavailable, "the server closed the connection {} bytes before the end", left);
      if (auto fine = pace.moved(*got); !fine) return pass(fine);
      held = *got;
    }
  } else {
    Bytes body(buffer_bytes);
    while (!parser.is_done()) {
      parser.get().body().data = body.data();
      parser.get().body().size = body.size();
      const std::size_t n = held == 0 ? 0 : parser.put(boost::asio::buffer(buffer_.data(), held), error);
      const bool hungry = held == 0 || (n == 0 && body.size() == parser.get().body().size);
      if (error && error != http::error::need_more && error != http::error::need_buffer)
        return fail(ErrorKind::invalid_input, "that is no HTTP answer: {}", error.message());
      error = {};
      if (auto taken = deliver(ByteSpan(body).first(body.size() - parser.get().body().size)); !taken) return pass(taken);
      consume(n);
      if (parser.is_done() || !hungry) continue;
      if (held == buffer_.size()) return fail(ErrorKind::invalid_input, "that is no HTTP answer");
      auto got = more(true);
      if (!got) return pass(got);
      if (*got > 0) continue;
      parser.put_eof(error);
      if (error) return fail(ErrorKind::unavailable, "the server closed the connection before the end");
      break;
    }
  }
  if (request.range && delivered != request.max_bytes)
    return fail(ErrorKind::invalid_input, "the server sent {} bytes instead of {}", delivered, request.max_bytes);
  if (!parser.keep_alive() || (!length && !parser.chunked())) drop();
  return std::optional<Url>();
}

}  // namespace linkcpp::fetch
