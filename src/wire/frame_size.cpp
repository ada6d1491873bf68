#include "wire/frame_size.h"

#include <algorithm>

namespace linkcpp::wire {

std::size_t input_bytes(const Input& input, RowType type, std::size_t n_tokens, std::size_t n_pairs) {
  const std::size_t n_rows = input.kind == Input::Kind::token ? n_tokens : n_pairs;
  return n_rows * row_bytes(effective_row_type(type, input.n), input.n);
}

std::size_t input_area_bytes(const Program& program, RowType type, std::size_t n_tokens, std::size_t n_pairs) {
  std::size_t bytes = 0;
  for (const Input& input : program.inputs) bytes += input_bytes(input, type, n_tokens, n_pairs);
  return bytes;
}

std::size_t dispatch_bytes(const Program& program, RowType type, std::size_t n_tokens, std::size_t n_pairs) {
  return dispatch_header_bytes + n_tokens * sizeof(std::uint8_t) + n_pairs * sizeof(std::uint16_t) +
         input_area_bytes(program, type, n_tokens, n_pairs);
}

std::size_t combine_bytes(const Program& program, RowType type, CombineMode mode, std::size_t n_tokens, std::size_t n_pairs) {
  const std::uint32_t n = program.n_out();
  return combine_header_bytes + (mode == CombineMode::raw ? n_pairs : n_tokens) * row_bytes(effective_row_type(type, n), n);
}

std::uint32_t tokens_in_a_frame(const Program& program, RowType type, CombineMode mode, std::uint32_t top_k) {
  if (top_k == 0 || top_k > max_token_pairs) return 0;
  // Both sizes are linear in the tokens.
  const std::size_t out = (max_frame_body - dispatch_header_bytes) / (dispatch_bytes(program, type, 1, top_k) - dispatch_header_bytes);
  const std::size_t back = (max_frame_body - combine_header_bytes) / (combine_bytes(program, type, mode, 1, top_k) - combine_header_bytes);
  return static_cast<std::uint32_t>(std::min({out, back, std::size_t{max_dispatch_tokens}, std::size_t{max_dispatch_pairs / top_k}}));
}

Result<std::vector<ByteSpan>> split_input_area(const Dispatch& dispatch, const Program& program) {
  const std::size_t expected = input_area_bytes(program, dispatch.row_type, dispatch.n_tokens, dispatch.pairs.size());
  if (dispatch.rows.size() != expected) {
    return fail(ErrorKind::invalid_input, "malformed dispatch: its program takes {} bytes of {} rows for {} tokens and {} pairs, got {}",
                expected, to_string(dispatch.row_type), dispatch.n_tokens, dispatch.pairs.size(), dispatch.rows.size());
  }
  std::vector<ByteSpan> parts;
  parts.reserve(program.inputs.size());
  ByteSpan rest = dispatch.rows;
  for (const Input& input : program.inputs) {
    const std::size_t n = input_bytes(input, dispatch.row_type, dispatch.n_tokens, dispatch.pairs.size());
    parts.push_back(rest.first(n));
    rest = rest.subspan(n);
  }
  return parts;
}

}  // namespace linkcpp::wire
