// Coming and going: redialling, several addresses, lifetimes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

using testing::HasSubstr;

/// A port where nobody listens.
std::string dead_address() {
  Loop loop;
  const Nodes nodes;
  return Host(loop.context(), nodes.backbone_credentials(), nodes.knobs).address();
}

class DialerTest : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Over, DialerTest, testing::Values("", "ws://", "wss://"), transport_name);
class ListenerTest : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Over, ListenerTest, testing::Values("", "ws://"), transport_name);

TEST_P(DialerTest, ReconnectsAHundredTimes) {
  Nodes nodes;
  Loop backbone_loop, worker_loop(2);
  Host host(backbone_loop.context(), nodes.backbone_credentials(), nodes.knobs);
  Guest guest(worker_loop.context(), {host.address()}, nodes.worker_credentials(), nodes.knobs);
  for (std::uint32_t i = 0; i < 100; ++i) {
    auto backbone = host.links.take(), worker = guest.links.take();
    ASSERT_TRUE(backbone && worker) << i;
    Recorder at_backbone, at_worker;
    (*backbone)->start(at_backbone.handlers());
    (*worker)->start(at_worker.handlers());
    (*worker)->send(frame_of(100, i));
    ASSERT_TRUE(at_backbone.frames->take()) << i;
    (i % 2 == 0 ? *backbone : *worker)->close({ErrorKind::unavailable, "next"});
    ASSERT_TRUE(at_worker.closes->take()) << i;
    ASSERT_TRUE(at_backbone.closes->take()) << i;
  }
  EXPECT_EQ(guest.failures.size(), 0u);
  guest.dialer.reset();
}

TEST_P(DialerTest, TriesAddressesInOrderAndReportsEachFailure) {
  Nodes nodes;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  const std::string dead = dead_address();
  Guest guest(loop.context(), {"nonsense", dead, host.address()}, nodes.worker_credentials(), nodes.knobs);
  ASSERT_TRUE(guest.links.take());
  EXPECT_THAT(guest.failures.take()->message, HasSubstr("nonsense"));
  const auto second = guest.failures.take();
  EXPECT_EQ(second->kind, ErrorKind::unavailable);
  EXPECT_THAT(second->message, HasSubstr(dead));
  EXPECT_EQ(guest.failures.size(), 0u);
  guest.dialer.reset();
}

TEST(TransportChoiceTest, FarPeersAreReachedByQuicWhereItPasses) {
  Nodes nodes;
  nodes.knobs.quic_above = 0ms;  // everything is far
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  Guest guest(loop.context(), {host.address()}, nodes.worker_credentials(), nodes.knobs);
  for (int times = 0; times < 3; ++times) {  // from the second time on without asking TCP
    auto at_host = host.links.take(), at_guest = guest.links.take();
    ASSERT_TRUE(at_host && at_guest);
    EXPECT_EQ((*at_guest)->kind(), "quic");
    Recorder recorder;
    (*at_host)->start(recorder.handlers());
    (*at_guest)->start({});
    (*at_guest)->send(frame_of(100, 7));
    ASSERT_TRUE(recorder.frames->take());
    (*at_guest)->close({ErrorKind::unavailable, "again"});
    ASSERT_TRUE(recorder.closes->take());
  }
  guest.dialer.reset();
  EXPECT_EQ(host.refusals.size(), 0u) << host.refusals.take()->error.message;
}

TEST(TransportChoiceTest, WhereUdpDoesNotPassTcpServes) {
  Nodes nodes;
  nodes.knobs.quic_above = 0ms;
  Nodes without = nodes;
  without.knobs.quic_listen = false;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), without.knobs);
  Guest guest(loop.context(), {host.address()}, nodes.worker_credentials(), nodes.knobs);
  auto link = guest.links.take();
  ASSERT_TRUE(link);
  EXPECT_EQ((*link)->kind(), "tcp");
  guest.dialer.reset();
}

