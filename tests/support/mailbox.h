// Values that other threads put in, taken out with a deadline. For tests that wait for handlers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace linkcpp::test {

/// `seconds`: how long take() waits by default. Generous: under sanitizers on a busy machine everything is slow.
template <class T, int seconds>
class TimedMailbox {
 public:
  void put(T value) {
    {
      const std::lock_guard lock(mutex_);
      values_.push_back(std::move(value));
    }
    changed_.notify_all();
  }
  std::optional<T> take(std::chrono::steady_clock::duration limit = std::chrono::seconds(seconds)) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return !values_.empty(); })) return std::nullopt;
    T value = std::move(values_.front());
    values_.erase(values_.begin());
    return value;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> values_;
};

}  // namespace linkcpp::test
