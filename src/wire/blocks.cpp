// Compiled with -O3 and -fno-trapping-math: the kernels are plain loops of fixed length, which the compiler turns into vector code, once
// for its baseline and once for AVX2. No fused multiply-add anywhere, so that both give the same bits.
#include "wire/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#define LINKCPP_KERNEL [[gnu::always_inline]] inline

namespace linkcpp::wire {
namespace {

constexpr std::uint32_t sign_mask = 0x80000000, infinity_bits = 0x7F800000;
constexpr float least_magnitude = 0x1p-100f;
/// Added to a small number, it leaves the number, rounded to an integer (ties to even), in the lower bits.
constexpr float rounder = 0x1.8p23f;
constexpr std::uint32_t rounder_bits = 0x4B400000;

LINKCPP_KERNEL std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
LINKCPP_KERNEL float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// As bits: infinities and NaN are larger than all that is finite.
template <std::size_t N>
LINKCPP_KERNEL std::uint32_t largest_magnitude(const float* from) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < N; ++i) largest = std::max(largest, static_cast<std::int32_t>(bits_of(from[i]) & ~sign_mask));
  return static_cast<std::uint32_t>(largest);
}

struct Int8 {
  static constexpr std::size_t block = int8_block, scale_bytes = int8_scale_bytes;

  /// To the next bfloat16, so that the largest element does not exceed 127.
  LINKCPP_KERNEL static float scale(float largest) { return float_of((bits_of(largest / 127.0f) + 0xFFFF) & 0xFFFF0000); }
  LINKCPP_KERNEL static void put_scale(float scale, std::byte* to) {
    const auto half = static_cast<std::uint16_t>(bits_of(scale) >> 16);
    std::memcpy(to, &half, sizeof half);
  }
  LINKCPP_KERNEL static float get_scale(const std::byte* from) {
    std::uint16_t half = 0;
    std::memcpy(&half, from, sizeof half);
    return float_of(std::uint32_t{half} << 16);
  }
  LINKCPP_KERNEL static std::uint8_t encode(float value) { return static_cast<std::uint8_t>(bits_of(value + rounder) - rounder_bits); }
  LINKCPP_KERNEL static float decode(std::uint8_t code) { return static_cast<float>(static_cast<std::int8_t>(code)); }
};

struct Fp8 {
  static constexpr std::size_t block = fp8_block, scale_bytes = fp8_scale_bytes;
  static constexpr float largest_element = 448.0f, least_normal = 0x1p-6f, unit = 0x1p-9f;
  static constexpr std::uint32_t rebias = (127 - 7) << 3, nan_code = 0x7F;

  LINKCPP_KERNEL static float scale(float largest) { return largest / largest_element; }
  LINKCPP_KERNEL static void put_scale(float scale, std::byte* to) { std::memcpy(to, &scale, sizeof scale); }
  LINKCPP_KERNEL static float get_scale(const std::byte* from) {
    float scale = 0;
    std::memcpy(&scale, from, sizeof scale);
    return scale;
  }
  LINKCPP_KERNEL static std::uint8_t encode(float value) {
    const std::uint32_t sign = (bits_of(value) & sign_mask) >> 24;
    const std::uint32_t bits = std::min(bits_of(value) & ~sign_mask, bits_of(largest_element));
    const float magnitude = float_of(bits);
    const std::uint32_t normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - rebias;
    const std::uint32_t subnormal = bits_of(magnitude * (1 / unit) + rounder) - rounder_bits;
    return static_cast<std::uint8_t>(sign | (bits < bits_of(least_normal) ? subnormal : normal));
  }
  LINKCPP_KERNEL static float decode(std::uint8_t code) {
    const std::uint32_t magnitude = code & 0x7Fu;
    const std::uint32_t normal = (magnitude + rebias) << 20;
    const std::uint32_t subnormal = bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * unit);
    const std::uint32_t nan = 0x7FC00000;
    const std::uint32_t bits = magnitude == nan_code ? nan : magnitude < 8 ? subnormal : normal;
    return float_of(bits | (code & 0x80u) << 24);
  }
};

