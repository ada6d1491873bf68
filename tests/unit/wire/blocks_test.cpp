// Block formats: error bounds at every magnitude, exactness where it is promised, damage that stays visible, and equal bits from both
// kernels.
#include "wire/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "wire/rows.h"

namespace linkcpp::wire {
namespace {

constexpr float endless = std::numeric_limits<float>::infinity(), not_a_number = std::numeric_limits<float>::quiet_NaN();

class Blocks : public testing::TestWithParam<RowType> {
 protected:
  static Bytes encoded(const std::vector<float>& values) {
    Bytes bytes(row_bytes(GetParam(), values.size()));
    encode_rows(GetParam(), values.data(), values.size(), 1, values.size(), bytes);
    return bytes;
  }
  static std::vector<float> decoded(const Bytes& bytes, std::size_t n) {
    std::vector<float> values(n, -77.0f);
    decode_rows(GetParam(), bytes, n, 1, values.data(), n);
    return values;
  }
  static std::vector<float> round_trip(const std::vector<float>& values) { return decoded(encoded(values), values.size()); }
  static std::size_t block() { return GetParam() == RowType::int8 ? int8_block : fp8_block; }

  /// The promise of wire/blocks.h, with room for the rounding of the division and the product.
  static double bound(float value, float largest) {
    if (largest < 0x1p-100f) return 0x1p-100;
    const double step =
        GetParam() == RowType::int8 ? largest / 127.0 / 2 * 1.008 : std::max(std::fabs(double{value}) / 16, largest / 229376.0 / 2);
    return step * (1 + 1e-6) + std::fabs(double{value}) * 1e-6;
  }
};

TEST_P(Blocks, ErrorStaysWithinTheBoundAtEveryMagnitude) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int exponent = -126; exponent <= 126; exponent += 3) {
    for (const std::size_t n : {block(), 3 * block(), 2 * block() + 5, std::size_t{3}}) {
      std::vector<float> values(n);
      for (float& v : values) v = std::ldexp(std::clamp(normal(random), -3.9f, 3.9f), exponent - 1);
      const auto back = round_trip(values);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t first = i / block() * block();
        float largest = 0;
        for (std::size_t k = first; k < std::min(n, first + block()); ++k) largest = std::max(largest, std::fabs(values[k]));
        ASSERT_LE(std::fabs(double{back[i]} - values[i]), bound(values[i], largest))
            << values[i] << " of " << largest << ", exponent " << exponent;
      }
    }
  }
}

TEST_P(Blocks, ZeroStaysZeroAndTheLargestFloatDoesNotOverflow) {
  std::vector<float> values(block(), 0.0f);
  for (const float v : round_trip(values)) EXPECT_EQ(v, 0.0f);
  values[3] = std::numeric_limits<float>::max();
  values[4] = -values[3];
  const auto back = round_trip(values);
  EXPECT_TRUE(std::isfinite(back[3]) || back[3] > 0) << back[3];
  EXPECT_NEAR(back[3] / values[3], 1.0f, 0.01f);
  EXPECT_EQ(back[4], -back[3]);
  EXPECT_EQ(back[0], 0.0f);
}

TEST_P(Blocks, EncodingTwiceChangesNothingMore) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<float> values(2 * block() + 7);
    for (float& v : values) v = normal(random);
    const auto once = round_trip(values);
    const auto twice = round_trip(once);
    for (std::size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], once[i], std::fabs(once[i]) * 0.01f + 0.001f);
  }
}

TEST_P(Blocks, DamageStaysVisibleInItsBlockAndOnlyThere) {
  for (const float bad : {endless, -endless, not_a_number}) {
    std::vector<float> values(3 * block(), 1.0f);
    values[block() + 9] = bad;
    const auto back = round_trip(values);
    for (std::size_t i = 0; i < back.size(); ++i) {
      if (i / block() == 1) {
        EXPECT_TRUE(std::isnan(back[i])) << i;
      } else {
        EXPECT_NEAR(back[i], 1.0f, 0.01f) << i;
      }
    }
  }
}

