// Who uses a connection, as the connection sees it: told of each frame, and once of the end.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "net/link.h"

namespace linkcpp::net {

/// Keeps the promises of Link::Handlers. Threading: mute() from any thread; all else on the connection's strand.
class LinkUser {
 public:
  /// False if there is nothing to begin: nobody is left, or the connection ended before this call, which is told now.
  bool start(Link::Handlers handlers);
  [[nodiscard]] bool started() const { return started_; }
  void deliver(const wire::FrameView& frame) const {
    if (handlers_.on_frame) handlers_.on_frame(frame);
  }
  /// The connection has ended. Kept until start() if that has not come.
  void end(Error reason);
  /// Called behind end().
  void when_finished(std::function<void()> hook) { finished_hook_ = std::move(hook); }
  /// The handle is gone: no handler runs from now on. forget() then lets go of what they own.
  void mute() { muted_ = true; }
  void forget() { handlers_ = {}; }

 private:
  void tell(const Error& reason);

  Link::Handlers handlers_;
  std::function<void()> finished_hook_;
  std::optional<Error> untold_;
  bool started_ = false;
  std::atomic<bool> muted_ = false;
};

/// What LinkStats says of frames. Threading: any thread.
class FrameCounters {
 public:
  void sent(std::size_t bytes) { count(bytes_sent_, frames_sent_, bytes); }
  void received(std::size_t bytes) { count(bytes_received_, frames_received_, bytes); }
  [[nodiscard]] LinkStats stats() const {
    return {.bytes_sent = bytes_sent_.load(std::memory_order_relaxed),
            .bytes_received = bytes_received_.load(std::memory_order_relaxed),
            .frames_sent = frames_sent_.load(std::memory_order_relaxed),
            .frames_received = frames_received_.load(std::memory_order_relaxed)};
  }

 private:
  using Counter = std::atomic<std::uint64_t>;
  static void count(Counter& bytes, Counter& frames, std::size_t n) {
    bytes.fetch_add(n, std::memory_order_relaxed);
    frames.fetch_add(1, std::memory_order_relaxed);
  }
  Counter bytes_sent_{0}, frames_sent_{0}, bytes_received_{0}, frames_received_{0};
};

}  // namespace linkcpp::net
