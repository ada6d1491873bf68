// The split: which worker computes which selected expert. Pure arithmetic on holdings and predicted times.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dispatch/dispatcher.h"

namespace linkcpp::dispatch {

/// What the split knows of a worker that may be sent to.
struct Candidate {
  WorkerId id = 0;
  const wire::LayerHolding* holding = nullptr;  ///< of the step's layer; never null
  double rtt_ns = 0;
  double per_pair_ns = 0;
};

struct SplitResult {
  std::vector<std::pair<WorkerId, std::vector<Pair>>> shares;  ///< by worker; pairs keep their order
  std::vector<Pair> uncovered;                                 ///< no candidate holds their expert
};

/// Few workers first: an untouched one is taken only where that lowers the predicted completion of the whole step by more than
/// `gain` (0.1: ten per cent). Candidates are in ascending order of id, which decides ties. All pairs of an expert stay together.
SplitResult split_pairs(std::span<const Pair> pairs, std::span<const Candidate> candidates, double gain);

}  // namespace linkcpp::dispatch
