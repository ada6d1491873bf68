// Brings wanted slices into a store: several at a time, from the best source that has them, until all are there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "fetch/plan.h"
#include "store/source.h"
#include "store/store.h"

namespace linkcpp::fetch {

/// Where slices may come from.
struct Source {
  std::string name;  ///< for people
  int tier = 0;      ///< lower is asked first (own disk 0, peers 1, backbone 2, web 3); the load is spread within a tier
  /// A connection of its own for each thread that reads. May be called from any thread.
  std::function<Result<std::unique_ptr<store::SliceSource>>()> open;
  unsigned max_parallel = 0;  ///< transfers at a time from this source; 0: no limit of its own
};

struct FetchKnobs {
  unsigned parallel = 4;  ///< transfers at a time
  PlanKnobs plan;
};

struct FetchHandlers {
  /// A slice is whole and verified in the store (once each; also for those that were there already). On one of the fetcher's threads, one
  /// call at a time.
  std::function<void(const store::Wanted&)> on_slice;
  /// A sentence for people, once for each distinct problem. On one of the fetcher's threads, one call at a time.
  std::function<void(const std::string&)> on_problem;
};

struct FetchProgress {
  std::uint64_t slices = 0, slices_done = 0, slices_failed = 0;
  std::uint64_t bytes = 0;       ///< of all wanted slices
  std::uint64_t bytes_done = 0;  ///< in the store or received so far
  std::uint64_t bytes_had = 0;   ///< of bytes_done: were in the store at the start, whole or in part
  struct SourceCount {
    std::string name;
    std::uint64_t bytes = 0, slices = 0;
  };
  std::vector<SourceCount> sources;  ///< what was fetched, by source, in the order of their adding
  double bytes_per_second = 0;       ///< lately
  double seconds_left = -1;          ///< negative: not known
  std::string last_problem;
  [[nodiscard]] std::uint64_t fetched() const;  ///< from all sources
};

/// Threading: all functions from any thread, but stop() and the destructor not from a handler.
class Fetcher {
 public:
  static std::unique_ptr<Fetcher> start(std::shared_ptr<store::Store> store, FetchKnobs knobs, FetchHandlers handlers);
  /// As stop().
  virtual ~Fetcher() = default;

  /// Adds slices, less urgent than those before. Ones that were wanted before (by digest) are not taken twice.
  virtual void want(const std::vector<store::Wanted>& slices) = 0;
  /// Sources may come at any time. Returns the number of the source.
  virtual std::size_t add(Source source) = 0;
  /// It is asked no more; a transfer in progress ends.
  virtual void remove(std::size_t source) = 0;

  [[nodiscard]] virtual FetchProgress progress() const = 0;
  /// Waits until every wanted slice is there or given up (PlanKnobs::give_up_rounds), at most `limit`; true if so.
  virtual bool wait(std::chrono::milliseconds limit) = 0;
  /// Ends transfers soon and keeps what arrived of them.
  virtual void stop() = 0;
};

}  // namespace linkcpp::fetch
