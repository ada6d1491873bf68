// Rows of activations on the wire: how n floats become bytes and back.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::wire {

/// Element type of rows on the wire. F32 is the bit-identical reference; F16 rounds to nearest even (IEEE 754 binary16) and
/// saturates finite values at ±65504 (wire/half.h says why); INT8 and FP8 share a scale in blocks (wire/blocks.h).
enum class RowType : std::uint8_t { f32 = 0, f16 = 1, int8 = 2, fp8 = 3 };
inline constexpr int row_type_count = 4;
inline constexpr std::array<RowType, row_type_count> all_row_types{RowType::f32, RowType::f16, RowType::int8, RowType::fp8};

std::string_view to_string(RowType type);
Result<RowType> parse_row_type(std::string_view text);

/// Bytes of one row of n elements.
std::size_t row_bytes(RowType type, std::size_t n);
/// Row type really used for rows of n elements under a negotiated type: single elements (router weights) stay F32.
constexpr RowType effective_row_type(RowType type, std::uint32_t n) { return n == 1 ? RowType::f32 : type; }

/// Writes n_rows rows of n floats each, rows `stride` floats apart in `from`. `to` is exactly n_rows * row_bytes long.
void encode_rows(RowType type, const float* from, std::size_t n, std::size_t n_rows, std::size_t stride, std::span<std::byte> to);
/// The inverse. `from` is exactly n_rows * row_bytes long.
void decode_rows(RowType type, ByteSpan from, std::size_t n, std::size_t n_rows, float* to, std::size_t stride);

}  // namespace linkcpp::wire
