// Addresses as people and tokens write them.
#include "net/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/encoding.h"
#include "net/token.h"

namespace linkcpp::net {
namespace {

using testing::HasSubstr;

PeerKey filled_key(std::uint8_t fill) {
  PeerKey key;
  key.bytes.fill(fill);
  return key;
}

TEST(AddressTest, EverySchemeIsRead) {
  const auto plain = parse_address("example.org:7101");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->scheme, Scheme::tcp);
  EXPECT_EQ(plain->endpoint, (Endpoint{"example.org", 7101}));
  EXPECT_EQ(parse_address("tcp://[2001:db8::1]:7101")->endpoint, (Endpoint{"2001:db8::1", 7101}));
  EXPECT_EQ(parse_address("ws://example.org")->endpoint.port, 80);
  const auto wss = parse_address("wss://example.org/swarm/a?b=c");
  ASSERT_TRUE(wss);
  EXPECT_EQ(wss->scheme, Scheme::wss);
  EXPECT_EQ(wss->endpoint.port, 443);
  EXPECT_EQ(wss->path, "/swarm/a?b=c");
  EXPECT_EQ(wss->authority(), "example.org");
  EXPECT_EQ(parse_address("wss://[::1]:8443?x")->path, "/?x");
  EXPECT_EQ(parse_address("wss://[::1]:8443?x")->authority(), "[::1]:8443");
  EXPECT_EQ(parse_address("wss://[::1]/")->authority(), "[::1]");
  EXPECT_EQ(parse_address("quic://example.org:7101")->scheme, Scheme::quic);
  const auto relay = parse_address("relay://" + key_text(filled_key(1)) + "@r.example:7103/" + key_text(filled_key(2)));
  ASSERT_TRUE(relay);
  EXPECT_EQ(relay->relay_key, filled_key(1));
  EXPECT_EQ(relay->key, filled_key(2));
  EXPECT_FALSE(parse_address("relay://r.example:7103")->key);
}

TEST(AddressTest, RelaysMayBeBehindWebProxies) {
  const std::string key = key_text(filled_key(2));
  const auto relay = parse_address("relay+wss://" + key_text(filled_key(1)) + "@r.example/swarm/" + key);
  ASSERT_TRUE(relay) << relay.error().message;
  EXPECT_EQ(relay->scheme, Scheme::relay);
  EXPECT_EQ(relay->carrier, Scheme::wss);
  EXPECT_EQ(relay->endpoint.port, 443);
  EXPECT_EQ(relay->path, "/swarm");
  EXPECT_EQ(relay->key, filled_key(2));
  EXPECT_EQ(parse_address("relay+ws://r.example/" + key)->path, "/");
  EXPECT_EQ(parse_address("relay+ws://r.example/a/b")->path, "/a/b");
  EXPECT_FALSE(parse_address("relay+ws://r.example/a/b")->key);
  EXPECT_EQ(parse_address("relay+ws://r.example:81")->endpoint.port, 81);
  EXPECT_FALSE(parse_address("relay+quic://r.example:1"));
  EXPECT_FALSE(parse_address("relay+tcp://r.example:1"));
  EXPECT_FALSE(parse_address("ws+wss://r.example"));
  for (const std::string text : {"relay+ws://h", "relay+wss://h:1/p", "relay+wss://h/p/q/"}) {
    EXPECT_EQ(parse_address(text)->text(), text);
  }
  for (const std::string& text : {"relay+wss://h/" + key, "relay+wss://h/p/" + key, "relay://h:1/" + key}) {
    EXPECT_EQ(parse_address(text)->text(), text);
  }
}

TEST(AddressTest, TextIsReadBackAsTheSame) {
  for (const std::string text :
       {"example.org:7101", "[::1]:1", "ws://h/p?q", "ws://h:81", "wss://h", "wss://[::1]:444/x", "quic://h:1", "relay://h:1"}) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->text(), text);
    EXPECT_EQ(parse_address(address->text()), *address);
  }
  const std::string relay = "relay://" + key_text(filled_key(3)) + "@h:9/" + key_text(filled_key(255));
  EXPECT_EQ(parse_address(relay)->text(), relay);
}

TEST(AddressTest, WhatIsWrongIsSaid) {
  const auto why = [](const std::string& text) {
    const auto address = parse_address(text);
    EXPECT_FALSE(address) << text;
    return address ? std::string() : address.error().message;
  };
  EXPECT_THAT(why("http://h:1"), HasSubstr("none of tcp://, ws://"));
  EXPECT_THAT(why("tcp://h"), HasSubstr("the port is missing"));
  EXPECT_THAT(why("quic://h"), HasSubstr("the port is missing"));
  EXPECT_THAT(why("relay://h"), HasSubstr("the port is missing"));
  EXPECT_THAT(why("tcp://h:1/x"), HasSubstr("nothing more may stand behind the port"));
  EXPECT_THAT(why("quic://h:1/x"), HasSubstr("nothing more may stand behind the port"));
  EXPECT_THAT(why("ws://u:p@h/"), HasSubstr("user names"));
  EXPECT_THAT(why("ws://h/a b"), HasSubstr("percent-encoded"));
  EXPECT_THAT(why("ws://h/a\r\nX: y"), HasSubstr("percent-encoded"));
  EXPECT_THAT(why("wss:///x"), HasSubstr("host is missing"));
  EXPECT_THAT(why("relay://h:1/tooshort"), HasSubstr("52 letters"));
  EXPECT_THAT(why("relay://x@h:1"), HasSubstr("52 letters"));
  EXPECT_THAT(why("ws://" + std::string(5000, 'h')), HasSubstr("too long"));
  EXPECT_FALSE(parse_address(""));
  EXPECT_FALSE(parse_address("://"));
}

TEST(AddressTest, HostileTextIsShownHarmlessly) {
  const auto address = parse_address("\x1b[2J:x");
  ASSERT_FALSE(address);
  EXPECT_EQ(address.error().message.find('\x1b'), std::string::npos);
}

TEST(KeyTest, WrittenAndReadBack) {
  EXPECT_EQ(key_text(filled_key(0xA5)).size(), 52u);
  EXPECT_EQ(parse_key(key_text(filled_key(0xA5))), filled_key(0xA5));
  EXPECT_TRUE(key_text(filled_key(0xA5)).starts_with(short_name(filled_key(0xA5))));
  std::string upper = key_text(filled_key(0xA5));
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(parse_key(upper), filled_key(0xA5));
  EXPECT_FALSE(parse_key(key_text(filled_key(1)).substr(1)));
  EXPECT_FALSE(parse_key(key_text(filled_key(1)) + "a"));
  std::string high = key_text(filled_key(0));
  high.back() = 'b';  // a bit beyond the last byte
  EXPECT_FALSE(parse_key(high));
}

TEST(TokenTest, AddressesMayHaveSchemes) {
  const JoinToken token{filled_key(1), {}, {"wss://example.org/swarm", "h:1", "relay://r:7103"}};
  const auto read = JoinToken::decode(token.encode());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->addresses, token.addresses);
  EXPECT_FALSE(JoinToken::decode(JoinToken{filled_key(1), {}, {"ftp://h:1"}}.encode()));
}

}  // namespace
}  // namespace linkcpp::net
