// Keeps callbacks from running after their owner has gone.
#pragma once

#include <mutex>
#include <utility>

namespace linkcpp::net {

/// Shared by a handle and the asynchronous work behind it. When close() returns, no callback runs or will run, unless close() was called
/// from inside one.
class CallbackGate {
 public:
  template <class Callback>
  void run(Callback&& callback) {
    const std::lock_guard lock(mutex_);
    if (open_) std::forward<Callback>(callback)();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }

 private:
  std::recursive_mutex mutex_;  // a callback may destroy its own owner
  bool open_ = true;
};

}  // namespace linkcpp::net
