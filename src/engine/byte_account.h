// How many bytes a layer costs on the wire, by calculation: what counters on a real link show, to the byte.
#pragma once

#include <cstdint>

#include "wire/messages.h"
#include "wire/rows.h"

namespace linkcpp::engine {

/// What the rows of one MoE layer look like.
struct StepShape {
  std::uint32_t n_in = 0;          ///< elements of a token's input row (n_embd, or the latent width)
  std::uint32_t n_out = 0;         ///< elements of a result row
  std::uint32_t top_k = 0;         ///< experts used a token
  std::uint32_t pair_scalars = 1;  ///< inputs of one element a pair (the router's weight); always F32
};

/// Bytes of frames, headers included, before encryption.
struct StepBytes {
  std::uint64_t dispatch = 0;       ///< backbone to workers
  std::uint64_t combine = 0;        ///< workers to backbone
  std::uint64_t dispatch_rows = 0;  ///< of these, rows of n_in: the rest is headers, expert ids and router weights
  std::uint64_t combine_rows = 0;
  StepBytes& operator+=(const StepBytes& other);
  bool operator==(const StepBytes&) const = default;
};

/// One dispatch to one worker and its answer: n_tokens tokens, n_pairs of their (token, expert) pairs.
StepBytes exchange_bytes(const StepShape& shape, std::uint64_t n_tokens, std::uint64_t n_pairs, wire::CombineMode mode, wire::RowType type);

/// One layer and token, its pairs spread evenly over `workers` touched workers (at most top_k can be touched).
StepBytes token_bytes(const StepShape& shape, std::uint32_t workers, wire::CombineMode mode, wire::RowType type);

}  // namespace linkcpp::engine
