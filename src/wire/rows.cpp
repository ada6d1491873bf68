#include "wire/rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <bit>
#include <cassert>
#include <cstring>

namespace linkcpp::wire {
namespace {

constexpr float largest_half = 65504.0f;

/// Round to nearest even; finite values saturate, NaN stays NaN (quiet), infinities stay.
std::uint16_t to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<std::uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
  if (magnitude == 0x7F800000) return sign | 0x7C00;
  if (magnitude > std::bit_cast<std::uint32_t>(largest_half)) return sign | 0x7BFF;
  if (magnitude < 0x38800000) {  // below 2^-14: subnormal in half
    if (magnitude < 0x33000000) return sign;  // at most half of the smallest subnormal, ties to even zero (2^-25 itself included below)
    const int exponent = static_cast<int>(magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
    const int shift = 126 - exponent;
    const std::uint32_t half = 1u << (shift - 1);
    std::uint32_t result = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1);
    if (rest > half || (rest == half && (result & 1) != 0)) ++result;
    return static_cast<std::uint16_t>(sign | result);
  }
  const std::uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | (rounded - 0x38000000) >> 13);
}

float from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  std::uint32_t exponent = half >> 10 & 0x1F;
  std::uint32_t mantissa = half & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u));
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = 113;
    while ((mantissa & 0x400) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    return std::bit_cast<float>(sign | exponent << 23 | (mantissa & 0x3FF) << 13);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

void encode_scalar(const float* from, std::size_t n, std::byte* to) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t half = to_half(from[i]);
    std::memcpy(to + 2 * i, &half, sizeof half);
  }
}

void decode_scalar(const std::byte* from, std::size_t n, float* to) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t half;
    std::memcpy(&half, from + 2 * i, sizeof half);
    to[i] = from_half(half);
  }
}

#if defined(__x86_64__)
bool has_f16c() {
  static const bool value = __builtin_cpu_supports("f16c") != 0 && __builtin_cpu_supports("avx") != 0;
  return value;
}

__attribute__((target("avx,f16c"))) void encode_f16c(const float* from, std::size_t n, std::byte* to) {
  const __m256 limit = _mm256_set1_ps(largest_half), infinity = _mm256_set1_ps(__builtin_inff());
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 value = _mm256_loadu_ps(from + i);
    const __m256 magnitude = _mm256_andnot_ps(sign_bit, value);
    // Finite and too large: saturate. Ordered comparisons are false for NaN, which therefore passes unchanged.
    const __m256 large = _mm256_and_ps(_mm256_cmp_ps(magnitude, limit, _CMP_GT_OQ), _mm256_cmp_ps(magnitude, infinity, _CMP_LT_OQ));
    const __m256 saturated = _mm256_or_ps(_mm256_and_ps(value, sign_bit), limit);
    const __m128i half = _mm256_cvtps_ph(_mm256_blendv_ps(value, saturated, large), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i), half);
  }
  encode_scalar(from + i, n - i, to + 2 * i);
}

__attribute__((target("avx,f16c"))) void decode_f16c(const std::byte* from, std::size_t n, float* to) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
  }
  decode_scalar(from + 2 * i, n - i, to + i);
}
#endif

void encode_half(const float* from, std::size_t n, std::byte* to) {
#if defined(__x86_64__)
  if (has_f16c()) return encode_f16c(from, n, to);
#endif
  encode_scalar(from, n, to);
}

void decode_half(const std::byte* from, std::size_t n, float* to) {
#if defined(__x86_64__)
  if (has_f16c()) return decode_f16c(from, n, to);
#endif
  decode_scalar(from, n, to);
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
  if (stride == n) {  // dense: one long row
    n *= n_rows;
    n_rows = n == 0 ? 0 : 1;
  }
  std::byte* out = to.data();
  for (std::size_t r = 0; r < n_rows; ++r, from += stride, out += row_bytes(type, n)) {
    if (type == RowType::f32) {
      std::memcpy(out, from, n * sizeof(float));
    } else {
      encode_half(from, n, out);
    }
  }
}

void decode_rows(RowType type, ByteSpan from, std::size_t n, std::size_t n_rows, float* to, std::size_t stride) {
  assert(from.size() == n_rows * row_bytes(type, n));
  if (stride == n) {
    n *= n_rows;
    n_rows = n == 0 ? 0 : 1;
  }
  const std::byte* in = from.data();
  for (std::size_t r = 0; r < n_rows; ++r, to += stride, in += row_bytes(type, n)) {
    if (type == RowType::f32) {
      std::memcpy(to, in, n * sizeof(float));
    } else {
      decode_half(in, n, to);
    }
  }
}

}  // namespace linkcpp::wire
