// Traffic on real links: integrity, order, keep-warm, closing and every kind of loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "net/driver.h"
#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LinkTest : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Over, LinkTest, testing::Values("", "ws://", "wss://", "quic://"), transport_name);

TEST_P(LinkTest, CarriesFramesOfAllSizesInOrder) {
  Linked linked;
  const std::vector<std::size_t> sizes = {0, 1, 100, 2028, 2029, 16384, 16385, 32768, 98'304, 131'072, 300'000, 5, 0, 1'048'576, 7};
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < sizes.size(); ++i) linked.backbone->send(frame_of(sizes[i], i));
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      const auto frame = linked.at_worker.frames->take();
      ASSERT_TRUE(frame);
      EXPECT_EQ(frame->header.request, i);
      EXPECT_TRUE(same(frame->body, pattern(sizes[i], i))) << i;
      linked.worker->send(wire::make_frame(wire::FrameType::combine, i, frame->body));
    }
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      const auto frame = linked.at_backbone.frames->take();
      ASSERT_TRUE(frame);
      EXPECT_EQ(frame->header.type, wire::FrameType::combine);
      EXPECT_TRUE(same(frame->body, pattern(sizes[i], i))) << i;
    }
  }
}

TEST_P(LinkTest, TheLargestFrameArrivesWhole) {
  Linked linked({}, 2);
  const Bytes sent = frame_of(wire::max_frame_body, 1);
  linked.worker->send(sent);
  linked.backbone->send(sent);
  for (const Recorder* side : {&linked.at_backbone, &linked.at_worker}) {
    const auto frame = side->frames->take(120s);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->body.size(), wire::max_frame_body);
    EXPECT_EQ(std::memcmp(frame->body.data(), sent.data() + wire::frame_header_bytes, frame->body.size()), 0);
  }
}

TEST_P(LinkTest, ConcurrentSendersKeepFramesWholeAndEachItsOrder) {
  Linked linked({}, 2);
  constexpr std::uint32_t n = many_threads * frames_of_each;
  exchange_from_many_threads(linked.backbone, linked.worker, linked.at_backbone, linked.at_worker);
  const LinkStats sent = linked.worker->stats(), received = linked.backbone->stats();
  EXPECT_GE(sent.frames_sent, n);
  EXPECT_GE(received.frames_received, n);
  EXPECT_GE(sent.bytes_sent, received.bytes_received);
}

TEST_P(LinkTest, CountsFrameBytes) {
  Nodes nodes;
  nodes.knobs.keep_warm = 1h;
  Linked linked(nodes);
  linked.worker->send(frame_of(1000, 1));
  linked.worker->send(frame_of(0, 2));
  ASSERT_TRUE(linked.at_backbone.frames->take() && linked.at_backbone.frames->take());
  EXPECT_EQ(linked.worker->stats().bytes_sent, 1040u);
  EXPECT_EQ(linked.worker->stats().frames_sent, 2u);
  EXPECT_EQ(linked.backbone->stats().bytes_received, 1040u);
  EXPECT_EQ(linked.backbone->stats().frames_received, 2u);
}

TEST_P(LinkTest, SaysWhetherItIsStillSending) {
  Nodes nodes;
  Linked linked(nodes);
  linked.worker->send(frame_of(32u << 20, 1));  // no kernel takes this at once
  EXPECT_TRUE(linked.worker->sending());
  ASSERT_TRUE(linked.at_backbone.frames->take());
  const auto until = Clock::now() + patience;
  while (linked.worker->sending() && Clock::now() < until) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(linked.worker->sending());
}

TEST_P(LinkTest, KeepsWarmMeasuresAndHidesPings) {
  Nodes nodes;
  nodes.knobs.keep_warm = 10ms;
  Linked linked(nodes);
  const auto until = Clock::now() + patience;
  while (Clock::now() < until && (linked.worker->stats().rtt == 0us || linked.backbone->stats().rtt == 0us))
    std::this_thread::sleep_for(5ms);
  EXPECT_GT(linked.worker->stats().rtt, 0us);
  EXPECT_GT(linked.worker->stats().rtt_min, 0us);
  EXPECT_LE(linked.worker->stats().rtt_min, linked.worker->stats().rtt);
  if (linked.worker->kind() == "quic") return;  // its pings are no frames
  const auto before = linked.worker->stats().frames_sent;
  const auto start = Clock::now();
  std::this_thread::sleep_for(200ms);
  const auto sent = static_cast<long>(linked.worker->stats().frames_sent - before);
  EXPECT_GE(sent, 3);
  EXPECT_LE(sent, 2 * ((Clock::now() - start) / 10ms) + 5) << "more than a ping and a pong every 10 ms";
  EXPECT_EQ(linked.at_worker.frames->size() + linked.at_backbone.frames->size(), 0u);
}