TEST(TransportChoiceTest, ASchemeInsists) {
  Nodes nodes;
  nodes.knobs.quic_above = 0ms;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  Guest guest(loop.context(), {"tcp://" + host.address()}, nodes.worker_credentials(), nodes.knobs);
  auto link = guest.links.take();
  ASSERT_TRUE(link);
  EXPECT_EQ((*link)->kind(), "tcp");
  guest.dialer.reset();
}

TEST_P(DialerTest, ResolvesNames) {
  Nodes nodes;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  const auto port = parse_endpoint(host.reached())->port;
  Guest guest(loop.context(), {std::format("{}localhost:{}", scheme, port)}, nodes.worker_credentials(), nodes.knobs);
  EXPECT_TRUE(guest.links.take());
  guest.dialer.reset();
}

TEST_P(DialerTest, BacksOffAndThenFindsTheListener) {
  Nodes nodes;
  nodes.knobs.backoff_min = 20ms;
  nodes.knobs.backoff_max = 160ms;
  Loop loop;
  const std::string address = dead_address();
  const auto start = Clock::now();
  Guest guest(loop.context(), {address}, nodes.worker_credentials(), nodes.knobs);
  std::this_thread::sleep_until(start + 800ms);
  const std::size_t attempts = guest.failures.size();
  // Pauses between half and all of 20, 40, 80, 160, 160...: without growth there would be 40 to 80 attempts.
  EXPECT_GE(attempts, 3u);
  EXPECT_LE(static_cast<long>(attempts), 5 + (Clock::now() - start) / 80ms);
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs, address);
  EXPECT_TRUE(guest.links.take());
  guest.dialer.reset();
}

TEST_P(DialerTest, FatalErrorsRetrySlowly) {
  Nodes nodes;
  nodes.knobs.backoff_max = 400ms;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  Credentials wrong = nodes.worker_credentials();
  wrong.secret = secret_of(99);
  Guest guest(loop.context(), {host.address()}, wrong, nodes.knobs);
  ASSERT_TRUE(guest.failures.take());
  const auto first = Clock::now();
  ASSERT_TRUE(guest.failures.take());
  EXPECT_GE(Clock::now() - first, 190ms);
  guest.dialer.reset();
}

TEST_P(DialerTest, APeerThatAcceptsAndDropsIsNotDialledInAHotLoop) {
  Nodes nodes;
  nodes.knobs.backoff_min = 20ms;
  nodes.knobs.backoff_max = 200ms;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  std::atomic<int> n = 0;
  const auto start = Clock::now();
  auto dialer = Dialer::start(loop.context(), {host.address()}, nodes.worker_credentials(), nodes.knobs, [&](LinkPtr) { ++n; },
                              {});  // the link is dropped at once
  std::this_thread::sleep_for(1s);
  EXPECT_GE(n, 3);
  EXPECT_LE(n, 5 + (Clock::now() - start) / 100ms);
  dialer.reset();
}

TEST_P(DialerTest, NoAddressesIsAnError) {
  const Nodes nodes;
  Loop loop;
  Guest guest(loop.context(), {}, nodes.worker_credentials(), nodes.knobs);
  EXPECT_EQ(guest.failures.take()->kind, ErrorKind::invalid_input);
}

TEST_P(DialerTest, DestructionAtAnyMomentStopsCallbacks) {
  Nodes nodes;
  Loop loop(2);
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  for (int i = 0; i < 60; ++i) {
    std::atomic<bool> alive = true, late = false;
    const auto noted = [&] {
      if (!alive) late = true;
    };
    std::vector<std::string> addresses{i % 3 == 0 ? scheme + "localhost:9" : i % 3 == 1 ? scheme + "127.0.0.1:9" : host.address()};
    auto dialer = Dialer::start(
        loop.context(), addresses, nodes.worker_credentials(), nodes.knobs, [&](LinkPtr) { noted(); }, [&](const Error&) { noted(); });
    std::this_thread::sleep_for(std::chrono::microseconds(i * 150));
    dialer.reset();
    alive = false;
    std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(late) << i;
  }
}

