// WebSocket as a pipe: our bytes in binary messages, so that reverse proxies and CDNs pass them on.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "net/layered_pipe.h"
#include "net/websocket_frames.h"

namespace linkcpp::net {

/// After the upgrade (net/websocket_upgrade.h). Messages have no meaning: only the bytes in them count. Pings are answered, a close frame
/// is answered and is the end of the stream.
///
/// Threads as for any pipe; answers to control frames leave by the strand, under a lock of its own.
class WebSocketPipe final : public LayeredPipe {
 public:
  struct Options {
    WebSocketSide side = WebSocketSide::client;  ///< which one we are
    std::string_view kind = "ws";                ///< a literal
    bool mask = true;                            ///< a client's mask is random, else zeros
    Bytes received = {};                         ///< what came behind the upgrade
  };
  WebSocketPipe(std::unique_ptr<Pipe> below, Options options);

  void read_some(std::span<std::byte> into, OnRead then) override;
  Result<bool> try_write(ByteSpan& bytes) override;
  /// Begins the closing handshake. The connection below stays open, since proxies take half of one for none.
  void shutdown_send() override;
  void close() override;
  [[nodiscard]] std::string_view kind() const override { return options_.kind; }

 private:
  void on_raw(std::span<std::byte> into, OnRead then, const Result<std::size_t>& got);
  std::size_t take(std::span<std::byte> raw);
  Result<bool> flush();
  void say_close(WebSocketStatus status);
  std::optional<WebSocketMask> next_mask();

  Options options_;

  // Strand only.
  WebSocketDecoder decoder_;
  /// What the next reading gets: the end, since the peer's close frame came, or what it did wrong.
  std::optional<Result<std::size_t>> end_;

  std::mutex mutex_;
  std::optional<Bytes> pong_;  ///< the last ping's, waits until the output has gone
  bool close_sent_ = false;
  std::array<std::byte, 1024> masks_;  ///< random bytes, used once
  std::size_t masks_left_ = 0;
};

}  // namespace linkcpp::net
