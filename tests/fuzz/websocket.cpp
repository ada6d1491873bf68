// Fuzzes the decoder of WebSocket frames: however the bytes are cut into reads, the same payload and the same answers come out, and the
// same error ends them; what it takes can be written again. The first byte says who sends, and seeds the sizes of the reads.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "fuzz/require.h"
#include "net/websocket_frames.h"

namespace linkcpp {
namespace {

using fuzz::require;
using net::WebSocketDecoder;
using net::WebSocketSide;

struct Outcome {
  Bytes payload, last_ping;
  bool pinged = false, closed = false;
  std::optional<net::WebSocketStatus> error;
  bool operator==(const Outcome&) const = default;
};

/// Pieces of 1 to `most` bytes.
Outcome decode(ByteSpan stream, WebSocketSide from, std::size_t most, unsigned random) {
  Outcome outcome;
  WebSocketDecoder decoder(from);
  while (!stream.empty() && !outcome.closed && !outcome.error) {
    random = random * 1103515245 + 12345;
    const std::size_t n = std::min<std::size_t>(1 + (random >> 16) % most, stream.size());
    Bytes piece(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(n));
    stream = stream.subspan(n);
    const auto decoded = decoder.decode(piece);
    require(decoded.payload <= n, "no more payload than bytes");
    outcome.payload.insert(outcome.payload.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(decoded.payload));
    if (decoded.ping) {
      require(decoded.ping->size() <= net::max_websocket_control, "a ping is short");
      outcome.last_ping = *decoded.ping;
      outcome.pinged = true;
    }
    outcome.closed = decoded.closed;
    if (decoded.wrong) {
      require(!decoded.wrong->message.empty(), "an error has a message");
      outcome.error = decoder.status();
    }
  }
  return outcome;
}

/// What was taken, written as frames of its own, decodes to itself.
void check_encoding(const Outcome& outcome, WebSocketSide from, unsigned random) {
  const auto mask =
      from == WebSocketSide::server ? std::nullopt : std::optional(net::WebSocketMask{static_cast<std::byte>(random), std::byte{1}});
  Bytes stream;
  const std::size_t half = outcome.payload.size() / 2;
  put_websocket_frame(stream, net::WebSocketOpcode::binary, ByteSpan(outcome.payload).first(half), mask);
  if (outcome.pinged) put_websocket_frame(stream, net::WebSocketOpcode::ping, outcome.last_ping, mask);
  put_websocket_frame(stream, net::WebSocketOpcode::binary, ByteSpan(outcome.payload).subspan(half), mask);
  if (outcome.closed) put_websocket_close(stream, net::WebSocketStatus::normal, mask);
  Outcome expected = outcome;
  expected.error.reset();
  require(decode(stream, from, stream.size() + 1, random) == expected, "what was written is read back");
}

}  // namespace
}  // namespace linkcpp

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace linkcpp;
  for (const bool masked : {false, true}) {
    const auto mask = masked ? std::optional(net::WebSocketMask{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}) : std::nullopt;
    Bytes stream{static_cast<std::byte>(masked)};
    put_websocket_frame(stream, net::WebSocketOpcode::binary, Bytes(5, std::byte{0x5A}), mask);
    put_websocket_frame(stream, net::WebSocketOpcode::ping, Bytes(3, std::byte{0x5B}), mask);
    put_websocket_frame(stream, net::WebSocketOpcode::binary, Bytes(200, std::byte{0x5C}), mask);
    put_websocket_close(stream, net::WebSocketStatus::normal, mask);
    fuzz::SeedFolder().add(masked ? "masked" : "plain", stream);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp;
  if (size == 0) return 0;
  const ByteSpan stream = std::as_bytes(std::span(data + 1, size - 1));
  const auto from = (data[0] & 1) != 0 ? WebSocketSide::client : WebSocketSide::server;
  const Outcome whole = decode(stream, from, 1, data[0]);  // byte by byte: the definition
  require(decode(stream, from, 64, data[0]) == whole, "the same, however the stream is cut");
  require(decode(stream, from, stream.size() + 1, data[0]) == whole, "the same in one piece");
  check_encoding(whole, from, data[0]);
  return 0;
}
