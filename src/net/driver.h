// Drives an io_context from whichever thread waits for it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>

namespace linkcpp::net {

/// Owns an io_context and one background thread. A thread that waits for an event (the backbone's compute thread between
/// dispatch and combine) drives the context itself, so that an answer is decrypted, decoded and combined on the thread
/// that needs it, without a hand-over. When nobody has waited for some milliseconds, the background thread drives (keep-warm, joins,
/// timers). Handlers are therefore never run by two threads at once.
class Driver {
 public:
  Driver();
  /// Stops the background thread; pending handlers are destroyed, not run. Threads inside run_until() return early.
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  [[nodiscard]] boost::asio::io_context& context();

  /// Runs handlers on the calling thread until `done()` is true or the deadline passes; returns done(). `done` is
  /// evaluated only on the driving thread, so what handlers write needs no lock to be read in it.
  /// Two threads may wait at the same time: one drives and looks at the other's condition too; it takes over when the first leaves. So
  /// `done` may be called on another waiter's thread, and must not call the driver. Deadlines have the resolution of epoll, 1 ms.
  bool run_until(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline);

  /// Runs `task` on the driving side (mutually exclusive with all handlers) and returns when it has run.
  void run_exclusive(const std::function<void()>& task);

  /// Lets the background thread drive at once if nobody else does, where it would otherwise wait some milliseconds for the next waiter:
  /// for a caller that has begun something which needs the event loop, and now computes.
  void hand_over();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace linkcpp::net
