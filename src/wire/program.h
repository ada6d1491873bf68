// A region program: the op list that a worker replays over its own expert slices.
// It is shipped once a link and named by a digest of its encoding. No per-model code exists on a worker.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::wire {

/// The ops a region may hold. All are row-wise over (token, expert) pairs. Names are ggml's.
enum class OpKind : std::uint8_t {
  mul_mat_id = 1,  ///< sources: input rows, weight (stacked expert tensor [n_in, n_out, n_expert])
  add_id = 2,      ///< sources: rows, weight (stacked bias [n_out, n_expert])
  glu = 3,         ///< sources: rows (halves joined) or rows, rows
  unary = 4,
  clamp = 5,
  scale = 6,
  mul = 7,  ///< second source may be one element a pair (broadcast along the row)
  add = 8,
  sub = 9,
  div = 10,
  view = 11,  ///< a part of the row: `offset` and `n_out` in elements
  sqr = 12,
  sqrt = 13,
};

/// Where an op's source comes from.
struct Source {
  enum class Kind : std::uint8_t {
    none = 0,
    op = 1,      ///< result of op `index`, an earlier one
    input = 2,   ///< Program::inputs[index]
    weight = 3,  ///< Program::weights[index]
  };
  Kind kind = Kind::none;
  std::uint16_t index = 0;
  bool operator==(const Source&) const = default;
};

struct Op {
  OpKind kind = OpKind::mul_mat_id;
  std::uint32_t n_out = 0;                ///< elements of a result row
  std::uint32_t offset = 0;               ///< `view` only: first element
  std::array<std::int32_t, 16> params{};  ///< ggml's op_params, verbatim
  std::array<Source, 3> sources{};
  bool operator==(const Op&) const = default;
};

/// An activation that the backbone sends along.
struct Input {
  enum class Kind : std::uint8_t {
    token = 0,  ///< one row a token, shared by its pairs
    pair = 1,   ///< one row a (token, expert) pair; one element: a router weight
  };
  Kind kind = Kind::token;
  std::uint32_t n = 0;  ///< elements a row
  bool operator==(const Input&) const = default;
};

struct Program {
  std::vector<Input> inputs;
  /// Names of stacked expert tensors without their "blk.N." prefix: "ffn_gate_exps.weight".
  std::vector<std::string> weights;
  std::vector<Op> ops;
  std::uint16_t output = 0;  ///< index of the op whose pair rows are the result

  [[nodiscard]] std::uint32_t n_out() const { return ops[output].n_out; }
  bool operator==(const Program&) const = default;
};

/// Weight names have 1 to this many of A-Z a-z 0-9 _ and dot.
inline constexpr std::size_t max_weight_name = 64;
inline constexpr std::size_t max_program_ops = 64;
inline constexpr std::size_t max_program_inputs = 16;
inline constexpr std::size_t max_program_weights = 32;
inline constexpr std::uint32_t max_row_elements = 1u << 20;

/// Writes a program that satisfies check_program(); it has one encoding only.
void encode_program(const Program& program, Bytes& out);
/// Parses and checks everything that needs no weights: counts, source order, row lengths of every op, finite limits.
Result<Program> decode_program(ByteSpan body);
/// The structural checks of decode_program on a program in memory.
Result<> check_program(const Program& program);
/// First eight bytes of the SHA-256 of the encoding, read as a little-endian number.
std::uint64_t program_id(const Program& program);

}  // namespace linkcpp::wire
