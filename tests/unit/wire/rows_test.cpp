// Rows: strides, row types, and the promise that F32 is bit-identical.
#include "wire/rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace linkcpp::wire {
namespace {

std::vector<float> random_rows(std::size_t n) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

TEST(Rows, NamesAndSizes) {
  for (const RowType type : all_row_types) EXPECT_EQ(parse_row_type(to_string(type)), type);
  EXPECT_FALSE(parse_row_type("f64").has_value());
  EXPECT_FALSE(parse_row_type("").has_value());
  EXPECT_EQ(row_bytes(RowType::f32, 3072), 12288u);
  EXPECT_EQ(row_bytes(RowType::f16, 3072), 6144u);
  EXPECT_EQ(row_bytes(RowType::int8, 3072), 3264u);
  EXPECT_EQ(row_bytes(RowType::int8, 33), 33u + 4);
  EXPECT_EQ(row_bytes(RowType::fp8, 3072), 3168u);
  EXPECT_EQ(row_bytes(RowType::fp8, 129), 129u + 8);
  EXPECT_EQ(effective_row_type(RowType::f16, 1), RowType::f32);
  EXPECT_EQ(effective_row_type(RowType::f16, 2), RowType::f16);
}

TEST(Rows, F32IsBitIdentical) {
  std::mt19937 random(2);
  std::vector<std::uint32_t> patterns(1000), back(1000);
  for (auto& p : patterns) p = static_cast<std::uint32_t>(random());
  patterns[0] = 0x7F800001;  // a signalling NaN keeps its bits
  std::vector<float> values(1000);
  std::memcpy(values.data(), patterns.data(), 4000);
  Bytes bytes(4000);
  encode_rows(RowType::f32, values.data(), 100, 10, 100, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), patterns.data(), 4000), 0);
  decode_rows(RowType::f32, bytes, 100, 10, reinterpret_cast<float*>(back.data()), 100);
  EXPECT_EQ(back, patterns);
}

class StridedRows : public testing::TestWithParam<RowType> {};

TEST_P(StridedRows, AreTheSameAsDenseOnesAndLeaveTheGapsAlone) {
  const RowType type = GetParam();
  for (const std::size_t n : {1u, 7u, 8u, 19u, 32u, 130u}) {
    for (const std::size_t stride : {n, n + 1, n + 13}) {
      constexpr std::size_t n_rows = 5;
      const std::vector<float> values = random_rows(n_rows * stride);
      std::vector<float> dense;
      for (std::size_t r = 0; r < n_rows; ++r) dense.insert(dense.end(), values.begin() + r * stride, values.begin() + r * stride + n);
      Bytes strided_bytes(n_rows * row_bytes(type, n)), dense_bytes(strided_bytes.size());
      encode_rows(type, values.data(), n, n_rows, stride, strided_bytes);
      encode_rows(type, dense.data(), n, n_rows, n, dense_bytes);
      EXPECT_EQ(strided_bytes, dense_bytes);

      std::vector<float> back(n_rows * stride, -77.0f), dense_back(n_rows * n);
      decode_rows(type, strided_bytes, n, n_rows, back.data(), stride);
      decode_rows(type, strided_bytes, n, n_rows, dense_back.data(), n);
      for (std::size_t i = 0; i < back.size(); ++i) {
        const std::size_t r = i / stride, c = i % stride;
        ASSERT_EQ(back[i], c < n ? dense_back[r * n + c] : -77.0f);
        const float step = type == RowType::f32   ? 0.0f
                           : type == RowType::f16 ? std::fabs(values[i]) / 2048 + 1e-7f
                                                  : 0.6f;  // exact bounds: blocks_test
        ASSERT_NEAR(back[i], c < n ? values[i] : -77.0f, c < n ? step : 0.0f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RowTypes, StridedRows, testing::ValuesIn(all_row_types),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(Rows, NoRowsAreNoBytes) {
  Bytes nothing;
  for (const RowType type : all_row_types) {
    for (const std::size_t stride : {8u, 9u}) {
      encode_rows(type, nullptr, 8, 0, stride, nothing);
      decode_rows(type, nothing, 8, 0, nullptr, stride);
    }
  }
  EXPECT_TRUE(nothing.empty());
}

}  // namespace
}  // namespace linkcpp::wire
