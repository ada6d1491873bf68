// How much somebody may do in a while.
#pragma once

#include <algorithm>
#include <chrono>

namespace linkcpp::relay {

using Clock = std::chrono::steady_clock;

/// A bucket that fills at a steady rate: what is in it may be taken at once. Pure: the caller brings the time.
class Bucket {
 public:
  /// `rate`: units a second, 0: unlimited. `burst`: what the bucket holds.
  Bucket(double rate, double burst) : rate_(rate), burst_(burst), level_(burst) {}

  /// Takes `n` if that much is there.
  bool take(double n, Clock::time_point now) {
    if (rate_ <= 0) return true;
    fill(now);
    if (level_ < n) return false;
    level_ -= n;
    return true;
  }
  /// Takes `n`, also into debt: until pause() has passed nothing more should be taken.
  void owe(double n, Clock::time_point now) {
    if (rate_ <= 0) return;
    fill(now);
    level_ -= n;
  }
  /// How long until the bucket is out of debt.
  [[nodiscard]] Clock::duration pause(Clock::time_point now) {
    if (rate_ <= 0) return {};
    fill(now);
    if (level_ >= 0) return {};
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(-level_ / rate_)) + std::chrono::microseconds(1);
  }
  /// Whether it is as if nobody had ever taken anything.
  [[nodiscard]] bool full(Clock::time_point now) {
    fill(now);
    return rate_ <= 0 || level_ >= burst_;
  }

 private:
  void fill(Clock::time_point now) {
    if (filled_ != Clock::time_point()) level_ = std::min(burst_, level_ + rate_ * std::chrono::duration<double>(now - filled_).count());
    filled_ = now;
  }
  double rate_, burst_, level_;
  Clock::time_point filled_{};
};

}  // namespace linkcpp::relay