TEST_P(DialerTest, MayBeDestroyedInItsOwnCallback) {
  Nodes nodes;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  Mailbox<LinkPtr> links;
  std::unique_ptr<Dialer> dialer;
  std::mutex made;
  {
    const std::lock_guard lock(made);
    dialer = Dialer::start(loop.context(), {host.address()}, nodes.worker_credentials(), nodes.knobs,
                           [&](LinkPtr link) {
                             const std::lock_guard inner(made);
                             dialer.reset();
                             links.put(std::move(link));
                           },
                           {});
  }
  auto link = links.take();
  ASSERT_TRUE(link);
  auto other = host.links.take();
  ASSERT_TRUE(other);
  Recorder recorder;
  (*other)->start(recorder.handlers());
  (*link)->start({});
  (*link)->send(frame_of(5, 1));
  EXPECT_TRUE(recorder.frames->take());
}

TEST_P(ListenerTest, LinksOutliveIt) {
  Linked linked;
  linked.host->listener.reset();
  std::this_thread::sleep_for(20ms);
  linked.worker->send(frame_of(1000, 1));
  EXPECT_TRUE(linked.at_backbone.frames->take());
  linked.backbone->send(frame_of(1000, 2));
  EXPECT_TRUE(linked.at_worker.frames->take());
  EXPECT_THROW(RawPeer(linked.worker->endpoint()), std::runtime_error) << "it still accepts";
}

TEST_P(ListenerTest, DestructionDuringHandshakesIsClean) {
  Nodes nodes;
  Loop loop(2);
  for (int i = 0; i < 30; ++i) {
    auto host = std::make_unique<Host>(loop.context(), nodes.backbone_credentials(), nodes.knobs);
    RawPeer idle(host->address());
    Guest guest(loop.context(), {host->address()}, nodes.worker_credentials(), nodes.knobs);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 200));
    host.reset();
    guest.dialer.reset();
    EXPECT_TRUE(idle.wait_for_end());
  }
}

TEST_P(ListenerTest, ErrorsNameTheAddressAndTheReason) {
  Nodes nodes;
  Loop loop;
  Host host(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  const auto open = [&](const std::string& address) {
    return Listener::open(loop.context(), address, nodes.backbone_credentials(), nodes.knobs, [](LinkPtr) {}, {}).error();
  };
  EXPECT_THAT(open(host.reached()).message, testing::AllOf(HasSubstr(host.reached()), HasSubstr("in use")));
  EXPECT_EQ(open("no port").kind, ErrorKind::invalid_input);
  EXPECT_THAT(open("no-such-host.invalid:1").message, HasSubstr("no-such-host.invalid:1"));
  EXPECT_THAT(open("203.0.113.1:1").message, HasSubstr("203.0.113.1:1"));
}

TEST_P(ListenerTest, Ipv6Works) {
  Nodes nodes;
  Loop loop;
  auto opened = Listener::open(loop.context(), "[::1]:0", nodes.backbone_credentials(), nodes.knobs, [](LinkPtr) {}, {});
  if (!opened) GTEST_SKIP() << "no IPv6 here: " << opened.error().message;
  EXPECT_THAT((*opened)->address(), testing::StartsWith("[::1]:"));
  Guest guest(loop.context(), {scheme + (*opened)->address()}, nodes.worker_credentials(), nodes.knobs);
  const auto link = guest.links.take();
  ASSERT_TRUE(link);
  EXPECT_EQ((*link)->endpoint(), (*opened)->address());
  guest.dialer.reset();
}

TEST(TransportTest, CongestionControlIsNamed) {
  EXPECT_NE(congestion_control_in_force({}), "unknown");
  EXPECT_EQ(congestion_control_in_force({.congestion_control = "reno"}), "reno");
  EXPECT_EQ(congestion_control_in_force({.congestion_control = "no-such-thing"}), congestion_control_in_force({.congestion_control = ""}));
}

}  // namespace
}  // namespace linkcpp::net
