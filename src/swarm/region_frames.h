// Between a region call and the wire: a dispatch frame out of the call's rows, and the rows of a combine back into its output.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "dispatch/dispatcher.h"
#include "engine/expert_service.h"
#include "wire/messages.h"

namespace linkcpp::swarm {

/// A worker's partial sums for some tokens of a call.
struct PartialSum {
  dispatch::WorkerId worker = 0;
  std::vector<std::uint32_t> tokens;
  std::vector<float> rows;  ///< tokens.size() rows of n_out
};

struct EncodedDispatch {
  Bytes frame;
  std::uint32_t n_tokens = 0;
  std::size_t payload = 0;  ///< bytes of rows
};

/// Encodes the rows that these pairs need. Pairs are sorted by token, then index.
EncodedDispatch encode_dispatch(const engine::RegionCall& call, std::span<const dispatch::Pair> pairs, std::uint64_t request,
                                wire::CombineMode mode, wire::RowType type);

/// Distinct tokens of the pairs, ascending.
std::vector<std::uint32_t> tokens_of(std::span<const dispatch::Pair> pairs);

/// Checks that an answer has the shape that was asked for.
Result<> check_combine(const wire::Combine& combine, const engine::RegionCall& call, std::size_t n_rows, wire::CombineMode mode,
                       wire::RowType type);

/// Raw answer: every row goes to its pair's place.
void place_rows(const wire::Combine& combine, std::span<const dispatch::Pair> pairs, engine::RegionCall& call);

/// Adds partial sums in the order of workers, not of arrival, so that the same split gives the same bits.
void add_partials(std::vector<PartialSum>& partials, engine::RegionCall& call);

}  // namespace linkcpp::swarm
