#include "engine/byte_account.h"

#include <algorithm>

#include "wire/frame.h"
#include "wire/frame_size.h"
#include "wire/program.h"

namespace linkcpp::engine {
namespace {

/// A program with a layer's inputs and result row; what it computes does not matter for its size on the wire.
wire::Program program_of(const StepShape& shape) {
  wire::Program program;
  program.inputs.push_back({wire::Input::Kind::token, shape.n_in});
  program.inputs.insert(program.inputs.end(), shape.pair_scalars, {wire::Input::Kind::pair, 1});
  program.ops.push_back({.n_out = shape.n_out});
  return program;
}

}  // namespace

StepBytes& StepBytes::operator+=(const StepBytes& other) {
  dispatch += other.dispatch;
  combine += other.combine;
  dispatch_rows += other.dispatch_rows;
  combine_rows += other.combine_rows;
  return *this;
}

StepBytes exchange_bytes(const StepShape& shape, std::uint64_t n_tokens, std::uint64_t n_pairs, wire::CombineMode mode,
                         wire::RowType type) {
  const wire::Program program = program_of(shape);
  StepBytes bytes;
  bytes.dispatch = wire::frame_header_bytes + wire::dispatch_bytes(program, type, n_tokens, n_pairs);
  bytes.combine = wire::frame_header_bytes + wire::combine_bytes(program, type, mode, n_tokens, n_pairs);
  bytes.dispatch_rows = wire::input_bytes(program.inputs[0], type, n_tokens, n_pairs);
  bytes.combine_rows = bytes.combine - wire::frame_header_bytes - wire::combine_header_bytes;
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
