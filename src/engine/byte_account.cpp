#include "engine/byte_account.h"

#include <algorithm>

namespace linkcpp::engine {
namespace {

// Layout of a dispatch body (wire/messages.h): layer u16, mode u8, row type u8, program u64, n_tokens u32, n_pairs u32;
// then a u8 count a token and a u16 expert a pair.
constexpr std::uint64_t dispatch_fixed_bytes = 2 + 1 + 1 + 8 + 4 + 4;
constexpr std::uint64_t count_bytes = 1, expert_bytes = 2, scalar_bytes = sizeof(float);

std::uint64_t row_bytes(wire::RowType type, std::uint32_t n) { return wire::row_bytes(wire::effective_row_type(type, n), n); }

}  // namespace

StepBytes& StepBytes::operator+=(const StepBytes& other) {
  dispatch += other.dispatch;
  combine += other.combine;
  dispatch_rows += other.dispatch_rows;
  combine_rows += other.combine_rows;
  return *this;
}

StepBytes exchange_bytes(const StepShape& shape, std::uint64_t n_tokens, std::uint64_t n_pairs, wire::CombineMode mode, wire::RowType type) {
  StepBytes bytes;
  bytes.dispatch_rows = n_tokens * row_bytes(type, shape.n_in);
  bytes.dispatch = wire::frame_header_bytes + dispatch_fixed_bytes + n_tokens * count_bytes +
                   n_pairs * (expert_bytes + shape.pair_scalars * scalar_bytes) + bytes.dispatch_rows;
  bytes.combine_rows = (mode == wire::CombineMode::raw ? n_pairs : n_tokens) * row_bytes(type, shape.n_out);
  bytes.combine = wire::frame_header_bytes + wire::combine_header_bytes + bytes.combine_rows;
  return bytes;
}

StepBytes token_bytes(const StepShape& shape, std::uint32_t workers, wire::CombineMode mode, wire::RowType type) {
  StepBytes total;
  workers = std::min(workers, shape.top_k);
  for (std::uint32_t worker = 0; worker < workers; ++worker) {
    const std::uint32_t pairs = shape.top_k / workers + (worker < shape.top_k % workers ? 1 : 0);
    total += exchange_bytes(shape, 1, pairs, mode, type);
  }
  return total;
}

}  // namespace linkcpp::engine
