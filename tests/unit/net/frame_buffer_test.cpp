// Frames are put together whatever the pieces, and memory follows what arrived, not what was announced.
#include "net/frame_buffer.h"

#include <gtest/gtest.h>

#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

void append(FrameBuffer& buffer, ByteSpan bytes) {
  const auto space = buffer.space(bytes.size());
  ASSERT_GE(space.size(), bytes.size());
  std::ranges::copy(bytes, space.begin());
  buffer.commit(bytes.size());
}

TEST(FrameBufferTest, AnySplitGivesTheSameFrames) {
  Bytes stream;
  std::vector<std::size_t> sizes = {0, 1, 19, 20, 21, 5000, 0, 70'000, 3};
  for (std::uint32_t i = 0; i < sizes.size(); ++i) ByteWriter(stream).raw(frame_of(sizes[i], i));
  for (const std::size_t piece : {1ul, 7ul, 20ul, 1000ul, 16384ul, stream.size()}) {
    FrameBuffer buffer;
    std::uint32_t n = 0;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      append(buffer, ByteSpan(stream).subspan(at, std::min(piece, stream.size() - at)));
      for (;;) {
        const auto frame = buffer.next();
        ASSERT_TRUE(frame);
        if (!*frame) break;
        ASSERT_LT(n, sizes.size());
        EXPECT_EQ((*frame)->header.request, n);
        EXPECT_TRUE(std::ranges::equal((*frame)->body, pattern(sizes[n], n)));
        ++n;
      }
    }
    EXPECT_EQ(n, sizes.size()) << piece;
    EXPECT_EQ(buffer.held(), 0u);
  }
}

TEST(FrameBufferTest, HoldsBackUntilWholeAndRefusesTooLong) {
  FrameBuffer buffer;
  Bytes header = wire::begin_frame(wire::FrameType::dispatch, 1);
  const std::uint32_t length = wire::max_frame_body;
  std::memcpy(header.data() + 8, &length, sizeof length);
  append(buffer, header);
  const auto whole = buffer.next();
  ASSERT_TRUE(whole);
  EXPECT_FALSE(*whole);
  EXPECT_LE(buffer.space(1).size(), 64u << 10) << "memory was taken for what was only announced";
  EXPECT_EQ(buffer.next(wire::max_frame_body - 1).error().kind, ErrorKind::invalid_input);
}

}  // namespace
}  // namespace linkcpp::net
