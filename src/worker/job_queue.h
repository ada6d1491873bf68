// Requests that wait for the compute thread.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "worker/session.h"

namespace linkcpp::worker {

/// First in, first out, except that whatever waits for the same layer and program goes along with the first.
/// Touched by event handlers only.
class JobQueue {
 public:
  void push(Job job) { waiting_.push_back(std::move(job)); }
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] std::size_t size() const { return waiting_.size(); }

  /// The oldest job and those that can be merged with it, in order, as long as their rows and results stay below `max_bytes` in memory.
  /// Empty if nothing waits.
  std::vector<Job> take(std::size_t max_bytes);
  /// Forgets what came over a link that has ended.
  void drop(const SessionPtr& session);
  void clear() { waiting_.clear(); }

 private:
  std::deque<Job> waiting_;
};

}  // namespace linkcpp::worker
