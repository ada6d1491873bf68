// Links over QUIC: integrity and order, proofs, resumption and its replay, loss, silence, amplification, strangers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "unit/net/quic_harness.h"

namespace linkcpp::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A frame that may overtake others, as a session marks it.
Bytes free_frame(std::size_t n, std::uint32_t seed, wire::FrameType type = wire::FrameType::dispatch) {
  Bytes frame = frame_of(n, seed, type);
  frame[7] |= std::byte{0x80};
  return frame;
}

TEST(QuicTest, CarriesFramesOfAllSizesInOrder) {
  QuicLinked linked;
  const std::vector<std::size_t> sizes = {0, 1, 100, 1200, 1452, 16384, 16385, 98'304, 300'000, 5, 0, 1'048'576, 7};
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
      EXPECT_TRUE(same(frame->body, pattern(sizes[i], i))) << i;
    }
  }
  EXPECT_EQ(linked.worker->peer(), linked.nodes.backbone.key());
  EXPECT_EQ(linked.backbone->peer(), linked.nodes.worker.key());
}

TEST(QuicTest, TheLargestFrameArrivesWhole) {
  QuicLinked linked;
  const Bytes sent = frame_of(wire::max_frame_body, 1);
  linked.worker->send(sent);
  linked.backbone->send(free_frame(wire::max_frame_body, 1));
  for (const Recorder* side : {&linked.at_backbone, &linked.at_worker}) {
    const auto frame = side->frames->take(120s);
    ASSERT_TRUE(frame);
    ASSERT_EQ(frame->body.size(), wire::max_frame_body);
    EXPECT_EQ(std::memcmp(frame->body.data(), sent.data() + wire::frame_header_bytes, frame->body.size()), 0);
  }
}

TEST(QuicTest, ManyFreeFramesAllArriveOnce) {
  QuicLinked linked;
  constexpr std::uint32_t n = 5000;  // more than the peer allows at a time
  for (std::uint32_t i = 0; i < n; ++i) linked.backbone->send(free_frame(i % 3000, i));
  std::vector<int> seen(n, 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    const auto frame = linked.at_worker.frames->take();
    ASSERT_TRUE(frame) << i;
    const auto id = static_cast<std::uint32_t>(frame->header.request);
    ASSERT_LT(id, n);
    ++seen[id];
    ASSERT_TRUE(same(frame->body, pattern(id % 3000, id)));
  }
  EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
}

TEST(QuicTest, ConcurrentSendersKeepFramesWholeAndEachItsOrder) {
  QuicLinked linked({}, {}, 2);
  exchange_from_many_threads(linked.backbone, linked.worker, linked.at_backbone, linked.at_worker);
}

TEST(QuicTest, LossAndRepetitionLoseAndDoubleNothing) {
  std::minstd_rand random(7);
  QuicLinked linked([&](bool, ByteSpan, std::size_t) {
    const auto roll = random() % 100;
    return roll < 10 ? 0 : roll < 15 ? 2 : 1;
  });
  constexpr std::uint32_t n = 400;
  for (std::uint32_t i = 0; i < n; ++i) {
    linked.backbone->send(i % 2 == 0 ? free_frame(6000, i) : frame_of(3000, i));
    linked.worker->send(i % 2 == 0 ? free_frame(3000, i) : frame_of(6000, i));
  }
  for (const Recorder* side : {&linked.at_backbone, &linked.at_worker}) {
    std::vector<int> seen(n, 0);
    std::uint32_t last_ordered = 1;
    for (std::uint32_t i = 0; i < n; ++i) {
      const auto frame = side->frames->take(60s);
      ASSERT_TRUE(frame) << i;
      const auto id = static_cast<std::uint32_t>(frame->header.request);
      ++seen.at(id);
      if (id % 2 == 1) {
        EXPECT_GE(id, last_ordered) << "ordered frames keep their order";
        last_ordered = id;
      }
      const bool large = (side == &linked.at_worker) == (id % 2 == 0);
      ASSERT_TRUE(same(frame->body, pattern(large ? 6000 : 3000, id)));
    }
    EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
  }
}

