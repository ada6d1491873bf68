#include "wire/rows.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "wire/blocks.h"
#include "wire/half.h"

namespace linkcpp::wire {
namespace {

void encode_row(RowType type, const float* from, std::size_t n, std::byte* to) {
  switch (type) {
    case RowType::f32:
      if (n > 0) std::memcpy(to, from, n * sizeof(float));
      return;
    case RowType::f16:
      return halves_from_floats(from, n, to);
    case RowType::int8:
      return encode_int8(from, n, to);
    case RowType::fp8:
      return encode_fp8(from, n, to);
  }
}

void decode_row(RowType type, const std::byte* from, std::size_t n, float* to) {
  switch (type) {
    case RowType::f32:
      if (n > 0) std::memcpy(to, from, n * sizeof(float));
      return;
    case RowType::f16:
      return floats_from_halves(from, n, to);
    case RowType::int8:
      return decode_int8(from, n, to);
    case RowType::fp8:
      return decode_fp8(from, n, to);
  }
}

/// Elements that a row must have a multiple of for dense rows to be encoded as one long row.
constexpr std::size_t block_of(RowType type) { return type == RowType::int8 ? int8_block : type == RowType::fp8 ? fp8_block : 1; }

}  // namespace

std::string_view to_string(RowType type) {
  constexpr std::array<std::string_view, row_type_count> names{"f32", "f16", "int8", "fp8"};
  return names[static_cast<std::size_t>(type)];
}

Result<RowType> parse_row_type(std::string_view text) {
  for (const RowType type : all_row_types) {
    if (text == to_string(type)) return type;
  }
  return fail(ErrorKind::invalid_input, "unknown wire type '{}': f32, f16, int8 and fp8 exist", text);
}

std::size_t row_bytes(RowType type, std::size_t n) {
  switch (type) {
    case RowType::f32:
      return n * 4;
    case RowType::f16:
      return n * 2;
    case RowType::int8:
      return blocks_bytes(n, int8_block, int8_scale_bytes);
    case RowType::fp8:
      return blocks_bytes(n, fp8_block, fp8_scale_bytes);
  }
  std::unreachable();
}

void encode_rows(RowType type, const float* from, std::size_t n, std::size_t n_rows, std::size_t stride, std::span<std::byte> to) {
  assert(to.size() == n_rows * row_bytes(type, n));
  if (stride == n && n % block_of(type) == 0) return encode_row(type, from, n * n_rows, to.data());  // dense: one long row
  for (std::size_t r = 0; r < n_rows; ++r) encode_row(type, from + r * stride, n, to.data() + r * row_bytes(type, n));
}

void decode_rows(RowType type, ByteSpan from, std::size_t n, std::size_t n_rows, float* to, std::size_t stride) {
  assert(from.size() == n_rows * row_bytes(type, n));
  if (stride == n && n % block_of(type) == 0) return decode_row(type, from.data(), n * n_rows, to);
  for (std::size_t r = 0; r < n_rows; ++r) decode_row(type, from.data() + r * row_bytes(type, n), n, to + r * stride);
}

}  // namespace linkcpp::wire
