// From jobs to answers: decodes rows, runs the expert host once for all jobs of a batch, encodes the combine frames.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "engine/expert_host.h"
#include "worker/session.h"

namespace linkcpp::worker {

/// The frame that answers one job: combine, or failed with the reason.
struct Answer {
  SessionPtr session;
  Bytes frame;
};

/// Counters for the log.
struct ComputeCounters {
  std::uint64_t requests = 0, tokens = 0, pairs = 0, batches = 0, failures = 0;
  std::chrono::nanoseconds compute{0};
  ComputeCounters& operator+=(const ComputeCounters& other);
};

/// Float copies of a job's rows, and room for its result.
struct JobRows {
  std::vector<std::vector<float>> inputs;
  std::vector<float> output;
};
/// Kept from batch to batch by whoever computes, so that megabytes need not be asked of the system and cleared for every layer.
using Scratch = std::vector<JobRows>;

/// Computes jobs of one layer and program. A job that cannot be computed is answered with the reason and does not spoil the others.
std::vector<Answer> compute(engine::ExpertHost& host, std::span<const Job> batch, Scratch& scratch, ComputeCounters& counters);

/// A `failed` frame.
Bytes failure_frame(std::uint64_t request, const Error& error);

}  // namespace linkcpp::worker
