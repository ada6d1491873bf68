#include "worker/job_queue.h"

#include <utility>

namespace linkcpp::worker {
namespace {

/// Floats that computing a job needs beside its frame. Its program is bounded and so is its frame, so this does not overflow.
std::size_t memory_of(const Job& job) {
  const std::size_t n_pairs = job.dispatch.pairs.size(), n_tokens = job.dispatch.n_tokens;
  std::size_t elements = (job.dispatch.mode == wire::CombineMode::sum ? n_tokens : n_pairs) * job.program->n_out();
  for (const wire::Input& input : job.program->inputs) elements += (input.kind == wire::Input::Kind::token ? n_tokens : n_pairs) * input.n;
  return elements * sizeof(float);
}

}  // namespace

std::vector<Job> JobQueue::take(std::size_t max_bytes) {
  std::vector<Job> batch;
  if (waiting_.empty()) return batch;
  batch.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  const std::uint16_t layer = batch.front().dispatch.layer;
  const ProgramPtr program = batch.front().program;
  std::size_t bytes = memory_of(batch.front());
  std::deque<Job> others;
  for (Job& job : waiting_) {
    if (job.dispatch.layer == layer && job.program == program && bytes + memory_of(job) <= max_bytes) {
      bytes += memory_of(job);
      batch.push_back(std::move(job));
    } else {
      others.push_back(std::move(job));
    }
  }
  waiting_ = std::move(others);
  for (const Job& job : batch) {
    --job.session->queued_requests;
    job.session->queued_bytes -= job.body.size();
  }
  return batch;
}

void JobQueue::drop(const SessionPtr& session) {
  std::erase_if(waiting_, [&](const Job& job) { return job.session == session; });
}

}  // namespace linkcpp::worker
