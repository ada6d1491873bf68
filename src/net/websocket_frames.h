// The frames of WebSocket (RFC 6455, section 5), as far as a stream of bytes needs them. Bytes in, bytes out: no sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::net {

enum class WebSocketOpcode : std::uint8_t { continuation = 0, text = 1, binary = 2, close = 8, ping = 9, pong = 10 };
/// Who sends: frames of clients are masked, those of servers are not.
enum class WebSocketSide : std::uint8_t { client, server };

/// Reasons of a close frame (RFC 6455, 7.4.1).
enum class WebSocketStatus : std::uint16_t { normal = 1000, protocol_error = 1002, unsupported_data = 1003 };

using WebSocketMask = std::array<std::byte, 4>;

/// The longest payload of a control frame.
inline constexpr std::size_t max_websocket_control = 125;
/// No frame may announce more. It costs no memory, but nobody sane sends it.
inline constexpr std::uint64_t max_websocket_frame = 1ull << 40;

/// Appends one whole frame. With a mask the payload is masked. A control frame's payload is at most max_websocket_control bytes.
void put_websocket_frame(Bytes& out, WebSocketOpcode opcode, ByteSpan payload, const std::optional<WebSocketMask>& mask);
/// Appends a close frame.
void put_websocket_close(Bytes& out, WebSocketStatus status, const std::optional<WebSocketMask>& mask);

/// to[i] = from[i] ^ mask[(phase + i) mod 4]. `to` may overlap `from` if it does not begin behind it. Many bytes at a time.
void mask_websocket_bytes(std::byte* to, const std::byte* from, std::size_t n, const WebSocketMask& mask, unsigned phase);

/// Takes the payload out of a stream of frames, in place.
class WebSocketDecoder {
 public:
  /// `peer`: who sends these frames.
  explicit WebSocketDecoder(WebSocketSide peer) : masked_(peer == WebSocketSide::client) {}

  struct Decoded {
    std::size_t payload = 0;          ///< bytes of binary messages, which now lie at the front of what was given
    std::optional<Bytes> ping;        ///< of the last ping: what the pong must hold
    bool closed = false;              ///< a close frame came; what was behind it is dropped
    std::optional<Error> wrong = {};  ///< what was met behind all that; status() says what to tell the peer
  };
  /// However the stream is cut, the same comes out. Must not be called after `closed` or `wrong`.
  Decoded decode(std::span<std::byte> raw);
  [[nodiscard]] WebSocketStatus status() const { return status_; }

 private:
  Result<> begin_frame();
  Result<> end_control(Decoded& decoded);
  std::unexpected<Error> wrong(WebSocketStatus status, const char* what);

  const bool masked_;
  WebSocketStatus status_ = WebSocketStatus::protocol_error;
  std::array<std::byte, 14> header_;  ///< of the frame that begins
  std::size_t header_size_ = 0;       ///< bytes of it that are there
  WebSocketOpcode opcode_ = WebSocketOpcode::binary;
  WebSocketMask mask_{};
  unsigned phase_ = 0;
  std::uint64_t left_ = 0;   ///< payload of the current frame that is still to come
  bool in_frame_ = false;    ///< the header is complete, the payload is not
  bool in_message_ = false;  ///< a binary message began whose last frame has not come
  std::array<std::byte, max_websocket_control> control_;
  std::size_t control_size_ = 0;
};

}  // namespace linkcpp::net
