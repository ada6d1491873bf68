#include "wire/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>

namespace linkcpp::wire {
namespace {

constexpr std::uint32_t float_infinity = 0x7F800000;
constexpr std::uint32_t float_of_least_normal_half = 0x38800000;    // 2^-14
constexpr std::uint32_t float_of_half_the_least_half = 0x33000000;  // 2^-25: a tie between zero and the least half

/// Below the normal halves: the result counts units of 2^-24.
std::uint16_t subnormal_half(std::uint32_t magnitude) {
  if (magnitude < float_of_half_the_least_half) return 0;
  const int shift = 126 - static_cast<int>(magnitude >> 23);  // 14 to 24
  const std::uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  const std::uint32_t half_unit = 1u << (shift - 1);
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  std::uint32_t result = mantissa >> shift;
  if (rest > half_unit || (rest == half_unit && (result & 1) != 0)) ++result;  // may become the least normal half: the next code
  return static_cast<std::uint16_t>(result);
}

std::uint16_t half_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  std::uint32_t half = 0;
  if (magnitude > float_infinity) {
    half = 0x7E00 | (magnitude >> 13 & 0x3FF);
  } else if (magnitude == float_infinity) {
    half = 0x7C00;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(largest_half)) {
    half = 0x7BFF;
  } else if (magnitude < float_of_least_normal_half) {
    half = subnormal_half(magnitude);
  } else {
    const std::uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    half = (rounded >> 13) - ((127 - 15) << 10);
  }
  return static_cast<std::uint16_t>(sign | half);
}

float float_from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1F;
  const std::uint32_t mantissa = half & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | float_infinity | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u));
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact: a normal float
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

#if defined(__x86_64__)
bool has_f16c() {
  static const bool value = __builtin_cpu_supports("f16c") != 0 && __builtin_cpu_supports("avx") != 0;
  return value;
}

__attribute__((target("avx,f16c"))) void halves_from_floats_f16c(const float* from, std::size_t n, std::byte* to) {
  const __m256 limit = _mm256_set1_ps(largest_half), infinity = _mm256_set1_ps(__builtin_inff()), sign_bit = _mm256_set1_ps(-0.0f);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 value = _mm256_loadu_ps(from + i);
    const __m256 magnitude = _mm256_andnot_ps(sign_bit, value);
    const __m256 saturated = _mm256_or_ps(_mm256_and_ps(value, sign_bit), _mm256_min_ps(magnitude, limit));
    // An ordered comparison is false for NaN, which thus passes as it is, and so does infinity.
    const __m256 finite = _mm256_cmp_ps(magnitude, infinity, _CMP_LT_OQ);
    const __m128i half = _mm256_cvtps_ph(_mm256_blendv_ps(value, saturated, finite), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i), half);
  }
  halves_from_floats_portable(from + i, n - i, to + 2 * i);
}

__attribute__((target("avx,f16c"))) void floats_from_halves_f16c(const std::byte* from, std::size_t n, float* to) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
  }
  floats_from_halves_portable(from + 2 * i, n - i, to + i);
}
#else
bool has_f16c() { return false; }
#endif

}  // namespace

void halves_from_floats_portable(const float* from, std::size_t n, std::byte* to) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t half = half_from_float(from[i]);
    std::memcpy(to + 2 * i, &half, sizeof half);
  }
}

void floats_from_halves_portable(const std::byte* from, std::size_t n, float* to) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, from + 2 * i, sizeof half);
    to[i] = float_from_half(half);
  }
}

void halves_from_floats(const float* from, std::size_t n, std::byte* to) {
#if defined(__x86_64__)
  if (has_f16c()) return halves_from_floats_f16c(from, n, to);
#endif
  halves_from_floats_portable(from, n, to);
}

void floats_from_halves(const std::byte* from, std::size_t n, float* to) {
#if defined(__x86_64__)
  if (has_f16c()) return floats_from_halves_f16c(from, n, to);
#endif
  floats_from_halves_portable(from, n, to);
}

std::string_view half_conversion() { return has_f16c() ? "f16c" : "portable"; }

}  // namespace linkcpp::wire
