// The codec of WebSocket frames: what is made can be read, and what may not be is refused, however the stream is cut.
#include "net/websocket_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

using testing::HasSubstr;

constexpr WebSocketMask mask{std::byte{0x37}, std::byte{0xFA}, std::byte{0x21}, std::byte{0x3D}};

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

struct Outcome {
  Bytes payload;
  std::vector<Bytes> pings;
  bool closed = false;
  std::optional<Error> error;
  WebSocketStatus status{};
};

/// Decodes a stream in pieces of `piece` bytes.
Outcome decode(const Bytes& stream, WebSocketSide from, std::size_t piece) {
  Outcome outcome;
  WebSocketDecoder decoder(from);
  for (std::size_t at = 0; at < stream.size() && !outcome.error && !outcome.closed; at += piece) {
    Bytes part(stream.begin() + static_cast<std::ptrdiff_t>(at),
               stream.begin() + static_cast<std::ptrdiff_t>(std::min(at + piece, stream.size())));
    auto decoded = decoder.decode(part);
    outcome.payload.insert(outcome.payload.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(decoded.payload));
    if (decoded.ping) outcome.pings.push_back(*decoded.ping);
    outcome.closed = decoded.closed;
    outcome.error = decoded.wrong;
    if (decoded.wrong) outcome.status = decoder.status();
  }
  return outcome;
}

TEST(WebSocketFramesTest, ExamplesOfTheRfc) {
  // RFC 6455, 5.7, as binary messages.
  Bytes out;
  put_websocket_frame(out, WebSocketOpcode::binary, std::as_bytes(std::span("Hello", 5)), std::nullopt);
  EXPECT_EQ(out, bytes_of({0x82, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f}));
  out.clear();
  put_websocket_frame(out, WebSocketOpcode::binary, std::as_bytes(std::span("Hello", 5)), mask);
  EXPECT_EQ(out, bytes_of({0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58}));
  out.clear();
  put_websocket_frame(out, WebSocketOpcode::binary, Bytes(256), std::nullopt);
  EXPECT_EQ(Bytes(out.begin(), out.begin() + 4), bytes_of({0x82, 0x7E, 0x01, 0x00}));
  out.clear();
  put_websocket_frame(out, WebSocketOpcode::binary, Bytes(65536), std::nullopt);
  EXPECT_EQ(Bytes(out.begin(), out.begin() + 10), bytes_of({0x82, 0x7F, 0, 0, 0, 0, 0, 1, 0, 0}));
}

TEST(WebSocketFramesTest, EveryLengthSurvivesEveryCut) {
  for (const WebSocketSide side : {WebSocketSide::client, WebSocketSide::server}) {
    const auto key = side == WebSocketSide::client ? std::optional(mask) : std::nullopt;
    Bytes stream, expected;
    for (const std::size_t n : {0, 1, 3, 31, 32, 33, 125, 126, 127, 1000}) {
      const Bytes payload = pattern(n, static_cast<std::uint32_t>(n));
      put_websocket_frame(stream, WebSocketOpcode::binary, payload, key);
      put_websocket_frame(stream, WebSocketOpcode::ping, ByteSpan(payload).first(std::min<std::size_t>(n, 125)), key);
      put_websocket_frame(stream, WebSocketOpcode::pong, {}, key);
      expected.insert(expected.end(), payload.begin(), payload.end());
    }
    put_websocket_close(stream, WebSocketStatus::normal, key);
    for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
      const Outcome outcome = decode(stream, side, piece);
      ASSERT_FALSE(outcome.error) << outcome.error->message;
      ASSERT_TRUE(outcome.payload == expected) << piece;
      ASSERT_TRUE(outcome.closed) << piece;
    }
    EXPECT_EQ(decode(stream, side, 1).pings.size(), 10u);
  }
}

TEST(WebSocketFramesTest, LongFrames) {
  for (const std::size_t n : {65535u, 65536u, 300'000u}) {
    const Bytes payload = pattern(n, 3);
    Bytes stream;
    put_websocket_frame(stream, WebSocketOpcode::binary, payload, mask);
    for (const std::size_t piece : {1000u, 4096u, 65536u, 1'000'000u})
      EXPECT_TRUE(decode(stream, WebSocketSide::client, piece).payload == payload) << n << " in " << piece;
  }
}

TEST(WebSocketFramesTest, MessagesMayComeInPieces) {
  Bytes stream;
  put_websocket_frame(stream, WebSocketOpcode::binary, pattern(10, 1), std::nullopt);
  stream[0] &= std::byte{0x7F};  // not the last
  const std::size_t second = stream.size();
  put_websocket_frame(stream, WebSocketOpcode::continuation, pattern(20, 2), std::nullopt);
  stream[second] &= std::byte{0x7F};
  put_websocket_frame(stream, WebSocketOpcode::ping, pattern(3, 9), std::nullopt);
  put_websocket_frame(stream, WebSocketOpcode::continuation, pattern(5, 3), std::nullopt);
  put_websocket_frame(stream, WebSocketOpcode::binary, pattern(1, 4), std::nullopt);
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    const Outcome outcome = decode(stream, WebSocketSide::server, piece);
    ASSERT_FALSE(outcome.error) << outcome.error->message;
    EXPECT_EQ(outcome.payload.size(), 36u);
    EXPECT_EQ(outcome.pings.size(), 1u);
  }
}

