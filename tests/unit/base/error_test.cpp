// Errors as values: built with a formatted sentence, passed on under another value type.
#include "base/error.h"

#include <gtest/gtest.h>

namespace linkcpp {
namespace {

Result<int> half_of(int value) {
  if (value % 2 != 0) return fail(ErrorKind::invalid_input, "{} is odd: give an even number", value);
  return value / 2;
}

Result<std::string> describe_half(int value) {
  auto half = half_of(value);
  if (!half) return pass(half);
  return std::to_string(*half);
}

TEST(Error, CarriesKindAndSentenceAcrossValueTypes) {
  EXPECT_EQ(describe_half(4), "2");
  const auto failed = describe_half(5);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().kind, ErrorKind::invalid_input);
  EXPECT_EQ(failed.error().message, "5 is odd: give an even number");
}

TEST(Error, WorksForOperationsWithoutAValue) {
  const auto check = [](bool good) -> Result<> {
    if (!good) return fail(ErrorKind::timeout, "too late");
    return {};
  };
  EXPECT_TRUE(check(true).has_value());
  EXPECT_EQ(check(false).error().kind, ErrorKind::timeout);
}

}  // namespace
}  // namespace linkcpp