TEST(QuicTest, MeasuresRoundTripsAndHidesPings) {
  QuicLinked linked;
  std::this_thread::sleep_for(200ms);
  EXPECT_GT(linked.worker->stats().rtt, 0us);
  EXPECT_LE(linked.worker->stats().rtt_min, linked.worker->stats().rtt);
  EXPECT_EQ(linked.at_worker.frames->size() + linked.at_backbone.frames->size(), 0u);
}

TEST(QuicTest, ClosingTellsBothSidesOnceAndFlushes) {
  QuicLinked linked;
  for (std::uint32_t i = 0; i < 50; ++i) linked.worker->send(frame_of(20'000, i));
  linked.worker->close({ErrorKind::unavailable, "enough"});
  linked.worker->send(frame_of(1, 99));
  for (std::uint32_t i = 0; i < 50; ++i) ASSERT_TRUE(linked.at_backbone.frames->take());
  EXPECT_EQ(linked.at_worker.closes->take()->message, "enough");
  EXPECT_THAT(linked.at_backbone.closes->take()->message, HasSubstr("closed the connection"));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(linked.at_backbone.frames->size() + linked.at_worker.closes->size() + linked.at_backbone.closes->size(), 0u);
  EXPECT_EQ(*linked.at_worker.late + *linked.at_backbone.late, 0);
}

TEST(QuicTest, DroppingTheLinkClosesIt) {
  QuicLinked linked;
  linked.worker.reset();
  EXPECT_EQ(linked.at_backbone.closes->take()->kind, ErrorKind::unavailable);
}

TEST(QuicTest, AWrongTokenIsRefusedWithTheRemedy) {
  Nodes nodes;
  Loop loop;
  QuicNode host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  host.accept();
  auto credentials = nodes.worker_credentials();
  credentials.secret = secret_of(9);
  QuicNode guest(loop.context(), credentials, nodes.knobs);
  guest.dial(host.endpoint->local());
  const auto error = guest.failures.take();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::unauthorized);
  EXPECT_THAT(error->message, AllOf(HasSubstr("refused"), HasSubstr("linkcpp token")));
  EXPECT_EQ(host.refusals.take()->error.kind, ErrorKind::unauthorized);
  EXPECT_EQ(host.links.size() + guest.links.size(), 0u);
}

TEST(QuicTest, AnotherBackboneThanTheTokensIsNotTrusted) {
  Nodes nodes;
  Loop loop;
  const Identity impostor = new_identity();
  QuicNode host(loop.context(), {impostor, nodes.secret, std::nullopt, true}, nodes.knobs);
  host.accept();
  QuicNode guest(loop.context(), nodes.worker_credentials(), nodes.knobs);
  guest.dial(host.endpoint->local());
  const auto error = guest.failures.take();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::unauthorized);
  EXPECT_THAT(error->message, HasSubstr("not the backbone that the join token names"));
  const auto refusal = host.refusals.take();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->error.kind, ErrorKind::unauthorized) << refusal->error.message;
}

TEST(QuicTest, ABackboneMayDialTheWorker) {
  Nodes nodes;
  Loop loop;
  QuicNode worker(loop.context(), nodes.worker_credentials(), nodes.knobs);
  worker.accept();
  QuicNode backbone(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  backbone.dial(worker.endpoint->local());
  auto at_backbone = backbone.links.take(), at_worker = worker.links.take();
  ASSERT_TRUE(at_backbone && at_worker);
  Recorder recorder;
  (*at_worker)->start(recorder.handlers());
  (*at_backbone)->send(frame_of(100, 5));
  EXPECT_EQ(recorder.frames->take()->header.request, 5u);
}

TEST(QuicTest, NobodyThereIsReportedByTheDeadline) {
  Nodes nodes;
  nodes.knobs.handshake_deadline = 300ms;
  Loop loop;
  QuicNode guest(loop.context(), nodes.worker_credentials(), nodes.knobs);
  guest.dial({boost::asio::ip::make_address("127.0.0.1"), 9});
  const auto error = guest.failures.take();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::timeout);
  EXPECT_THAT(error->message, HasSubstr("firewall"));
}