TEST(WebSocketFramesTest, MaskingIsTheSameForEveryPhaseAndOverlap) {
  const Bytes source = pattern(300, 1);
  for (unsigned phase = 0; phase < 4; ++phase) {
    for (std::size_t shift = 0; shift < 40; ++shift) {
      Bytes held(shift + source.size());
      std::ranges::copy(source, held.begin() + static_cast<std::ptrdiff_t>(shift));
      mask_websocket_bytes(held.data(), held.data() + shift, source.size(), mask, phase);
      for (std::size_t i = 0; i < source.size(); ++i) ASSERT_EQ(held[i], source[i] ^ mask[(phase + i) % 4]) << phase << " " << shift;
    }
  }
}

TEST(WebSocketFramesTest, WhatIsWrongIsRefusedWithReasonAndStatus) {
  struct Case {
    Bytes stream;
    WebSocketSide from;
    const char* reason;
    WebSocketStatus status = WebSocketStatus::protocol_error;
  };
  const auto server = WebSocketSide::server, client = WebSocketSide::client;
  const std::vector<Case> cases = {
      {bytes_of({0x81, 0x01, 'x'}), server, "text message", WebSocketStatus::unsupported_data},
      {bytes_of({0x82, 0x01, 'x'}), client, "client must mask"},
      {bytes_of({0x82, 0x81, 1, 2, 3, 4, 'x'}), server, "server must not mask"},
      {bytes_of({0x89, 0x00}), client, "client must mask"},
      {bytes_of({0xC2, 0x00}), server, "reserved bits"},
      {bytes_of({0xA2, 0x00}), server, "reserved bits"},
      {bytes_of({0x92, 0x00}), server, "reserved bits"},
      {bytes_of({0x83, 0x00}), server, "unknown kind"},
      {bytes_of({0x87, 0x00}), server, "unknown kind"},
      {bytes_of({0x8B, 0x00}), server, "unknown kind"},
      {bytes_of({0x8F, 0x00}), server, "unknown kind"},
      {bytes_of({0x80, 0x00}), server, "continuation of nothing"},
      {bytes_of({0x02, 0x00, 0x82, 0x00}), server, "inside another"},
      {bytes_of({0x09, 0x00}), server, "control frame in pieces"},
      {bytes_of({0x89, 0x7E, 0x00, 0x7E}), server, "more than 125"},
      {bytes_of({0x88, 0x7F, 0, 0, 0, 0, 0, 1, 0, 0}), server, "more than 125"},
      {bytes_of({0x82, 0x7E, 0x00, 0x05}), server, "longer than it need be"},
      {bytes_of({0x82, 0x7F, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}), server, "longer than it need be"},
      {bytes_of({0x82, 0x7F, 0x80, 0, 0, 0, 0, 0, 0, 0}), server, "impossibly long"},
      {bytes_of({0x82, 0x7F, 0x00, 0, 0x02, 0, 0, 0, 0, 0}), server, "impossibly long"},
      {bytes_of({0x88, 0x01, 0x03}), server, "proper status"},
      {bytes_of({0x88, 0x02, 0x03, 0xED}), server, "proper status"},  // 1005
      {bytes_of({0x88, 0x02, 0x00, 0x00}), server, "proper status"},
      {bytes_of({'H', 'T', 'T', 'P'}), server, "reserved bits"},
  };
  for (const Case& c : cases) {
    for (std::size_t piece = 1; piece <= c.stream.size(); ++piece) {
      const Outcome outcome = decode(c.stream, c.from, piece);
      ASSERT_TRUE(outcome.error) << c.reason;
      EXPECT_EQ(outcome.error->kind, ErrorKind::invalid_input);
      EXPECT_THAT(outcome.error->message, HasSubstr(c.reason)) << piece;
      EXPECT_EQ(outcome.status, c.status) << c.reason;
    }
  }
}

TEST(WebSocketFramesTest, WhatCameBeforeAnErrorCounts) {
  Bytes stream;
  put_websocket_frame(stream, WebSocketOpcode::binary, pattern(5, 1), std::nullopt);
  put_websocket_frame(stream, WebSocketOpcode::ping, pattern(2, 2), std::nullopt);
  put_websocket_frame(stream, WebSocketOpcode::text, pattern(5, 3), std::nullopt);
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    const Outcome outcome = decode(stream, WebSocketSide::server, piece);
    EXPECT_TRUE(outcome.error);
    EXPECT_TRUE(outcome.payload == pattern(5, 1)) << piece;
    EXPECT_EQ(outcome.pings.size(), 1u);
  }
}

TEST(WebSocketFramesTest, NothingBehindACloseCounts) {
  Bytes stream;
  put_websocket_frame(stream, WebSocketOpcode::binary, pattern(5, 1), std::nullopt);
  put_websocket_frame(stream, WebSocketOpcode::close, {}, std::nullopt);
  put_websocket_frame(stream, WebSocketOpcode::binary, pattern(5, 2), std::nullopt);
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    const Outcome outcome = decode(stream, WebSocketSide::server, piece);
    EXPECT_TRUE(outcome.closed);
    EXPECT_TRUE(outcome.payload == pattern(5, 1));
  }
}

}  // namespace
}  // namespace linkcpp::net
