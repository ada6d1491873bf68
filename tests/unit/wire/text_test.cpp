// What may be in a peer's text: well-formed UTF-8 that steers no terminal.
#include "wire/text.h"

#include <gtest/gtest.h>

namespace linkcpp::wire {
namespace {

using namespace std::string_view_literals;

TEST(PlainText, AcceptsWellFormedUtf8) {
  for (const auto text :
       {""sv, "worker 7"sv, "Gerät"sv, "節点"sv, "\xF0\x9F\x98\x80"sv, "\xF4\x8F\xBF\xBF"sv, "\xED\x9F\xBF"sv, "\xC2\xA0"sv}) {
    EXPECT_TRUE(is_plain_text(text)) << text;
    EXPECT_EQ(plain_text(text, 100), text);
  }
}

TEST(PlainText, RefusesControlsAndMalformedBytes) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"a\x1B[31mb"sv, "a?[31mb"},     // escape sequence
      {"a\nb\r\tc\0d"sv, "a?b??c?d"},  // lines, zero
      {"\x7F\xC2\x85"sv, "??"},        // delete, next line (C1)
      {"\x80"sv, "?"},                 // continuation without a beginning
      {"\xC0\xAF"sv, "??"},            // overlong '/'
      {"\xE0\x80\xAF"sv, "???"},       // overlong in three bytes
      {"\xF0\x80\x80\xAF"sv, "????"},  // overlong in four
      {"\xED\xA0\x80"sv, "???"},       // surrogate
      {"\xF4\x90\x80\x80"sv, "????"},  // beyond U+10FFFF
      {"\xF5"sv, "?"},
      {"x\xE7\xAF"sv, "x??"},  // cut off
      {"\xE7\xAFz"sv, "??z"},
  };
  for (const auto& [text, plain] : cases) {
    EXPECT_FALSE(is_plain_text(text)) << plain;
    EXPECT_EQ(plain_text(text, 100), plain);
    EXPECT_TRUE(is_plain_text(plain));
  }
}

TEST(PlainText, IsCutBetweenCharacters) {
  EXPECT_EQ(plain_text("aé節b", 10), "aé節b");
  EXPECT_EQ(plain_text("aé節b", 7), "aé節b");
  EXPECT_EQ(plain_text("aé節b", 6), "aé節");
  EXPECT_EQ(plain_text("aé節b", 5), "aé");
  EXPECT_EQ(plain_text("aé節b", 2), "a");
  EXPECT_EQ(plain_text("aé節b", 0), "");
}

}  // namespace
}  // namespace linkcpp::wire
