// Carries out actions a fixed time later, in order: the artificial delay of experiments.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <utility>

namespace linkcpp::worker {

/// Touched by event handlers only. Actions are kept here and not in the timer's handler, so that what they hold (links) goes before the
/// event loop does.
class DelayLine {
 public:
  using Clock = std::chrono::steady_clock;
  DelayLine(boost::asio::io_context& context, Clock::duration delay) : delay_(delay), timer_(context) {}

  /// Without a delay the action runs at once.
  void push(std::function<void()> action) {
    if (delay_ == Clock::duration::zero()) return action();
    waiting_.push_back({Clock::now() + delay_, std::move(action)});
    if (waiting_.size() == 1) arm();
  }
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  void clear() {
    timer_.cancel();
    waiting_.clear();
  }

 private:
  struct Entry {
    Clock::time_point due;
    std::function<void()> action;
  };

  void arm() {
    timer_.expires_at(waiting_.front().due);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) fire();
    });
  }
  void fire() {
    const auto now = Clock::now();
    while (!waiting_.empty() && waiting_.front().due <= now) {
      const Entry entry = std::move(waiting_.front());
      waiting_.pop_front();
      entry.action();
    }
    if (!waiting_.empty()) arm();
  }

  Clock::duration delay_;
  boost::asio::steady_timer timer_;
  std::deque<Entry> waiting_;
};

}  // namespace linkcpp::worker
