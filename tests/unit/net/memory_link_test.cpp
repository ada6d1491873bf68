// The link in memory behaves like a real one, with the delay that was asked for.
#include "net/memory_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/driver.h"
#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

TEST(MemoryLinkTest, CarriesFramesInOrderBothWays) {
  Loop loop(2);
  auto [a, b] = make_memory_links(loop.context(), loop.context());
  Recorder at_a, at_b;
  for (std::uint32_t i = 0; i < 10; ++i) a->send(frame_of(i * 100, i));  // before anyone listens
  a->start(at_a.handlers());
  b->start(at_b.handlers());
  for (std::uint32_t i = 10; i < 500; ++i) a->send(frame_of(i, i)), b->send(frame_of(i, i));
  for (std::uint32_t i = 0; i < 500; ++i) {
    const auto frame = at_b.frames->take();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->header.request, i);
  }
  for (std::uint32_t i = 10; i < 500; ++i) EXPECT_EQ(at_a.frames->take()->header.request, i);
  EXPECT_EQ(a->stats().frames_sent, 500u);
  EXPECT_EQ(b->stats().bytes_received, a->stats().bytes_sent);
}

TEST(MemoryLinkTest, DelaysByDriverTimers) {
  Driver driver;
  auto [a, b] = make_memory_links(driver.context(), driver.context(), {.delay_to_first = 20ms, .delay_to_second = 10ms});
  int answers = 0;
  b->start(
      {.on_frame = [&, &out = *b](const wire::FrameView& frame) { out.send(wire::make_frame(wire::FrameType::combine, 0, frame.body)); },
       .on_close = [](const Error&) {}});
  a->start({.on_frame = [&](const wire::FrameView&) { ++answers; }, .on_close = [](const Error&) {}});
  const auto start = Clock::now();
  for (int i = 0; i < 5; ++i) a->send(frame_of(10, 1));
  EXPECT_TRUE(driver.run_until([&] { return answers == 5; }, Clock::now() + patience));
  EXPECT_GE(Clock::now() - start, 30ms);
  EXPECT_LT(Clock::now() - start, 5s);
  EXPECT_EQ(a->stats().rtt, 30ms);
  driver.run_exclusive([&] { a.reset(), b.reset(); });
}

TEST(MemoryLinkTest, ClosesLikeALink) {
  Loop loop;
  for (const bool drop : {false, true}) {
    auto [a, b] = make_memory_links(loop.context(), loop.context(), {.delay_to_second = 5ms});
    Recorder at_a, at_b;
    a->start(at_a.handlers());
    b->start(at_b.handlers());
    a->send(frame_of(5, 1));
    if (drop) {
      a.reset();
    } else {
      a->close({ErrorKind::unavailable, "enough"});
      EXPECT_EQ(at_a.closes->take()->message, "enough");
    }
    EXPECT_TRUE(at_b.frames->take()) << "what was sent before the close arrives";
    EXPECT_EQ(at_b.closes->take()->kind, ErrorKind::unavailable);
    EXPECT_EQ(at_a.closes->take(20ms).has_value(), false);
    b->send(frame_of(5, 1));
    EXPECT_EQ(*at_a.late + *at_b.late, 0);
  }
}

TEST(MemoryLinkTest, RefusesMalformedFrames) {
  Loop loop;
  for (const Bytes& bad : {Bytes(3), pattern(40, 1), [] {
                             Bytes frame = frame_of(10, 1);
                             frame.pop_back();
                             return frame;
                           }()}) {
    auto [a, b] = make_memory_links(loop.context(), loop.context());
    Recorder at_a, at_b;
    a->start(at_a.handlers());
    b->start(at_b.handlers());
    a->send(bad);
    EXPECT_EQ(at_b.closes->take()->kind, ErrorKind::invalid_input);
    EXPECT_EQ(at_a.closes->take()->kind, ErrorKind::unavailable);
  }
}

}  // namespace
}  // namespace linkcpp::net