TEST_P(Blocks, KernelsGiveTheSameBits) {
  std::mt19937 random(6);
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<float> values(1 + random() % 400);
    for (float& v : values) v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));  // every kind of float
    if (turn % 2 == 0) {
      for (float& v : values) v = std::fmod(std::isfinite(v) ? v : 1.0f, 10.0f);
    }
    const Bytes fast = encoded(values);
    const auto fast_back = decoded(fast, values.size());
    Bytes plain(fast.size());
    std::vector<float> plain_back(values.size());
    const bool int8 = GetParam() == RowType::int8;
    (int8 ? encode_int8_portable : encode_fp8_portable)(values.data(), values.size(), plain.data());
    (int8 ? decode_int8_portable : decode_fp8_portable)(fast.data(), values.size(), plain_back.data());
    ASSERT_EQ(fast, plain);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(fast_back[i])) {
        ASSERT_TRUE(std::isnan(plain_back[i]));
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(fast_back[i]), std::bit_cast<std::uint32_t>(plain_back[i]));
      }
    }
  }
}

TEST_P(Blocks, AnyBytesDecode) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 200; ++turn) {
    const std::size_t n = 1 + random() % 300;
    Bytes bytes(row_bytes(GetParam(), n));
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    decoded(bytes, n);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Blocks, testing::Values(RowType::int8, RowType::fp8),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(Int8, WholeMultiplesOfTheScaleAreExact) {
  std::vector<float> values(int8_block);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i) * 8 - 121) * 0.25f;
  values[0] = 127 * 0.25f;
  Bytes bytes(row_bytes(RowType::int8, values.size()));
  encode_int8(values.data(), values.size(), bytes.data());
  std::vector<float> back(values.size());
  decode_int8(bytes.data(), values.size(), back.data());
  EXPECT_EQ(back, values);
}

/// All 256 codes against the definition of the format (OCP 8-bit Floating Point Specification, table 1).
TEST(Fp8, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    Bytes bytes(fp8_scale_bytes + 2);
    const float one = 1.0f;
    std::memcpy(bytes.data(), &one, sizeof one);
    bytes[fp8_scale_bytes] = static_cast<std::byte>(code);
    bytes[fp8_scale_bytes + 1] = static_cast<std::byte>(0x7E);  // the largest element: 448 makes the scale 1 when encoded again
    float back[2];
    decode_fp8(bytes.data(), 2, back);
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(back[1], 448.0f);
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(back[0]));
      continue;
    }
    EXPECT_EQ(back[0], code >= 128 ? -magnitude : magnitude) << code;
    Bytes again(bytes.size());
    encode_fp8(back, 2, again.data());
    EXPECT_EQ(again, bytes) << code;
  }
}

TEST(Fp8, TiesGoToEven) {
  const auto rounded = [](float value) {
    const float values[2] = {value, 448.0f};
    Bytes bytes(fp8_scale_bytes + 2);
    encode_fp8(values, 2, bytes.data());
    float back[2];
    decode_fp8(bytes.data(), 2, back);
    return back[0];
  };
  EXPECT_EQ(rounded(17.0f), 16.0f);
  EXPECT_EQ(rounded(19.0f), 20.0f);
  EXPECT_EQ(rounded(-17.0f), -16.0f);
  EXPECT_EQ(rounded(0.5f * 0x1p-9f), 0.0f);
  EXPECT_EQ(rounded(1.5f * 0x1p-9f), 2 * 0x1p-9f);
  EXPECT_EQ(rounded(7.75f * 0x1p-9f), 0x1p-6f);  // from the subnormals into the normals
  EXPECT_EQ(rounded(440.0f), 448.0f);
}

}  // namespace
}  // namespace linkcpp::wire
