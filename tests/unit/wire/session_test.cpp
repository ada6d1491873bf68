// What sessions say of themselves: the exact bytes, and a clear error for what is malformed.
#include "wire/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace linkcpp::wire {
namespace {

using testing::HasSubstr;

FrameView view(const Bytes& frame) {
  return {*parse_frame_header(ByteSpan(frame).first(frame_header_bytes)), ByteSpan(frame).subspan(frame_header_bytes)};
}
FrameView view(FrameType type, ByteSpan body) {
  return {{.type = type, .length = static_cast<std::uint32_t>(body.size()), .request = 3}, body};
}
Bytes bytes(std::initializer_list<int> values) {
  Bytes result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}
const SessionState state{.next = 0x0102030405060708, .mark = 0x1112131415161718, .beyond = {std::byte{0}, std::byte{4}}};

TEST(SessionFrames, HaveTheSpecifiedBytes) {
  Attach attach{.may_create = true, .state = state};
  for (std::uint8_t i = 0; i < 16; ++i) attach.id[i] = static_cast<std::uint8_t>(0xA0 + i);
  const auto mark_and_bits = bytes({0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0, 4});
  Bytes body = bytes({0xA0, 0xA1, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xAB, 0xAC, 0xAD, 0xAE, 0xAF, 1});
  body.insert(body.end(), mark_and_bits.begin(), mark_and_bits.end());
  EXPECT_EQ(make_attach(attach), make_frame(FrameType::attach, state.next, body));
  EXPECT_EQ(make_session_state(FrameType::attached, state), make_frame(FrameType::attached, state.next, mark_and_bits));
  EXPECT_EQ(make_session_state(FrameType::ack, state), make_frame(FrameType::ack, state.next, mark_and_bits));
  EXPECT_EQ(make_end({7, ErrorKind::timeout, "ab"}), make_frame(FrameType::end, 7, bytes({5, 2, 0, 'a', 'b'})));
}

TEST(SessionFrames, ComeBack) {
  const Attach attach{.id = {1, 2}, .may_create = false, .state = state};
  const Bytes frame = make_attach(attach);
  const auto again = decode_attach(view(frame));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->id, attach.id);
  EXPECT_FALSE(again->may_create);
  EXPECT_EQ(again->state, state);
  const Bytes ack = make_session_state(FrameType::ack, state);
  EXPECT_EQ(decode_session_state(view(ack)).value(), state);
  const Bytes farewell = make_end({9, ErrorKind::unauthorized, "no\nway"});
  const auto end = decode_end(view(farewell));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->mark, 9u);
  EXPECT_EQ(end->kind, ErrorKind::unauthorized);
  EXPECT_EQ(end->reason, "no?way") << "words of a peer steer no terminal";
}

TEST(SessionFrames, AnAckOfAllIs28BytesLong) { EXPECT_EQ(make_session_state(FrameType::ack, {.next = 9, .mark = 9}).size(), 28u); }

TEST(SessionFrames, MalformedOnesAreRefusedByName) {
  const auto attach = [](const Bytes& body) { return decode_attach(view(FrameType::attach, body)).error().message; };
  const auto ack = [](const Bytes& body) { return decode_session_state(view(FrameType::ack, body)).error().message; };
  const auto end = [](const Bytes& body) { return decode_end(view(FrameType::end, body)).error().message; };
  EXPECT_THAT(attach(Bytes(24)), HasSubstr("malformed attach: it is cut short"));
  Bytes odd(25);
  odd[16] = std::byte{2};
  EXPECT_THAT(attach(odd), HasSubstr("options 0x02"));
  EXPECT_THAT(ack(Bytes(7)), HasSubstr("malformed ack: it is cut short"));
  EXPECT_THAT(ack(Bytes(9)), HasSubstr("ends with a zero byte"));
  EXPECT_THAT(ack(Bytes(8 + max_session_bitmap + 1, std::byte{1})), HasSubstr("bitmap has 1025 bytes"));
  EXPECT_THAT(decode_session_state(view(FrameType::attached, Bytes(1))).error().message, HasSubstr("malformed attached"));
  EXPECT_THAT(end(bytes({0, 5, 0, 'a'})), HasSubstr("malformed end"));
  EXPECT_THAT(end(bytes({8, 0, 0})), HasSubstr("error kind 8"));
}

}  // namespace
}  // namespace linkcpp::wire
