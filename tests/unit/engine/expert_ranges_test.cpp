#include <gtest/gtest.h>

#include "engine/expert_host.h"

namespace linkcpp::engine {
namespace {

using Ends = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
Ends ends(const std::string& text, std::uint32_t n_expert) {
  auto ranges = parse_expert_ranges(text, n_expert);
  EXPECT_TRUE(ranges) << (ranges ? "" : ranges.error().message);
  Ends result;
  if (ranges) {
    for (const ExpertRange& r : *ranges) result.emplace_back(r.first, r.last);
  }
  return result;
}

TEST(ExpertRanges, ReadsTheForms) {
  EXPECT_EQ(ends("all", 16), (Ends{{0, UINT32_MAX}}));
  EXPECT_EQ(ends("5", 16), (Ends{{5, 5}}));
  EXPECT_EQ(ends("0-11", 16), (Ends{{0, 11}}));
  EXPECT_EQ(ends(" 0-3, 8-11 ", 16), (Ends{{0, 3}, {8, 11}}));
}

TEST(ExpertRanges, FractionsCoverEveryExpertOnce) {
  for (const std::uint32_t n : {3u, 16u, 61u, 128u}) {
    for (std::uint32_t parts = 1; parts <= std::min(n, 9u); ++parts) {
      std::uint32_t next = 0;
      for (std::uint32_t part = 1; part <= parts; ++part) {
        const Ends range = ends(std::to_string(part) + "/" + std::to_string(parts), n);
        ASSERT_EQ(range.size(), 1u);
        EXPECT_EQ(range[0].first, next);
        EXPECT_GE(range[0].second, next);
        next = range[0].second + 1;
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(ExpertRanges, LimitsToLayers) {
  auto ranges = parse_expert_ranges("L0-3:0-11;L4:all", 16);
  ASSERT_TRUE(ranges);
  ASSERT_EQ(ranges->size(), 2u);
  EXPECT_EQ((*ranges)[0].first_layer, 0);
  EXPECT_EQ((*ranges)[0].last_layer, 3);
  EXPECT_EQ((*ranges)[0].last, 11u);
  EXPECT_EQ((*ranges)[1].first_layer, 4);
  EXPECT_EQ((*ranges)[1].last_layer, 4);
}

TEST(ExpertRanges, SaysWhatIsWrong) {
  for (const std::string text :
       {"",    ",",    "1,",  ";",     "all;", "x",        "3-1",          "-3",   "3-",          "16",  "0-16", "0/3",
        "4/3", "1/17", "1/0", "L:all", "L3",   "L3-1:all", "L0-40000:all", "La:1", "99999999999", "1 2", "all,"}) {
    auto ranges = parse_expert_ranges(text, 16);
    ASSERT_FALSE(ranges) << text;
    EXPECT_EQ(ranges.error().kind, ErrorKind::invalid_input);
    EXPECT_FALSE(ranges.error().message.empty());
  }
  EXPECT_FALSE(parse_expert_ranges("all", 0));
}

}  // namespace
}  // namespace linkcpp::engine