template <typename Format>
LINKCPP_KERNEL void encode_block(const float* from, std::byte* scale_to, std::uint8_t* to) {
  const std::uint32_t largest = largest_magnitude<Format::block>(from);
  const bool vanishes = largest < bits_of(least_magnitude), broken = largest >= infinity_bits;
  const float scale = broken ? std::numeric_limits<float>::quiet_NaN() : vanishes ? 0.0f : Format::scale(float_of(largest));
  Format::put_scale(scale, scale_to);
  if (broken || vanishes) {
    std::memset(to, 0, Format::block);
    return;
  }
  const float inverse = 1.0f / scale;
  for (std::size_t i = 0; i < Format::block; ++i) to[i] = Format::encode(from[i] * inverse);
}

template <typename Format>
LINKCPP_KERNEL void decode_block(const std::byte* scale_from, const std::uint8_t* from, float* to) {
  const float scale = Format::get_scale(scale_from);
  for (std::size_t i = 0; i < Format::block; ++i) to[i] = scale * Format::decode(from[i]);
}

template <typename Format>
LINKCPP_KERNEL void encode_row(const float* from, std::size_t n, std::byte* to) {
  constexpr std::size_t block = Format::block, scale_bytes = Format::scale_bytes;
  for (; n >= block; n -= block, from += block, to += scale_bytes + block) {
    encode_block<Format>(from, to, reinterpret_cast<std::uint8_t*>(to + scale_bytes));
  }
  if (n == 0) return;
  std::array<float, block> padded{};
  std::array<std::uint8_t, block> codes;
  std::memcpy(padded.data(), from, n * sizeof(float));
  encode_block<Format>(padded.data(), to, codes.data());
  std::memcpy(to + scale_bytes, codes.data(), n);
}

template <typename Format>
LINKCPP_KERNEL void decode_row(const std::byte* from, std::size_t n, float* to) {
  constexpr std::size_t block = Format::block, scale_bytes = Format::scale_bytes;
  for (; n >= block; n -= block, to += block, from += scale_bytes + block) {
    decode_block<Format>(from, reinterpret_cast<const std::uint8_t*>(from + scale_bytes), to);
  }
  if (n == 0) return;
  std::array<std::uint8_t, block> padded{};
  std::array<float, block> values;
  std::memcpy(padded.data(), from + scale_bytes, n);
  decode_block<Format>(from, padded.data(), values.data());
  std::memcpy(to, values.data(), n * sizeof(float));
}

#if defined(__x86_64__)
bool has_avx2() {
  static const bool value = __builtin_cpu_supports("avx2") != 0;
  return value;
}
template <typename Format>
[[gnu::target("avx2")]] void encode_row_avx2(const float* from, std::size_t n, std::byte* to) {
  encode_row<Format>(from, n, to);
}
template <typename Format>
[[gnu::target("avx2")]] void decode_row_avx2(const std::byte* from, std::size_t n, float* to) {
  decode_row<Format>(from, n, to);
}
#endif

template <typename Format>
void encode(const float* from, std::size_t n, std::byte* to) {
#if defined(__x86_64__)
  if (has_avx2()) return encode_row_avx2<Format>(from, n, to);
#endif
  encode_row<Format>(from, n, to);
}

template <typename Format>
void decode(const std::byte* from, std::size_t n, float* to) {
#if defined(__x86_64__)
  if (has_avx2()) return decode_row_avx2<Format>(from, n, to);
#endif
  decode_row<Format>(from, n, to);
}

}  // namespace

void encode_int8(const float* from, std::size_t n, std::byte* to) { encode<Int8>(from, n, to); }
void decode_int8(const std::byte* from, std::size_t n, float* to) { decode<Int8>(from, n, to); }
void encode_fp8(const float* from, std::size_t n, std::byte* to) { encode<Fp8>(from, n, to); }
void decode_fp8(const std::byte* from, std::size_t n, float* to) { decode<Fp8>(from, n, to); }

void encode_int8_portable(const float* from, std::size_t n, std::byte* to) { encode_row<Int8>(from, n, to); }
void decode_int8_portable(const std::byte* from, std::size_t n, float* to) { decode_row<Int8>(from, n, to); }
void encode_fp8_portable(const float* from, std::size_t n, std::byte* to) { encode_row<Fp8>(from, n, to); }
void decode_fp8_portable(const std::byte* from, std::size_t n, float* to) { decode_row<Fp8>(from, n, to); }

}  // namespace linkcpp::wire
