// How many bytes the bodies of dispatch and combine take: to cut a row area, to reserve memory, and to stay below the largest frame.
#pragma once

#include <cstddef>
#include <vector>

#include "wire/messages.h"
#include "wire/program.h"

namespace linkcpp::wire {

/// Bytes of one input's rows.
std::size_t input_bytes(const Input& input, RowType type, std::size_t n_tokens, std::size_t n_pairs);
/// Bytes of the row area of a dispatch: the rows of all inputs of its program.
std::size_t input_area_bytes(const Program& program, RowType type, std::size_t n_tokens, std::size_t n_pairs);
/// Bytes of a whole dispatch body.
std::size_t dispatch_bytes(const Program& program, RowType type, std::size_t n_tokens, std::size_t n_pairs);
/// Bytes of the combine body that answers it.
std::size_t combine_bytes(const Program& program, RowType type, CombineMode mode, std::size_t n_tokens, std::size_t n_pairs);

/// Most tokens, each with `top_k` pairs, whose dispatch and answer both stay within the limits of a frame, of tokens and of pairs.
/// 0 if not even one does. A call with more tokens must be sent in parts.
std::uint32_t tokens_in_a_frame(const Program& program, RowType type, CombineMode mode, std::uint32_t top_k);

/// Cuts the row area of a received dispatch by its program's inputs, in their order; the parts point into the body.
/// Fails with `invalid_input` unless it is exactly as long as the program says. The program must satisfy check_program().
Result<std::vector<ByteSpan>> split_input_area(const Dispatch& dispatch, const Program& program);

}  // namespace linkcpp::wire
