#include "net/websocket_pipe.h"

#include <openssl/rand.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

/// Payload of one frame: its header is small beside it, and its length fits into two bytes.
constexpr std::size_t max_payload = UINT16_MAX;

}  // namespace

WebSocketPipe::WebSocketPipe(std::unique_ptr<Pipe> below, Options options)
    : LayeredPipe(std::move(below)),
      options_(std::move(options)),
      decoder_(options_.side == WebSocketSide::client ? WebSocketSide::server : WebSocketSide::client) {}

// ---- receiving -------------------------------------------------------------------------------------------------------

void WebSocketPipe::read_some(std::span<std::byte> into, OnRead then) {
  if (!options_.received.empty()) {
    const std::size_t n = std::min(into.size(), options_.received.size());
    std::memcpy(into.data(), options_.received.data(), n);
    options_.received.erase(options_.received.begin(), options_.received.begin() + static_cast<std::ptrdiff_t>(n));
    return asio::post(strand(), [this, into, n, then = std::move(then)]() mutable { on_raw(into, std::move(then), n); });
  }
  if (end_) return asio::post(strand(), [then = std::move(then), end = *end_]() mutable { then(std::move(end)); });
  below_->read_some(into,
                    [this, into, then = std::move(then)](const Result<std::size_t>& got) mutable { on_raw(into, std::move(then), got); });
}

void WebSocketPipe::on_raw(std::span<std::byte> into, OnRead then, const Result<std::size_t>& got) {
  if (!got || *got == 0) return then(got);
  if (const std::size_t n = take(into.first(*got)); n > 0) return then(n);
  if (end_) return then(*end_);
  read_some(into, std::move(then));  // only control frames, or half a header
}

/// Decodes, answers what must be answered, and returns the number of bytes of payload.
std::size_t WebSocketPipe::take(std::span<std::byte> raw) {
  auto decoded = decoder_.decode(raw);
  const std::lock_guard lock(mutex_);
  if (decoded.ping) {
    pong_ = std::move(decoded.ping);
    (void)flush();  // what cannot leave now goes with the next bytes; an error shows in the reading
  }
  if (decoded.closed || decoded.wrong) {
    say_close(decoded.wrong ? decoder_.status() : WebSocketStatus::normal);
    end_ = decoded.wrong ? Result<std::size_t>(std::unexpected(std::move(*decoded.wrong))) : 0;
  }
  return decoded.payload;
}

// ---- sending, under mutex_ -------------------------------------------------------------------------------------------

std::optional<WebSocketMask> WebSocketPipe::next_mask() {
  if (options_.side == WebSocketSide::server) return std::nullopt;
  WebSocketMask mask{};
  if (!options_.mask) return mask;
  if (masks_left_ < mask.size()) {
    // Masks protect old proxies from pages in browsers (RFC 6455, 10.3), not us: without randomness they may be zero.
    if (RAND_bytes(reinterpret_cast<unsigned char*>(masks_.data()), static_cast<int>(masks_.size())) != 1) return mask;
    masks_left_ = masks_.size();
  }
  masks_left_ -= mask.size();
  std::memcpy(mask.data(), masks_.data() + masks_left_, mask.size());
  return mask;
}

/// True if nothing waits.
Result<bool> WebSocketPipe::flush() {
  for (;;) {
    const auto gone = write_output();  // also with nothing in it: the pipe below may hold something
    if (!gone || !*gone || !pong_ || close_sent_) return gone;
    put_websocket_frame(output_, WebSocketOpcode::pong, *pong_, next_mask());
    pong_.reset();
  }
}

/// The last frame that we send.
void WebSocketPipe::say_close(WebSocketStatus status) {
  if (std::exchange(close_sent_, true)) return;
  put_websocket_close(output_, status, next_mask());
  (void)flush();
}

Result<bool> WebSocketPipe::try_write(ByteSpan& bytes) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    const auto gone = flush();
    if (!gone || !*gone || bytes.empty()) return gone;
    if (close_sent_) return fail(ErrorKind::unavailable, "the WebSocket is closed");
    const ByteSpan payload = bytes.first(std::min(bytes.size(), max_payload));
    put_websocket_frame(output_, WebSocketOpcode::binary, payload, next_mask());
    bytes = bytes.subspan(payload.size());
  }
}

void WebSocketPipe::shutdown_send() {
  const std::lock_guard lock(mutex_);
  say_close(WebSocketStatus::normal);
}

void WebSocketPipe::close() {
  const std::lock_guard lock(mutex_);
  say_close(WebSocketStatus::normal);
  below_->close();
}

}  // namespace linkcpp::net