/// A worker that the test plays itself, so that it can fall silent or break rules.
class RawWorker : public OverTransports {
 protected:
  void join() {
    host_ = std::make_unique<Host>(loop_.context(), nodes_.backbone_credentials(), nodes_.knobs);
    peer_ = std::make_unique<RawPeer>(host_->address());
    ASSERT_TRUE(peer_->tls(nodes_.worker));
    ASSERT_TRUE(peer_->prove(nodes_.worker, nodes_.secret));
    ASSERT_EQ(peer_->receive()->header.type, wire::FrameType::auth);
    auto link = host_->links.take();
    ASSERT_TRUE(link);
    link_ = std::move(*link);
    link_->start(recorder_.handlers());
  }
  Error close_reason() {
    const auto error = recorder_.closes->take();
    if (!error) ADD_FAILURE() << "the link was not closed";
    return error.value_or(Error{});
  }
  Nodes nodes_;
  Loop loop_{2};
  std::unique_ptr<Host> host_;
  std::unique_ptr<RawPeer> peer_;
  LinkPtr link_;
  Recorder recorder_;
};

INSTANTIATE_TEST_SUITE_P(Over, RawWorker, testing::Values("", "ws://"), transport_name);

TEST_P(RawWorker, OnlyOnePingIsUnanswered) {
  nodes_.knobs.keep_warm = 5ms;
  join();
  std::this_thread::sleep_for(200ms);
  const LinkStats stats = link_->stats();
  EXPECT_EQ(stats.frames_sent, 1u) << "more pings although the first was not answered";
}

TEST_P(RawWorker, SilenceClosesWithTimeout) {
  nodes_.knobs.keep_warm = 20ms;
  nodes_.knobs.silence_limit = 300ms;
  join();
  const auto start = Clock::now();
  const Error error = close_reason();
  EXPECT_EQ(error.kind, ErrorKind::timeout);
  EXPECT_THAT(error.message, HasSubstr("silent"));
  EXPECT_GE(Clock::now() - start, 250ms);
}

