// Figures against values worked out by hand, and damage that cannot pass for health.
#include "gate/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gate/verdict.h"

namespace linkcpp::gate {
namespace {

using Values = std::vector<float>;

TEST(Comparison, EqualRowsAreIdentical) {
  Comparison comparison;
  const Values row{1, 2, 3};
  comparison.add("row 0", row, row, 1);
  const Figures f = comparison.figures();
  EXPECT_TRUE(f.identical());
  EXPECT_EQ(f.rows, 1u);
  EXPECT_EQ(f.mean_kld, 0);
  EXPECT_NEAR(f.mean_cosine, 1, 1e-12);
  EXPECT_EQ(f.argmax_agreement, 1);
  EXPECT_EQ(f.perplexity_ratio, 1);
}

TEST(Comparison, FiguresOfTwoRowsByHand) {
  Comparison comparison;
  // Probabilities 1/4, 3/4 against 1/2, 1/2; then two equal rows.
  const Values a{0, std::log(3.0f)}, b{0, 0}, c{5, 1};
  comparison.add("first", a, b, 1);
  comparison.add("second", c, c, no_target);
  const Figures f = comparison.figures();
  EXPECT_EQ(f.different_rows, 1u);
  EXPECT_NEAR(f.max_abs_diff, std::log(3.0), 1e-6);
  const double kld = 0.25 * std::log(0.25 / 0.5) + 0.75 * std::log(0.75 / 0.5);
  EXPECT_NEAR(f.max_kld, kld, 1e-6);
  EXPECT_NEAR(f.mean_kld, kld / 2, 1e-6);
  EXPECT_EQ(f.argmax_agreement, 0.5);
  EXPECT_NEAR(f.perplexity_ratio, 0.75 / 0.5, 1e-6);
  EXPECT_EQ(comparison.to_json()["max_kld_at"], "first");
  EXPECT_EQ(comparison.to_json()["first_difference"]["token"], 1);
}

TEST(Comparison, ZerosOfAnotherSignAreADifference) {
  Comparison comparison;
  comparison.add("row", Values{0.0f, 1}, Values{-0.0f, 1}, no_target);
  EXPECT_FALSE(comparison.figures().identical());
  EXPECT_EQ(comparison.figures().max_abs_diff, 0);
}

TEST(Comparison, DamageNeverPasses) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    Comparison comparison;
    const Values good{1, 2, 3, 4};
    for (int i = 0; i < 999; ++i) comparison.add("good", good, good, 2);
    comparison.add("bad", good, Values{1, bad, 3, 4}, 2);
    EXPECT_NE(misses(comparison.figures(), {}), "") << bad;
  }
}

TEST(Verdict, NamesEveryLimitThatIsMissed) {
  Figures f{.rows = 10, .mean_kld = 0.5, .mean_cosine = 0.9, .argmax_agreement = 0.9, .perplexity_ratio = 1.5};
  const std::string text = misses(f, {});
  for (const char* part : {"90.000 %", "cosine 0.9", "KLD 5.00e-01", "perplexity ratio 1.5"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  f = {.rows = 10, .mean_kld = 0.009, .mean_cosine = 0.9981, .argmax_agreement = 0.996, .perplexity_ratio = 1.009};
  EXPECT_EQ(misses(f, {}), "");
  f.argmax_agreement = 0.994;
  EXPECT_EQ(misses(f, {}), "same top token in 99.400 %, at least 99.500 % wanted");
  EXPECT_EQ(misses({}, {}), "nothing was compared");
}

TEST(Verdict, JsonRoundTripKeepsInfinity) {
  Figures f{
      .rows = 7, .different_rows = 3, .max_abs_diff = std::numeric_limits<double>::infinity(), .mean_kld = 1e-7, .worst_cosine = 0.25};
  const auto back = figures_from_json(nlohmann::json::parse(to_json(f).dump()));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->max_abs_diff, f.max_abs_diff);
  EXPECT_EQ(back->mean_kld, f.mean_kld);
  EXPECT_EQ(back->different_rows, 3u);
  EXPECT_FALSE(figures_from_json(nlohmann::json::array()).has_value());
  EXPECT_FALSE(figures_from_json({{"rows", 1}}).has_value());
  EXPECT_FALSE(thresholds_from_json({{"mean_kld", "small"}}).has_value());
}

}  // namespace
}  // namespace linkcpp::gate
