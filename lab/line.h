// One direction of an access line: when does a packet that enters now come out, if ever? Pure.
//
// In this order, as on a real line: a bounded queue before the bottleneck, its rate, loss, and then the way itself with jitter, which keeps
// the order of packets.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>

namespace linkcpp::lab {

/// Since any fixed moment.
using Time = std::chrono::nanoseconds;

struct LineShape {
  Time delay{};
  Time jitter{};                           ///< a packet is late by up to this, uniformly
  double loss = 0;                         ///< share of packets, 0 to 1
  double burst = 1;                        ///< mean number of packets that are lost in a row (Gilbert); 1: independent
  double bytes_per_second = 0;             ///< 0: unlimited
  std::uint64_t queue_bytes = 256u << 10;  ///< what waits for the bottleneck at most; more is dropped
};

struct LineCounters {
  std::uint64_t packets = 0, bytes = 0;  ///< that entered
  std::uint64_t lost = 0, dropped = 0;   ///< by chance; by a full queue
};

/// Not thread-safe. The same seed and the same calls give the same answers.
class Line {
 public:
  Line(LineShape shape, std::uint64_t seed) : shape_(shape), random_(seed) {}
  /// When the packet comes out; none: it does not. Calls in the order of `now`.
  std::optional<Time> admit(std::uint64_t bytes, Time now);
  /// From now on; packets under way keep their times, and nothing overtakes them.
  void reshape(LineShape shape) { shape_ = shape; }
  [[nodiscard]] const LineShape& shape() const { return shape_; }
  [[nodiscard]] const LineCounters& counters() const { return counters_; }

 private:
  bool lose();
  double chance() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  LineShape shape_;
  std::mt19937_64 random_;
  LineCounters counters_;
  bool losing_ = false;
  Time free_at_{};   ///< when the bottleneck has sent what it holds
  Time last_out_{};  ///< no packet overtakes another
};

}  // namespace linkcpp::lab
