// The join token's text form, and that each mistake has its own message.
#include "net/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/encoding.h"
#include "net/endpoint.h"

namespace linkcpp::net {
namespace {

using testing::HasSubstr;

JoinToken sample() {
  JoinToken token;
  for (std::size_t i = 0; i < 32; ++i) {
    token.backbone.bytes[i] = static_cast<std::uint8_t>(i * 7);
    token.secret[i] = static_cast<std::uint8_t>(255 - i);
  }
  token.addresses = {"203.0.113.7:7101", "[2001:db8::1]:7101", "backbone.example:443"};
  return token;
}

std::string message_of(const std::string& text) {
  const auto token = JoinToken::decode(text);
  if (token) return "accepted";
  EXPECT_EQ(token.error().kind, ErrorKind::invalid_input);
  return token.error().message;
}

TEST(TokenTest, RoundTrips) {
  for (std::size_t n = 0; n <= 3; ++n) {
    JoinToken token = sample();
    token.addresses.resize(n);
    const auto back = JoinToken::decode(token.encode());
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(back->backbone, token.backbone);
    EXPECT_EQ(back->secret, token.secret);
    EXPECT_EQ(back->addresses, token.addresses);
  }
  JoinToken many = sample();
  many.addresses.assign(40, "host:1");
  EXPECT_EQ(JoinToken::decode(many.encode())->addresses.size(), JoinToken::max_addresses);
}

TEST(TokenTest, IgnoresWhiteSpaceOfAWrappedPaste) {
  std::string text = sample().encode();
  text.insert(70, "\r\n  ");
  EXPECT_TRUE(JoinToken::decode("  " + text + "\n"));
}

TEST(TokenTest, EveryTruncationSaysCutOff) {
  const std::string text = sample().encode();
  for (std::size_t n = 1; n < text.size(); ++n) EXPECT_THAT(message_of(text.substr(0, n)), HasSubstr("cut off")) << n;
}

TEST(TokenTest, EveryWrongCharacterIsNoticed) {
  const std::string text = sample().encode();
  for (std::size_t at = 8; at < text.size(); ++at) {  // behind the length, which would make it look cut off
    std::string wrong = text;
    wrong[at] = wrong[at] == 'A' ? 'B' : 'A';
    EXPECT_THAT(message_of(wrong), HasSubstr("mistyped")) << at;
  }
  std::string wrong = text;
  wrong[20] = '+';
  EXPECT_THAT(message_of(wrong), HasSubstr("character that cannot be in one"));
}

TEST(TokenTest, NamesOtherMistakes) {
  EXPECT_THAT(message_of(""), HasSubstr("empty"));
  EXPECT_THAT(message_of("hello"), HasSubstr("not a join token"));
  EXPECT_THAT(message_of("lkc.abc"), HasSubstr("not a join token"));
  EXPECT_THAT(message_of("lkc2.abcdef"), HasSubstr("version 'lkc2'"));
  EXPECT_THAT(message_of(sample().encode() + "AAAA"), HasSubstr("pasted behind"));
  EXPECT_THAT(message_of(sample().encode() + sample().encode()), HasSubstr("character that cannot be in one"));
  EXPECT_THAT(message_of(std::string(100'000, 'A')), HasSubstr("too long"));
  JoinToken token = sample();
  token.addresses = {"no-port"};
  EXPECT_THAT(message_of(token.encode()), HasSubstr("port is missing"));
  for (const char* text : {"hello", "lkc1.", ""}) EXPECT_THAT(message_of(text), HasSubstr("linkcpp token"));
}

TEST(EncodingTest, Base64urlIsStrict) {
  for (std::size_t n = 0; n < 20; ++n) {
    Bytes bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * 37 + n);
    EXPECT_EQ(from_base64url(base64url(bytes)), bytes);
  }
  EXPECT_EQ(base64url(std::as_bytes(std::span("\xFB\xFF", 2))), "-_8");
  for (const char* wrong : {"A", "AB", "AAAAA", "A=", "A B", "AA+A"}) EXPECT_FALSE(from_base64url(wrong)) << wrong;
}

TEST(EndpointTest, ParsesAndExplains) {
  EXPECT_EQ(parse_endpoint("host:1")->text(), "host:1");
  EXPECT_EQ(parse_endpoint("[::]:7101")->host, "::");
  EXPECT_EQ(parse_endpoint("[::]:7101")->text(), "[::]:7101");
  for (const char* wrong :
       {"", ":", "host", "host:", ":80", "host:65536", "host:-1", "host:1x", "::1:80", "[]:80", "[host]:80", "ho st:80", "h\n:1"}) {
    EXPECT_FALSE(parse_endpoint(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace linkcpp::net