TEST_P(RawWorker, OnceTheRoundTripIsKnownSilenceIsNoticedSooner) {
  nodes_.knobs.keep_warm = 20ms;
  nodes_.knobs.silence_floor = 300ms;  // and a limit of 20 s
  join();
  const auto ping = peer_->receive();
  ASSERT_TRUE(ping && ping->header.type == wire::FrameType::ping);
  peer_->send(wire::make_frame(wire::FrameType::pong, ping->header.request, ping->body));
  const auto start = Clock::now();
  const Error error = close_reason();
  EXPECT_EQ(error.kind, ErrorKind::timeout);
  EXPECT_GE(Clock::now() - start, 250ms);
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_P(RawWorker, APeerThatTakesALongFrameSlowlyIsNotGone) {
  // The ping waits behind megabytes, so its answer takes longer than any silence may last.
  nodes_.knobs.keep_warm = 100ms;
  nodes_.knobs.silence_floor = 400ms;
  Bytes frame = frame_of(48u << 20, 1);  // more than buffers on the way hold
  join();
  const auto ping = peer_->receive();
  ASSERT_TRUE(ping && ping->header.type == wire::FrameType::ping);
  peer_->send(wire::make_frame(wire::FrameType::pong, ping->header.request, ping->body));
  while (link_->stats().rtt == 0us) std::this_thread::yield();
  link_->send(std::move(frame));  // before the next ping
  std::size_t taken = 0;
  for (const auto end = Clock::now() + 2s; Clock::now() < end;) {
    taken += peer_->receive_bytes(256u << 10).size();
    std::this_thread::sleep_for(40ms);
  }
  EXPECT_GT(taken, 1u << 20);
  const auto closed = recorder_.closes->take(0ms);
  EXPECT_FALSE(closed) << "closed although the frame was on its way: " << closed->message;
  // Now it stops reading: what lies in buffers does not hide that for long.
  EXPECT_EQ(close_reason().kind, ErrorKind::timeout);
}

TEST_P(RawWorker, ADeadPeerIsNoticedAlthoughFramesAreSentToIt) {
  nodes_.knobs.keep_warm = 50ms;
  nodes_.knobs.silence_limit = 300ms;
  join();
  std::atomic<bool> stop = false;
  std::thread sender([&] {
    while (!stop) {
      link_->send(frame_of(100, 1));
      std::this_thread::sleep_for(10ms);
    }
  });
  EXPECT_EQ(close_reason().kind, ErrorKind::timeout);
  stop = true;
  sender.join();
}

TEST_P(RawWorker, PongsEchoAndStrayPongsAreIgnored) {
  nodes_.knobs.keep_warm = 1h;
  join();
  peer_->send(wire::make_frame(wire::FrameType::pong, 0, pattern(8, 1)));
  peer_->send(wire::make_frame(wire::FrameType::ping, 42, pattern(8, 2)));
  const auto pong = peer_->receive();
  ASSERT_TRUE(pong);
  EXPECT_EQ(pong->header.type, wire::FrameType::pong);
  EXPECT_EQ(pong->header.request, 42u);
  EXPECT_TRUE(same(pong->body, pattern(8, 2)));
  EXPECT_EQ(link_->stats().rtt, 0us);
  peer_->send(wire::make_frame(wire::FrameType::ping, 1, pattern(5000, 3)));
  EXPECT_THAT(close_reason().message, HasSubstr("protocol violation"));
}

TEST_P(RawWorker, OversizedFrameClosesByItsHeader) {
  join();
  Bytes header = wire::begin_frame(wire::FrameType::combine, 0);
  const std::uint32_t length = wire::max_frame_body + 1;
  std::memcpy(header.data() + 8, &length, sizeof length);
  peer_->send(frame_of(10, 5));
  peer_->send(header);
  EXPECT_EQ(close_reason().kind, ErrorKind::invalid_input);
  EXPECT_EQ(recorder_.frames->size(), 1u) << "what came before the violation counts";
}

TEST_P(RawWorker, GarbageAndForeignVersionsClose) {
  join();
  Bytes frame = frame_of(10, 1);
  frame[4] = std::byte{3};
  peer_->send(frame);
  const Error error = close_reason();
  EXPECT_EQ(error.kind, ErrorKind::incompatible);
  EXPECT_THAT(error.message, AllOf(HasSubstr("version 3"), HasSubstr("version 2")));
  host_.reset();
  join();
  peer_->send(pattern(64, 9));
  EXPECT_EQ(close_reason().kind, ErrorKind::invalid_input);
}

TEST_P(RawWorker, CorruptCiphertextCloses) {
  join();
  Bytes record(100);
  record[0] = std::byte{23}, record[1] = std::byte{3}, record[2] = std::byte{3}, record[4] = std::byte{95};
  peer_->send_raw(record);
  const Error error = close_reason();
  EXPECT_EQ(error.kind, ErrorKind::invalid_input);
  EXPECT_THAT(error.message, HasSubstr("corrupt"));
}

TEST_P(RawWorker, ASecondProofIsAViolation) {
  join();
  peer_->prove(nodes_.worker, nodes_.secret);
  EXPECT_THAT(close_reason().message, HasSubstr("second proof"));
}

TEST_P(RawWorker, DeathInTheMiddleOfAFrameIsNamed) {
  join();
  const Bytes frame = frame_of(50'000, 1);
  peer_->send(ByteSpan(frame).first(30'000));
  std::this_thread::sleep_for(50ms);
  peer_->close();
  const Error error = close_reason();
  EXPECT_EQ(error.kind, ErrorKind::unavailable);
  EXPECT_THAT(error.message, HasSubstr("in the middle of a frame"));
  EXPECT_EQ(recorder_.frames->size(), 0u);
}

TEST_P(RawWorker, AResetUnderTrafficCloses) {
  join();
  std::atomic<bool> stop = false;
  std::thread sender([&] {
    while (!stop) link_->send(frame_of(20'000, 1)), std::this_thread::sleep_for(1ms);
  });
  std::this_thread::sleep_for(20ms);
  peer_->reset();
  EXPECT_EQ(close_reason().kind, ErrorKind::unavailable);
  stop = true;
  sender.join();
  EXPECT_EQ(*recorder_.late, 0);
}

TEST_P(RawWorker, APeerThatDoesNotReadIsClosedAsStuck) {
  nodes_.knobs.max_queued_bytes = 4u << 20;
  nodes_.knobs.keep_warm = 1h;
  join();
  const auto start = Clock::now();
  for (int i = 0; i < 200; ++i) link_->send(frame_of(1u << 20, 1));
  EXPECT_LT(Clock::now() - start, 20s) << "send blocked";
  const Error error = close_reason();
  EXPECT_EQ(error.kind, ErrorKind::unavailable);
  EXPECT_THAT(error.message, HasSubstr("does not take"));
}

TEST_P(LinkTest, CloseFlushesAndBothSidesHearOfItOnce) {
  Linked linked;
  for (std::uint32_t i = 0; i < 50; ++i) linked.worker->send(frame_of(40'000, i));
  linked.worker->close({ErrorKind::unavailable, "enough"});
  linked.worker->close({ErrorKind::unavailable, "again"});
  linked.worker->send(frame_of(1, 99));
  for (std::uint32_t i = 0; i < 50; ++i) {
    const auto frame = linked.at_backbone.frames->take();
    ASSERT_TRUE(frame) << i;
    EXPECT_EQ(frame->header.request, i);
  }
  EXPECT_EQ(linked.at_worker.closes->take()->message, "enough");
  const auto heard = linked.at_backbone.closes->take();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->kind, ErrorKind::unavailable);
  EXPECT_FALSE(linked.at_worker.closes->take(50ms));
  EXPECT_FALSE(linked.at_backbone.closes->take(50ms));
  EXPECT_EQ(linked.at_backbone.frames->size(), 0u);
  EXPECT_EQ(*linked.at_backbone.late + *linked.at_worker.late, 0);
}

TEST_P(LinkTest, LastWordsReachAPeerThatIsStillSending) {
  for (int i = 0; i < 20; ++i) {
    Linked linked;
    for (std::uint32_t n = 0; n < 20; ++n) linked.worker->send(frame_of(30'000, n));
    linked.backbone->send(wire::make_frame(wire::FrameType::refuse, 0, pattern(20, 1)));
    linked.backbone->close({ErrorKind::unauthorized, "no"});
    const auto frame = linked.at_worker.frames->take();
    ASSERT_TRUE(frame) << "the refusal was lost in round " << i;
    EXPECT_EQ(frame->header.type, wire::FrameType::refuse);
    EXPECT_TRUE(linked.at_worker.closes->take());
  }
}

TEST_P(LinkTest, NothingIsDeliveredAfterCloseFromAHandler) {
  Nodes nodes;
  Linked linked(nodes, 1, true);
  auto host_link = [&] {
    linked.worker->close({ErrorKind::unavailable, "first"});
    return linked.host->links.take();
  }();
  ASSERT_TRUE(host_link && *host_link);
  auto worker = linked.guest->links.take();
  ASSERT_TRUE(worker);
  std::atomic<int> frames = 0, closes = 0;
  LinkPtr link = *host_link;
  link->start({.on_frame =
                   [&](const wire::FrameView&) {
                     ++frames;
                     link->close({ErrorKind::unavailable, "one is enough"});
                   },
               .on_close = [&](const Error&) { ++closes; }});
  (*worker)->start(Recorder().handlers());
  for (std::uint32_t i = 0; i < 50; ++i) (*worker)->send(frame_of(100, i));
  const auto until = Clock::now() + patience;
  while (closes == 0 && Clock::now() < until) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(frames, 1);
  EXPECT_EQ(closes, 1);
}

TEST_P(LinkTest, DroppingTheLinkClosesItSilently) {
  Linked linked;
  linked.worker.reset();
  EXPECT_EQ(linked.at_backbone.closes->take()->kind, ErrorKind::unavailable);
  EXPECT_FALSE(linked.at_worker.closes->take(50ms));
}

TEST_P(LinkTest, ShutdownWithTrafficInFlightIsClean) {
  for (int round = 0; round < 15; ++round) {
    std::atomic<bool> stop = false;
    std::vector<std::thread> senders;
    {
      auto linked = std::make_unique<Linked>(Nodes(), 2);
      for (int t = 0; t < 2; ++t) {
        senders.emplace_back([&stop, link = t == 0 ? linked->worker : linked->backbone]() mutable {
          while (!stop) {
            link->send(frame_of(20'000, 1));
            std::this_thread::yield();
          }
          link.reset();
        });
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      if (round % 3 == 0) linked->backbone->close({ErrorKind::unavailable, "bye"});
      if (round % 3 == 1) linked->host.reset();
      stop = true;
      for (std::thread& sender : senders) sender.join();  // a link must not outlive its context
    }
  }
}

TEST_P(LinkTest, WorksThroughDriversOnBothSides) {
  Nodes nodes;
  Driver backbone_driver, worker_driver;
  Host host(backbone_driver.context(), nodes.backbone_credentials(), nodes.knobs);
  Guest guest(worker_driver.context(), {host.address()}, nodes.worker_credentials(), nodes.knobs);
  auto backbone = host.links.take();
  auto worker = guest.links.take();
  ASSERT_TRUE(backbone && worker);
  // The worker echoes on its background thread; two threads of the backbone wait for answers at the same time.
  const std::weak_ptr<Link> weak = *worker;
  (*worker)->start({.on_frame =
                        [weak](const wire::FrameView& frame) {
                          if (auto link = weak.lock())
                            link->send(wire::make_frame(wire::FrameType::combine, frame.header.request, frame.body));
                        },
                    .on_close = [](const Error&) {}});
  std::vector<int> answered(2, 0);  // written by handlers, read by run_until's conditions
  (*backbone)->start(
      {.on_frame = [&](const wire::FrameView& frame) { ++answered[frame.header.request]; }, .on_close = [](const Error&) {}});
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 1; i <= 200; ++i) {
        (*backbone)->send(frame_of(12'288, t));
        EXPECT_TRUE(backbone_driver.run_until([&] { return answered[t] == i; }, Clock::now() + patience));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, (std::vector{200, 200}));
  guest.dialer.reset();
  host.listener.reset();
}

}  // namespace
}  // namespace linkcpp::net
