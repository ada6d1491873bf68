// Frames: the exact bytes, and a clear error for whatever is not a frame.
#include "wire/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace linkcpp::wire {
namespace {

using testing::HasSubstr;

ByteSpan header_of(const Bytes& frame) { return ByteSpan(frame).first(frame_header_bytes); }

/// A valid header whose byte `at` is replaced.
Bytes header_with(std::size_t at, std::uint8_t value) {
  Bytes frame = make_frame(FrameType::ping, 1, {});
  frame[at] = std::byte{value};
  return frame;
}

TEST(Frame, HasTheSpecifiedBytes) {
  const Bytes body{std::byte{0xAA}, std::byte{0xBB}};
  const Bytes frame = make_frame(FrameType::dispatch, 0x1122334455667788, body);
  const std::uint8_t expected[] = {'L',  'K',  'C',  '1', protocol_version, 6, 0, 0, 2, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33,
                                   0x22, 0x11, 0xAA, 0xBB};
  EXPECT_THAT(frame, testing::ElementsAreArray(std::as_bytes(std::span(expected))));
}

TEST(Frame, HeaderComesBack) {
  for (int type = 1; type <= 18; ++type) {
    const Bytes frame = make_frame(static_cast<FrameType>(type), UINT64_MAX - type, Bytes(type));
    const auto header = parse_frame_header(header_of(frame));
    ASSERT_TRUE(header.has_value()) << header.error().message;
    EXPECT_EQ(static_cast<int>(header->type), type);
    EXPECT_EQ(header->length, static_cast<std::uint32_t>(type));
    EXPECT_EQ(header->request, UINT64_MAX - type);
    EXPECT_EQ(header->version, protocol_version);
    EXPECT_EQ(header->flags, 0);
  }
}

TEST(Frame, BuiltInPlaceIsTheSame) {
  Bytes frame = begin_frame(FrameType::combine, 7, 3);
  ByteWriter(frame).raw(Bytes(3, std::byte{5}));
  finish_frame(frame);
  EXPECT_EQ(frame, make_frame(FrameType::combine, 7, Bytes(3, std::byte{5})));
}

TEST(Frame, RefusesAForeignBeginning) {
  const std::string_view http = "GET / HTTP/1.1\r\nHost";
  const auto header = parse_frame_header(std::as_bytes(std::span(http)));
  ASSERT_FALSE(header.has_value());
  EXPECT_EQ(header.error().kind, ErrorKind::invalid_input);
  EXPECT_THAT(header.error().message, HasSubstr("not a linkcpp frame"));
}

TEST(Frame, RefusesAnotherVersionNamingBoth) {
  const auto header = parse_frame_header(header_with(4, 1));
  ASSERT_FALSE(header.has_value());
  EXPECT_EQ(header.error().kind, ErrorKind::incompatible);
  EXPECT_THAT(header.error().message, HasSubstr("version 2"));
  EXPECT_THAT(header.error().message, HasSubstr("version 1"));
}

TEST(Frame, RefusesUnknownTypes) {
  for (const int type : {0, 20, 255}) {
    const auto header = parse_frame_header(header_with(5, static_cast<std::uint8_t>(type)));
    ASSERT_FALSE(header.has_value()) << type;
    EXPECT_EQ(header.error().kind, ErrorKind::invalid_input);
  }
}

TEST(Frame, FlagsAreNotLookedAt) {
  const auto header = parse_frame_header(header_with(6, 0x80));
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(header->flags, 0x80);
}

TEST(Frame, BoundsTheAnnouncedLength) {
  Bytes frame = make_frame(FrameType::ping, 1, {});
  const auto announce = [&frame](std::uint32_t length) { std::memcpy(frame.data() + 8, &length, sizeof length); };
  announce(max_frame_body);
  EXPECT_TRUE(parse_frame_header(frame).has_value());
  announce(max_frame_body + 1);
  EXPECT_THAT(parse_frame_header(frame).error().message, HasSubstr("67108865 bytes"));
  announce(UINT32_MAX);
  EXPECT_FALSE(parse_frame_header(frame).has_value());
  announce(max_unauthenticated_body + 1);
  EXPECT_TRUE(parse_frame_header(frame).has_value());
  EXPECT_FALSE(parse_frame_header(frame, max_unauthenticated_body).has_value());
}

TEST(Frame, WantsAWholeHeader) {
  const Bytes frame = make_frame(FrameType::ping, 1, {});
  for (std::size_t n = 0; n < frame_header_bytes; ++n) EXPECT_FALSE(parse_frame_header(ByteSpan(frame).first(n)).has_value()) << n;
  EXPECT_FALSE(parse_frame_header(Bytes(frame_header_bytes + 1)).has_value());
}

TEST(FrameDeathTest, AFrameThatNobodyWouldAcceptIsNeverMade) {
  Bytes frame = begin_frame(FrameType::combine, 1);
  frame.resize(frame_header_bytes + max_frame_body);
  finish_frame(frame);
  EXPECT_TRUE(parse_frame_header(header_of(frame)).has_value());
#ifndef NDEBUG
  frame.push_back({});
  EXPECT_DEATH(finish_frame(frame), "max_frame_body");
#endif
}

}  // namespace
}  // namespace linkcpp::wire
