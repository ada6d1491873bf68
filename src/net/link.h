// A link: one authenticated, encrypted, frame-wise connection to a peer, over any transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "net/identity.h"
#include "wire/frame.h"

namespace linkcpp::net {

/// Counters of one link. Bytes are frame bytes (header and body), before encryption.
struct LinkStats {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::chrono::microseconds rtt{0};  ///< smoothed round trip of keep-warm pings; 0 before the first
  std::chrono::microseconds rtt_min{0};
  std::chrono::steady_clock::time_point heard{};  ///< when bytes last came; the clock's origin: not known, never silent
};

/// One connection that carries a link. A link over a plain connection has none to show.
struct PathStats {
  std::string kind, endpoint;
  std::chrono::microseconds rtt{0};
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  bool preferred = false;                         ///< it is the one that is sent on
  std::chrono::steady_clock::time_point since{};  ///< when it was made
};

/// A whole encoded frame. Shared, since whoever may have to send it again keeps it too.
using SharedFrame = std::shared_ptr<const Bytes>;

/// One connection, authenticated before it is handed out. Pings and pongs are handled inside and never reach the handler.
///
/// Threading: send(), close(), sending() and stats() from any thread. Handlers run on a thread that drives the link's io_context, one
/// at a time for one link. on_close runs exactly once, after which no other handler runs.
///
/// Lifetime: dropping the last LinkPtr closes the link without on_close (a handler that runs on another thread at that moment is not
/// waited for). Handlers should hold their link weakly: the link owns them. A LinkPtr must go before its io_context.
class Link {
 public:
  struct Handlers {
    std::function<void(const wire::FrameView&)> on_frame;
    std::function<void(const Error&)> on_close;
    /// Of sessions (net/session_link.h) alone: no connection is left, and what is sent is kept; a connection is there again.
    std::function<void()> on_suspended{}, on_resumed{};
  };
  virtual ~Link() = default;
  /// Begins receiving. Called once; frames that came before are delivered then, never from inside this call.
  virtual void start(Handlers handlers) = 0;
  /// Sends or queues one whole encoded frame. Never waits for the peer; after close it does nothing.
  virtual void send(Bytes frame) { send(std::make_shared<const Bytes>(std::move(frame))); }
  virtual void send(SharedFrame frame) = 0;
  /// Flushes what was queued, bounded by a short deadline, then closes and calls on_close with `reason`. Received frames that were not
  /// delivered yet are dropped.
  virtual void close(Error reason) = 0;
  /// Whether a part of what was sent still waits, for the peer to take it or for the event loop to go on.
  [[nodiscard]] virtual bool sending() const = 0;
  [[nodiscard]] virtual LinkStats stats() const = 0;
  [[nodiscard]] virtual const PeerKey& peer() const = 0;
  /// Human-readable far end, for example "203.0.113.7:41234".
  [[nodiscard]] virtual std::string endpoint() const = 0;
  /// What carries it: "tcp", "ws", "wss", "quic", "relay", "memory".
  [[nodiscard]] virtual std::string_view kind() const = 0;
  [[nodiscard]] virtual std::vector<PathStats> paths() const { return {}; }
  /// How the search for a direct path stands, in one sentence; empty where none is needed.
  [[nodiscard]] virtual std::string path_note() const { return {}; }
};

using LinkPtr = std::shared_ptr<Link>;

}  // namespace linkcpp::net
