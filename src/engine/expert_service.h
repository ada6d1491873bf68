// What the graph runner needs of the swarm: regions computed elsewhere. engine/ defines it, swarm/ implements it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "wire/program.h"

namespace linkcpp::engine {

/// One region of one pass, ready to be dispatched. Everything pointed to must live until await() returns.
struct RegionCall {
  std::uint16_t layer = 0;  ///< LayerKey
  std::uint64_t program_id = 0;
  const wire::Program* program = nullptr;
  std::uint32_t n_tokens = 0;
  std::uint32_t top_k = 0;
  std::span<const std::int32_t> experts;  ///< n_tokens * top_k selected expert ids, token-major
  /// Per program input: token inputs n_tokens rows, pair inputs n_tokens*top_k rows (token-major), each of Input::n floats.
  std::vector<std::span<const float>> inputs;
  bool sum = false;         ///< output: one summed row a token instead of a row a pair
  std::span<float> output;  ///< n_tokens (sum) or n_tokens*top_k (raw, token-major) rows of program->n_out()
};

/// What a pass made of the graph's matmuls with stacked expert tensors (MUL_MAT_ID): all of them either went to workers or stayed here.
struct PassSummary {
  std::uint32_t regions = 0;
  std::uint32_t matmuls = 0;     ///< in the graph, whatever their weights
  std::uint32_t dispatched = 0;  ///< of those, parts of regions
  /// Weights of those that the base computed, without "blk.N.": none, or tensors that workers do not hold ("attn_v_exps.weight").
  std::span<const std::string> on_base;
};

/// Threading: begin and await from the graph's compute thread; several graphs may do so at once.
class ExpertService {
 public:
  using Ticket = std::uint64_t;
  virtual ~ExpertService() = default;
  /// Splits and sends; returns at once.
  virtual Result<Ticket> begin(RegionCall& call) = 0;
  /// Blocks until the output is complete, an error is final, or `aborted` (polled, may be empty) returns true.
  virtual Result<> await(Ticket ticket, RegionCall& call, const std::function<bool()>& aborted) = 0;
  /// Gives up a ticket that was begun and not awaited; afterwards the call is not touched any more.
  virtual void abandon(Ticket ticket) = 0;
  /// A graph with regions, or with matmuls that might have been some, was computed; for the account.
  virtual void pass_done(const PassSummary& summary) = 0;
};

}  // namespace linkcpp::engine
