#include "wire/rows.h"

#include <cassert>
#include <cstring>

#include "wire/half.h"

namespace linkcpp::wire {
namespace {

void encode_row(RowType type, const float* from, std::size_t n, std::byte* to) {
  if (type == RowType::f16) return halves_from_floats(from, n, to);
  if (n > 0) std::memcpy(to, from, n * sizeof(float));
}

void decode_row(RowType type, const std::byte* from, std::size_t n, float* to) {
  if (type == RowType::f16) return floats_from_halves(from, n, to);
  if (n > 0) std::memcpy(to, from, n * sizeof(float));
}

}  // namespace

std::string_view to_string(RowType type) { return type == RowType::f32 ? "f32" : "f16"; }

Result<RowType> parse_row_type(std::string_view text) {
  if (text == "f32") return RowType::f32;
  if (text == "f16") return RowType::f16;
  return fail(ErrorKind::invalid_input, "unknown wire type '{}': f32 and f16 exist", text);
}

std::size_t row_bytes(RowType type, std::size_t n) { return n * (type == RowType::f32 ? 4 : 2); }

void encode_rows(RowType type, const float* from, std::size_t n, std::size_t n_rows, std::size_t stride, std::span<std::byte> to) {
  assert(to.size() == n_rows * row_bytes(type, n));
  if (stride == n) return encode_row(type, from, n * n_rows, to.data());  // dense: one long row
  for (std::size_t r = 0; r < n_rows; ++r) encode_row(type, from + r * stride, n, to.data() + r * row_bytes(type, n));
}

void decode_rows(RowType type, ByteSpan from, std::size_t n, std::size_t n_rows, float* to, std::size_t stride) {
  assert(from.size() == n_rows * row_bytes(type, n));
  if (stride == n) return decode_row(type, from.data(), n * n_rows, to);
  for (std::size_t r = 0; r < n_rows; ++r) decode_row(type, from.data() + r * row_bytes(type, n), n, to + r * stride);
}

}  // namespace linkcpp::wire