TEST(QuicTest, AnUnreachablePeerIsNoticedAfterThreeRoundTripsAndASecond) {
  std::atomic<bool> cut = false;
  Nodes nodes;
  nodes.knobs.silence_floor = 1000ms;
  QuicLinked linked([&](bool, ByteSpan, std::size_t) { return cut ? 0 : 1; }, nodes);
  std::this_thread::sleep_for(100ms);
  cut = true;
  const auto begin = Clock::now();
  const auto closed = linked.at_worker.closes->take();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->kind, ErrorKind::timeout) << closed->message;
  EXPECT_THAT(closed->message, HasSubstr("silent"));
  EXPECT_GT(Clock::now() - begin, 900ms);
  EXPECT_TRUE(linked.at_backbone.closes->take());
}

TEST(QuicTest, ANodeThatLostItsMemorySaysSo) {
  Nodes nodes;
  nodes.knobs.silence_limit = 60'000ms;
  Loop worker_loop;
  QuicNode guest(worker_loop.context(), nodes.worker_credentials(), nodes.knobs);
  Recorder at_worker;
  LinkPtr worker;
  std::atomic<bool> lossy = false;
  std::unique_ptr<UdpBox> box;
  {
    Loop loop;
    QuicNode host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
    host.accept();
    box = std::make_unique<UdpBox>(host.endpoint->local(), [&](bool, ByteSpan, std::size_t) { return lossy ? 0 : 1; });
    guest.dial(box->address());
    worker = guest.links.take().value();
    worker->start(at_worker.handlers());
    ASSERT_TRUE(host.links.take());
    lossy = true;  // a power cut says no farewell
  }
  // The same node again knows no connection, and says so: its peer need not wait for silence.
  Loop loop;
  QuicNode again(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  again.accept();
  box->lead_to(again.endpoint->local());
  lossy = false;
  const auto closed = at_worker.closes->take(5s);
  ASSERT_TRUE(closed);
  EXPECT_THAT(closed->message, HasSubstr("forgot"));
}

// ---- resumption ------------------------------------------------------------------------------------------------------

/// Waits until the client has a ticket for next time, and ends the link.
void leave_with_ticket(QuicLinked& linked) {
  linked.worker->send(frame_of(10, 1));
  linked.backbone->send(frame_of(10, 1));
  ASSERT_TRUE(linked.at_backbone.frames->take() && linked.at_worker.frames->take());
  std::this_thread::sleep_for(100ms);
  linked.worker.reset();
  ASSERT_TRUE(linked.at_backbone.closes->take());
}

TEST(QuicTest, AResumedLinkSpeaksWithItsFirstPacket) {
  QuicLinked linked([](bool, ByteSpan, std::size_t) { return 1; });
  leave_with_ticket(linked);
  linked.box->forget_recorded();
  // The request leaves before anything has come back.
  linked.link([&](const LinkPtr& link) { link->send(free_frame(3000, 42)); });
  const auto frame = linked.at_backbone.frames->take();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header.request, 42u);
  EXPECT_TRUE(same(frame->body, pattern(3000, 42)));
  EXPECT_EQ(linked.backbone->peer(), linked.nodes.worker.key());
  EXPECT_EQ(linked.worker->peer(), linked.nodes.backbone.key());
  linked.backbone->send(frame_of(5, 43));
  EXPECT_EQ(linked.at_worker.frames->take()->header.request, 43u);
  // Again, with the ticket that the second connection gave.
  leave_with_ticket(linked);
  linked.link([&](const LinkPtr& link) { link->send(free_frame(3000, 44)); });
  EXPECT_EQ(linked.at_backbone.frames->take()->header.request, 44u);
}

