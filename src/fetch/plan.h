// Decides which slice comes from which source next, and what a failure means. Pure: no sockets, clocks, threads.
//
// A slice is tried at each source that may have it, lower tiers first, within a tier the least busy one. When all have failed, that was a
// round: the slice rests, twice as long each time, and all are asked anew. A source that breaks down rests too. A source whose bytes have
// the wrong digest is not asked for that slice again, and after some of those not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace linkcpp::fetch {

struct PlanKnobs {
  int wrong_limit = 3;  ///< wrong digests before a source is barred
  std::chrono::milliseconds backoff_min{500};
  std::chrono::milliseconds backoff_max{30'000};
  std::chrono::milliseconds busy_pause{500};  ///< another process is writing the slice into the same store
  int give_up_rounds = 0;                     ///< rounds after which a slice is given up; 0: never
};

/// How a transfer ended.
enum class Outcome {
  done,      ///< verified, in the store
  missing,   ///< the source does not have the slice (yet)
  vanished,  ///< the source failed; what arrived is kept
  useless,   ///< the source cannot be used at all
  wrong,     ///< wrong digest, and all bytes came from this source
  tainted,   ///< wrong digest, but some bytes were there before: nobody knows who lied. They are gone; the source is asked again from zero
  local,     ///< this machine could not write: disk full
  busy,      ///< another process is writing the slice
  stopped,   ///< ended for a reason that is nobody's fault
};

/// Not thread-safe. Times are since any fixed moment.
class Plan {
 public:
  using Time = std::chrono::nanoseconds;
  struct Job {
    std::size_t slice, source;
    bool operator==(const Job&) const = default;
  };

  explicit Plan(PlanKnobs knobs) : knobs_(knobs) {}

  std::size_t add_slice();
  std::size_t add_source(int tier, unsigned max_parallel = 0);
  void remove_source(std::size_t source);
  /// The slice is in the store.
  void have(std::size_t slice);

  /// The most urgent transfer that can begin now; it counts as running until finish().
  std::optional<Job> next(Time now);
  void finish(Job job, Outcome outcome, Time now);
  /// When next() may have something although it has nothing now and no transfer ends; none: never.
  [[nodiscard]] std::optional<Time> wake() const;

  [[nodiscard]] bool is_done(std::size_t slice) const { return slices_[slice].state == State::done; }
  [[nodiscard]] bool is_failed(std::size_t slice) const { return slices_[slice].state == State::failed; }
  [[nodiscard]] bool barred(std::size_t source) const { return sources_[source].barred; }
  [[nodiscard]] std::size_t failed() const { return failed_; }
  /// Every slice is done or given up.
  [[nodiscard]] bool finished() const { return open_ == 0; }

 private:
  enum class State : std::uint8_t { pending, running, done, failed };
  struct Slice {
    State state = State::pending;
    std::set<std::size_t> asked;       ///< in this round
    std::set<std::size_t> lied;        ///< never again
    std::optional<std::size_t> again;  ///< the source that is asked next, to find out whether it lies
    Time rest_until{};
    int rounds = 0;
  };
  struct Source {
    int tier = 0;
    unsigned max_parallel = 0, running = 0;
    bool barred = false;
    int wrong = 0, failures = 0;
    Time rest_until{};
  };
  [[nodiscard]] bool may(const Slice& slice, std::size_t source) const;
  [[nodiscard]] bool broken(std::size_t source, Time now) const;
  std::optional<std::size_t> choose(Slice& slice, Time now);
  void end_round(Slice& slice, Time now);
  void close(Slice& slice, State state);
  [[nodiscard]] Time backoff(int failures) const;

  PlanKnobs knobs_;
  std::vector<Slice> slices_;
  std::vector<Source> sources_;
  std::size_t open_ = 0, failed_ = 0;
  std::size_t first_ = 0;  ///< all before are closed
  Time pause_until_{};     ///< the disk is full
};

}  // namespace linkcpp::fetch
