// Half conversion against an independent oracle: the nearest of all 65536 halves, found by search in double precision.
#include "wire/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace linkcpp::wire {
namespace {

using Convert = void (*)(const float*, std::size_t, std::byte*);

/// Value of a finite, non-negative half by its definition.
double value_of(std::uint16_t half) {
  const int exponent = half >> 10, mantissa = half & 0x3FF;
  return exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
}

/// Nearest half, ties to the even code, saturating. The codes of non-negative halves are ordered like their values.
std::uint16_t nearest_half(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint16_t low = 0, high = 0x7BFF;
  if (magnitude >= value_of(high)) return sign | high;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(low), above = value_of(high) - magnitude;
  const bool up = above < below || (above == below && low % 2 != 0);
  return sign | (up ? high : low);
}

std::vector<std::uint16_t> converted(Convert convert, const std::vector<float>& values) {
  std::vector<std::uint16_t> halves(values.size());
  convert(values.data(), values.size(), reinterpret_cast<std::byte*>(halves.data()));
  return halves;
}

std::vector<float> all_halves_as_floats(void (*convert)(const std::byte*, std::size_t, float*)) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(halves.size());
  convert(reinterpret_cast<const std::byte*>(halves.data()), halves.size(), values.data());
  return values;
}

/// Finite floats where rounding is interesting: every half, the middle between neighbours, and the floats on both sides of each.
std::vector<float> edge_floats() {
  std::vector<float> values;
  const auto add_around = [&values](float value) {
    for (const float v : {std::nextafterf(value, 0.0f), value, std::nextafterf(value, std::numeric_limits<float>::max())}) {
      values.push_back(v);
      values.push_back(-v);
    }
  };
  for (std::uint16_t half = 0; half < 0x7BFF; ++half) {
    add_around(static_cast<float>(value_of(half)));
    add_around(static_cast<float>((value_of(half) + value_of(half + 1)) / 2));
  }
  for (const float v : {65504.0f, 65519.99f, 65520.0f, 1e6f, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(),
                        std::numeric_limits<float>::min()}) {
    add_around(v);
  }
  std::erase_if(values, [](float v) { return !std::isfinite(v); });
  return values;
}

/// Any bit patterns: NaN, infinities and subnormal floats among them.
std::vector<float> random_patterns(std::size_t n) {
  std::mt19937 random(11);
  std::vector<float> values(n);
  for (float& v : values) v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return values;
}

TEST(Half, EveryHalfHasItsValue) {
  for (const auto convert : {floats_from_halves, floats_from_halves_portable}) {
    const std::vector<float> values = all_halves_as_floats(convert);
    for (std::uint32_t half = 0; half < 0x7C00; ++half) {
      ASSERT_EQ(static_cast<double>(values[half]), value_of(static_cast<std::uint16_t>(half))) << half;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[half | 0x8000]), std::bit_cast<std::uint32_t>(values[half]) | 0x80000000) << half;
    }
    EXPECT_EQ(values[0x7C00], std::numeric_limits<float>::infinity());
    EXPECT_EQ(values[0xFC00], -std::numeric_limits<float>::infinity());
    for (std::uint32_t half = 0x7C01; half < 0x8000; ++half) {
      ASSERT_TRUE(std::isnan(values[half]) && std::isnan(values[half | 0x8000])) << half;
    }
  }
}

TEST(Half, EveryHalfSurvivesARoundTrip) {
  const std::vector<float> values = all_halves_as_floats(floats_from_halves);
  for (const auto convert : {halves_from_floats, halves_from_floats_portable}) {
    const std::vector<std::uint16_t> halves = converted(convert, values);
    for (std::uint32_t half = 0; half < 65536; ++half) {
      const bool nan = (half & 0x7FFF) > 0x7C00;
      ASSERT_EQ(halves[half], nan ? half | 0x0200 : half);
    }
  }
}

TEST(Half, RoundsToTheNearestEven) {
  const std::vector<float> values = edge_floats();
  for (const auto convert : {halves_from_floats, halves_from_floats_portable}) {
    const std::vector<std::uint16_t> halves = converted(convert, values);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(halves[i], nearest_half(values[i])) << values[i];
  }
}

TEST(Half, SaturatesFiniteValuesOnly) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{65504, 65505, 65519, 65520, 70000, 3.4e38f, -65520, -3.4e38f, infinity, -infinity};
  const std::vector<std::uint16_t> expected{0x7BFF, 0x7BFF, 0x7BFF, 0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF, 0xFBFF, 0x7C00, 0xFC00};
  EXPECT_EQ(converted(halves_from_floats, values), expected);
  EXPECT_EQ(converted(halves_from_floats_portable, values), expected);
}

TEST(Half, NanStaysNan) {
  std::vector<float> values;
  for (const std::uint32_t bits : {0x7F800001u, 0x7FBFFFFFu, 0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu, 0x7F801FFFu, 0x7F802000u}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  for (const auto convert : {halves_from_floats, halves_from_floats_portable}) {
    const std::vector<std::uint16_t> halves = converted(convert, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_GT(halves[i] & 0x7FFF, 0x7C00) << i;
      EXPECT_EQ((halves[i] & 0x8000) != 0, std::signbit(values[i])) << i;
    }
  }
}

TEST(Half, InstructionsAndPortableCodeAgreeBitForBit) {
  std::vector<float> values = random_patterns(1u << 21);
  const std::vector<float> edges = edge_floats();
  values.insert(values.end(), edges.begin(), edges.end());
  EXPECT_EQ(converted(halves_from_floats, values), converted(halves_from_floats_portable, values));
  const std::vector<float> fast = all_halves_as_floats(floats_from_halves), portable = all_halves_as_floats(floats_from_halves_portable);
  EXPECT_EQ(std::memcmp(fast.data(), portable.data(), fast.size() * sizeof(float)), 0);
}

TEST(Half, WritesExactlyWhatItShouldAtAnyLengthAndAlignment) {
  const std::vector<float> values = random_patterns(64);
  for (std::size_t n = 0; n <= 40; ++n) {
    for (std::size_t shift = 0; shift < 3; ++shift) {
      std::vector<std::byte> fast(128, std::byte{0xEE}), portable = fast;
      halves_from_floats(values.data() + shift, n, fast.data() + 1 + shift);
      halves_from_floats_portable(values.data() + shift, n, portable.data() + 1 + shift);
      ASSERT_EQ(fast, portable) << n;
      EXPECT_EQ(fast[1 + shift + 2 * n], std::byte{0xEE});
      std::vector<float> back(64, 7.0f);
      floats_from_halves(fast.data() + 1 + shift, n, back.data());
      EXPECT_TRUE(std::all_of(back.begin() + n, back.end(), [](float v) { return v == 7.0f; }));
    }
  }
}

}  // namespace
}  // namespace linkcpp::wire