TEST(QuicTest, AResumedLinkIsHeardBeforeAnAnswerHasCome) {
  std::atomic<bool> answers = true;
  QuicLinked linked([&](bool to_server, ByteSpan, std::size_t) { return to_server || answers ? 1 : 0; });
  leave_with_ticket(linked);
  linked.link();  // resumed itself: it gives a ticket too
  leave_with_ticket(linked);
  answers = false;
  linked.guest->dial(linked.address(), [](const LinkPtr& link) { link->send(free_frame(3000, 42)); });
  auto backbone = linked.host->links.take();
  ASSERT_TRUE(backbone);
  Recorder heard;
  (*backbone)->start(heard.handlers());
  const auto frame = heard.frames->take();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header.request, 42u);
  // A long answer is welcome on it.
  answers = true;
  Recorder answered;
  auto worker = linked.guest->links.take();
  ASSERT_TRUE(worker);
  (*worker)->start(answered.handlers());
  (*backbone)->send(frame_of(100'000, 43));
  EXPECT_EQ(answered.frames->take()->header.request, 43u);
}

TEST(QuicTest, ATicketOutlivesTheConnectionThatGaveIt) {
  std::atomic<bool> answers = true;
  QuicLinked linked([&](bool to_server, ByteSpan, std::size_t) { return to_server || answers ? 1 : 0; });
  leave_with_ticket(linked);
  linked.backbone.reset();
  std::this_thread::sleep_for(1s);  // its closing period is over, and nothing is left of it
  answers = false;
  linked.guest->dial(linked.address(), [](const LinkPtr& link) { link->send(free_frame(3000, 42)); });
  auto backbone = linked.host->links.take(5s);
  ASSERT_TRUE(backbone) << "the server had forgotten the ticket";
  Recorder heard;
  (*backbone)->start(heard.handlers());
  EXPECT_EQ(heard.frames->take()->header.request, 42u);
  answers = true;
  EXPECT_TRUE(linked.guest->links.take());
}

TEST(QuicTest, AReplayedFirstFlightIsNotHeardTwice) {
  QuicLinked linked([](bool, ByteSpan, std::size_t) { return 1; });
  leave_with_ticket(linked);
  linked.box->forget_recorded();
  linked.link([&](const LinkPtr& link) { link->send(free_frame(3000, 42)); });
  ASSERT_TRUE(linked.at_backbone.frames->take());
  const auto flight = linked.box->recorded();
  linked.worker.reset();
  ASSERT_TRUE(linked.at_backbone.closes->take());
  std::this_thread::sleep_for(500ms);  // the old ids are forgotten
  // Somebody who listened sends the same datagrams again, from another address.
  const auto to = linked.host->endpoint->local();
  for (int times = 0; times < 3; ++times) {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const SocketAddress address(to);
    for (const Bytes& datagram : flight) ::sendto(fd, datagram.data(), datagram.size(), 0, address.get(), address.length);
    std::this_thread::sleep_for(200ms);
    ::close(fd);
  }
  EXPECT_EQ(linked.host->links.size(), 0u) << "a replay became a link";
  EXPECT_EQ(linked.at_backbone.frames->size(), 0u);
}

TEST(QuicTest, ATicketThatTheServerForgotCostsAHandshakeAndLosesNothing) {
  QuicLinked linked;
  leave_with_ticket(linked);
  // The backbone starts anew: same key, no memory. The worker dials another port, so its ticket is moved there by hand.
  Loop loop;
  QuicNode again(loop.context(), linked.nodes.backbone_credentials(), linked.nodes.knobs);
  again.accept();
  UdpBox box(again.endpoint->local(), [](bool, ByteSpan, std::size_t) { return 1; });
  linked.guest->on_strand([&] {
    linked.guest->endpoint->hub()->dial(box.address(), to_text(linked.host->endpoint->local()),
                                        [&](Result<std::shared_ptr<Connection>> ready) {
                                          if (!ready) return linked.guest->failures.put(ready.error());
                                          auto link = make_link(std::move(*ready));
                                          link->send(free_frame(3000, 77));
                                          link->send(frame_of(30, 78));
                                          linked.guest->links.put(std::move(link));
                                        });
  });
  auto worker = linked.guest->links.take();
  ASSERT_TRUE(worker);
  Recorder at_worker, at_backbone;
  (*worker)->start(at_worker.handlers());
  auto backbone = again.links.take();
  ASSERT_TRUE(backbone);
  (*backbone)->start(at_backbone.handlers());
  std::vector<std::uint64_t> ids{at_backbone.frames->take()->header.request, at_backbone.frames->take()->header.request};
  std::ranges::sort(ids);
  EXPECT_EQ(ids, (std::vector<std::uint64_t>{77, 78}));
  EXPECT_EQ(at_backbone.frames->size(), 0u);
}

// ---- strangers -------------------------------------------------------------------------------------------------------

TEST(QuicTest, AnUnprovedAddressIsAnsweredAtMostThreefold) {
  Nodes nodes;
  Loop loop, other;
  QuicNode host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  host.accept();
  std::atomic<std::size_t> passed = 0;
  // Only the first datagram reaches the host: as if its sender had written another's address into it.
  UdpBox box(host.endpoint->local(), [&](bool to_server, ByteSpan, std::size_t) { return to_server ? (passed++ == 0 ? 1 : 0) : 1; });
  nodes.knobs.handshake_deadline = 3000ms;
  QuicNode guest(other.context(), nodes.worker_credentials(), nodes.knobs);
  guest.dial(box.address());
  ASSERT_TRUE(guest.failures.take());
  const std::size_t first = box.recorded().front().size();
  EXPECT_LE(box.bytes_to_client, 3 * first) << "after a first datagram of " << first;
}

TEST(QuicTest, ManyStrangersMustProveTheirAddressAndHonestOnesStillJoin) {
  Nodes nodes;
  nodes.knobs.quic_retry_above = 4;
  nodes.knobs.max_handshakes = 32;
  Loop loop, other;
  QuicNode host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  host.accept();
  // Half-open handshakes from everywhere.
  std::vector<std::unique_ptr<UdpBox>> boxes;
  std::vector<std::unique_ptr<QuicNode>> strangers;
  std::atomic<int> answered = 0;
  for (int i = 0; i < 12; ++i) {
    boxes.push_back(std::make_unique<UdpBox>(host.endpoint->local(), [&](bool to_server, ByteSpan, std::size_t) {
      if (!to_server) ++answered;
      return to_server ? 1 : 0;
    }));
    strangers.push_back(std::make_unique<QuicNode>(other.context(), nodes.worker_credentials(), nodes.knobs));
    strangers.back()->dial(boxes.back()->address());
  }
  std::this_thread::sleep_for(300ms);
  QuicNode guest(other.context(), nodes.worker_credentials(), nodes.knobs);
  guest.dial(host.endpoint->local());
  EXPECT_TRUE(guest.links.take());
  EXPECT_TRUE(host.links.take());
  EXPECT_GT(answered, 0);
}

TEST(QuicTest, GarbageIsIgnored) {
  QuicLinked linked;
  const auto to = linked.host->endpoint->local();
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const SocketAddress address(to);
  std::minstd_rand random(3);
  for (std::uint32_t i = 0; i < 3000; ++i) {
    Bytes garbage = pattern(random() % 1500, i);
    if (i % 3 == 0 && !garbage.empty()) garbage[0] = std::byte{0xC0} | (garbage[0] & std::byte{0x3F});  // long headers
    ::sendto(fd, garbage.data(), garbage.size(), 0, address.get(), address.length);
  }
  linked.worker->send(frame_of(1000, 9));
  EXPECT_EQ(linked.at_backbone.frames->take()->header.request, 9u);
  ::close(fd);
}

TEST(QuicTest, BrokenFramesEndTheLinkWithAReason) {
  QuicLinked linked;
  Bytes broken = frame_of(100, 1);
  broken[0] = std::byte{0};  // no magic
  linked.worker->send(std::move(broken));
  const auto at_backbone = linked.at_backbone.closes->take();
  ASSERT_TRUE(at_backbone);
  EXPECT_EQ(at_backbone->kind, ErrorKind::invalid_input);
  EXPECT_THAT(at_backbone->message, HasSubstr("protocol violation"));
  EXPECT_THAT(linked.at_worker.closes->take()->message, HasSubstr("protocol violation"));
}

TEST(QuicTest, ASecondProofEndsTheLink) {
  QuicLinked linked;
  linked.worker->send(frame_of(32, 0, wire::FrameType::auth));
  EXPECT_THAT(linked.at_backbone.closes->take()->message, HasSubstr("second proof"));
}

}  // namespace
}  // namespace linkcpp::net
