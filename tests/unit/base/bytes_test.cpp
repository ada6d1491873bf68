// Bounded reading and writing: what was written comes back, and no input makes the reader look beyond its end.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <limits>

namespace linkcpp {
namespace {

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(ByteWriter, WritesLittleEndian) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put<std::uint8_t>(0x01);
  out.put<std::uint16_t>(0x0302);
  out.put<std::uint32_t>(0x07060504);
  out.put<std::uint64_t>(0x0F0E0D0C0B0A0908);
  EXPECT_EQ(bytes, bytes_of({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(out.size(), 15u);
}

TEST(ByteWriter, AppendsToWhatIsThere) {
  Bytes bytes = bytes_of({9});
  ByteWriter out(bytes);
  out.text("ab");
  EXPECT_EQ(bytes, bytes_of({9, 2, 0, 'a', 'b'}));
}

TEST(ByteWriter, ExtendGivesTheNewBytes) {
  Bytes bytes = bytes_of({9});
  ByteWriter out(bytes);
  const std::span<std::byte> part = out.extend(2);
  ASSERT_EQ(part.size(), 2u);
  part[1] = std::byte{7};
  EXPECT_EQ(bytes, bytes_of({9, 0, 7}));
}

TEST(ByteWriter, CutsATextThatItsLengthCannotTell) {
  Bytes bytes;
  ByteWriter(bytes).text(std::string(70000, 'x'));
  ByteReader in(bytes);
  EXPECT_EQ(in.text(), std::string(65535, 'x'));
  EXPECT_TRUE(in.finished());
}

TEST(ByteReader, ReadsBackWhatWasWritten) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(std::numeric_limits<std::int64_t>::min());
  out.put(-1.5f);
  out.text("");
  out.text("naïve");
  out.put(std::numeric_limits<double>::infinity());
  ByteReader in(bytes);
  EXPECT_EQ(in.get<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(in.get<float>(), -1.5f);
  EXPECT_EQ(in.text(), "");
  EXPECT_EQ(in.text(), "naïve");
  EXPECT_FALSE(in.finished());
  EXPECT_EQ(in.left(), 8u);
  EXPECT_EQ(in.get<double>(), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(in.finished());
}

TEST(ByteReader, StaysFailedAfterReadingPastTheEnd) {
  const Bytes bytes = bytes_of({1, 2, 3});
  ByteReader in(bytes);
  EXPECT_EQ(in.get<std::uint32_t>(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.get<std::uint8_t>(), 0u) << "a byte is there, but a failed reader gives nothing more";
  EXPECT_TRUE(in.take(1).empty());
  EXPECT_EQ(in.left(), 0u);
  EXPECT_FALSE(in.finished());
}

TEST(ByteReader, RefusesLengthsThatWouldOverflow) {
  const Bytes bytes = bytes_of({1, 2, 3, 4});
  ByteReader in(bytes);
  in.get<std::uint16_t>();
  EXPECT_TRUE(in.take(std::numeric_limits<std::size_t>::max()).empty());
  EXPECT_FALSE(in.ok());
}

TEST(ByteReader, AnnouncedTextThatIsMissingIsAFailure) {
  const Bytes bytes = bytes_of({5, 0, 'a', 'b'});
  ByteReader in(bytes);
  EXPECT_EQ(in.text(), "");
  EXPECT_FALSE(in.ok());
}

TEST(ByteReader, NothingIsFinishedAtOnce) {
  ByteReader in({});
  EXPECT_TRUE(in.finished());
  EXPECT_TRUE(in.take(0).empty());
  EXPECT_TRUE(in.finished());
  in.get<std::uint8_t>();
  EXPECT_FALSE(in.finished());
}

template <class T>
concept Writable = requires(ByteWriter out, T value) { out.put(value); };
static_assert(Writable<float> && Writable<std::uint8_t>);
static_assert(!Writable<bool>, "a byte that is neither 0 nor 1 is no bool");

}  // namespace
}  // namespace linkcpp
