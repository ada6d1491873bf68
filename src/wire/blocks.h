// Rows in blocks that share a scale: 8-bit integers, and 8-bit floats (E4M3).
#pragma once

#include <cstddef>
#include <span>

#include "base/bytes.h"

namespace linkcpp::wire {

/// A block is its scale, then one byte an element; the last block of a row may be shorter. In both formats
///  * the scale is such that no finite element overflows, whatever its size;
///  * a block whose largest magnitude is below 2^-100 becomes zero;
///  * a block with an infinity or NaN becomes NaN as a whole: what was broken before must not look healthy after.

/// 32 elements, scale in bfloat16 (rounded up), elements -127..127: value = scale * element. Error at most half a scale, which is 1/254 of
/// the block's largest magnitude (up to 0.8 % more by the rounding of the scale). As ggml's Q8_0 but for the kind of the scale: halves
/// would overflow.
inline constexpr std::size_t int8_block = 32, int8_scale_bytes = 2;
/// 128 elements, scale in binary32, elements in E4M3 (OCP 8-bit floating point: 4 exponent bits, 3 of mantissa, largest 448, no
/// infinities): value = scale * element. Error at most 1/16 of each element, or half of 1/229376 of the block's largest magnitude. Blocks
/// and scale are those of the activations in DeepSeek-V3 (arXiv:2412.19437, 3.3.2).
inline constexpr std::size_t fp8_block = 128, fp8_scale_bytes = 4;

/// Bytes of a row of n elements.
constexpr std::size_t blocks_bytes(std::size_t n, std::size_t block, std::size_t scale_bytes) {
  return n + (n + block - 1) / block * scale_bytes;
}

/// One row of n floats each; the bytes have any alignment. Encoding is the same on every machine, bit for bit.
void encode_int8(const float* from, std::size_t n, std::byte* to);
void decode_int8(const std::byte* from, std::size_t n, float* to);
void encode_fp8(const float* from, std::size_t n, std::byte* to);
void decode_fp8(const std::byte* from, std::size_t n, float* to);

/// The same without vector instructions beyond the compiler's baseline, bit for bit; for machines without them, and for tests.
void encode_int8_portable(const float* from, std::size_t n, std::byte* to);
void decode_int8_portable(const std::byte* from, std::size_t n, float* to);
void encode_fp8_portable(const float* from, std::size_t n, std::byte* to);
void decode_fp8_portable(const std::byte* from, std::size_t n, float* to);

}  // namespace linkcpp::wire
