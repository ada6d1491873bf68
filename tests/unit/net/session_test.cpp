// Sessions over real connections that are cut, frozen and refused: frames are neither lost nor repeated, and who may take part in what.
#include "wire/session.h"

#include <gmock/gmock.h>

#include "net/session_transport.h"
#include "unit/net/cut_proxy.h"
#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

/// A link of a session, with what happens to it.
struct Watched {
  LinkPtr link;
  Recorder at;
  std::shared_ptr<Mailbox<int>> suspensions = std::make_shared<Mailbox<int>>(), resumptions = std::make_shared<Mailbox<int>>();

  explicit Watched(LinkPtr l) : link(std::move(l)) {
    auto handlers = at.handlers();
    handlers.on_suspended = [box = suspensions] { box->put(1); };
    handlers.on_resumed = [box = resumptions] { box->put(1); };
    link->start(std::move(handlers));
  }
};

/// A backbone that takes sessions.
struct SessionHost {
  Mailbox<LinkPtr> links;
  Mailbox<Refusal> refusals;
  std::unique_ptr<SessionListener> listener;

  SessionHost(Loop& loop, const Nodes& nodes, SessionKnobs knobs, const std::string& address = "127.0.0.1:0") {
    auto opened = SessionListener::open(
        loop.context(), {address}, nodes.backbone_credentials(), nodes.knobs, std::move(knobs),
        [this](LinkPtr link) { links.put(std::move(link)); },
        [this](const std::string& endpoint, const Error& error) { refusals.put({endpoint, error}); });
    if (!opened) throw std::runtime_error(opened.error().message);
    listener = std::move(*opened);
  }
  [[nodiscard]] std::string address() const { return listener->addresses().front(); }
  [[nodiscard]] std::uint16_t port() const { return parse_address(address())->endpoint.port; }
};

struct SessionGuest {
  Mailbox<LinkPtr> links;
  Mailbox<Error> failures;
  std::unique_ptr<SessionDialer> dialer;

  SessionGuest(Loop& loop, const Nodes& nodes, SessionKnobs knobs, std::vector<std::string> addresses) {
    dialer = SessionDialer::start(
        loop.context(), addresses, nodes.worker_credentials(), nodes.knobs, std::move(knobs),
        [this](LinkPtr link) { links.put(std::move(link)); }, [this](const Error& error) { failures.put(error); });
  }
};

class SessionTest : public testing::Test {
 protected:
  SessionTest() { nodes_.knobs.quic_listen = false; }  // what the proxy does not see cannot be cut
  Watched next(SessionHost& host) { return Watched(host.links.take().value()); }
  Watched next(SessionGuest& guest) { return Watched(guest.links.take().value()); }

  Nodes nodes_;
  SessionKnobs knobs_;
  Loop backbone_loop_, worker_loop_{2};
};

/// By the transport of the connections beneath.
class SessionOver : public SessionTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, SessionOver, testing::Values("", "ws://"), transport_name);

TEST_P(SessionOver, ConnectionsThatAreCutAgainAndAgainNeitherLoseNorRepeatAFrame) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  CutProxy proxy(host.port());
  SessionGuest guest(worker_loop_, nodes_, knobs_, {GetParam() + proxy.address()});
  Watched worker = next(guest), backbone = next(host);
  EXPECT_EQ(worker.link->peer(), nodes_.backbone.key());
  EXPECT_EQ(backbone.link->peer(), nodes_.worker.key());

  std::atomic<bool> over = false;
  std::thread saboteur([&] {
    while (!over) {
      std::this_thread::sleep_for(25ms);
      proxy.cut();
    }
  });
  exchange_from_many_threads(backbone.link, worker.link, backbone.at, worker.at, Order::may_overtake);
  over = true;
  saboteur.join();
  EXPECT_EQ(backbone.at.frames->size() + worker.at.frames->size(), 0u) << "some came twice";
  EXPECT_EQ(backbone.at.closes->size() + worker.at.closes->size(), 0u);
  EXPECT_GT(worker.suspensions->size(), 0u) << "nothing was cut";
  EXPECT_GT(backbone.suspensions->size(), 0u);
  EXPECT_TRUE(worker.resumptions->take());
}

TEST_F(SessionTest, AConnectionThatFallsSilentIsReplacedByANewOne) {
  nodes_.knobs.silence_floor = 1000ms;
  SessionHost host(backbone_loop_, nodes_, knobs_);
  CutProxy proxy(host.port());
  SessionGuest guest(worker_loop_, nodes_, knobs_, {proxy.address()});
  Watched worker = next(guest), backbone = next(host);
  worker.link->send(frame_of(100, 1));
  ASSERT_TRUE(backbone.at.frames->take());
  const auto measured = [&] { return worker.link->stats().rtt.count() > 0 && backbone.link->stats().rtt.count() > 0; };
  for (const auto end = Clock::now() + patience; !measured() && Clock::now() < end;) std::this_thread::sleep_for(5ms);
  const auto frozen = Clock::now();
  proxy.freeze();
  worker.link->send(frame_of(100, 2));
  backbone.link->send(frame_of(100, 3));
  const auto there = backbone.at.frames->take(), back = worker.at.frames->take();
  ASSERT_TRUE(there && back);
  EXPECT_EQ(there->header.request, 2u);
  EXPECT_EQ(back->header.request, 3u);
  EXPECT_LT(Clock::now() - frozen, nodes_.knobs.silence_limit) << "the limit for links whose round trip is known was not used";
}

TEST_F(SessionTest, APeerThatWasRestartedKnowsTheSessionNoMoreAndANewOneFollows) {
  auto host = std::make_unique<SessionHost>(backbone_loop_, nodes_, knobs_);
  CutProxy proxy(host->port());
  SessionGuest guest(worker_loop_, nodes_, knobs_, {proxy.address()});
  Watched worker = next(guest), backbone = next(*host);
  worker.link->send(frame_of(100, 1));
  ASSERT_TRUE(backbone.at.frames->take());
  SessionHost reborn(backbone_loop_, nodes_, knobs_);
  proxy.to(reborn.port());
  proxy.cut();
  const auto closed = worker.at.closes->take();
  ASSERT_TRUE(closed);
  EXPECT_THAT(closed->message, HasSubstr("restarted"));
  Watched again = next(guest), there = next(reborn);
  again.link->send(frame_of(100, 7));
  const auto frame = there.at.frames->take();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header.request, 7u);
  EXPECT_EQ(worker.at.late->load(), 0);
}

TEST_F(SessionTest, WhoStaysAwayTooLongHasLeft) {
  knobs_.core.patience = 300ms;
  SessionHost host(backbone_loop_, nodes_, knobs_);
  CutProxy proxy(host.port());
  SessionGuest guest(worker_loop_, nodes_, knobs_, {proxy.address()});
  Watched worker = next(guest), backbone = next(host);
  proxy.shut(true);
  proxy.cut();
  EXPECT_TRUE(worker.suspensions->take());
  EXPECT_TRUE(backbone.suspensions->take());
  EXPECT_TRUE(worker.at.closes->take());
  EXPECT_TRUE(backbone.at.closes->take());
  EXPECT_EQ(worker.resumptions->size(), 0u);
  proxy.shut(false);
  Watched again = next(guest), there = next(host);
  there.link->send(frame_of(10, 5));
  EXPECT_TRUE(again.at.frames->take());
}

TEST_F(SessionTest, WhatWasSentBeforeCloseArrivesAndBothSidesHearOfTheEnd) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  SessionGuest guest(worker_loop_, nodes_, knobs_, {host.address()});
  Watched worker = next(guest), backbone = next(host);
  for (std::uint32_t i = 0; i < 200; ++i) worker.link->send(frame_of(10'000, i));
  worker.link->close({ErrorKind::unavailable, "done here"});
  for (std::uint32_t i = 0; i < 200; ++i) {
    const auto frame = backbone.at.frames->take();
    ASSERT_TRUE(frame) << i;
    EXPECT_EQ(frame->header.request, i);
  }
  const auto here = worker.at.closes->take(), there = backbone.at.closes->take();
  ASSERT_TRUE(here && there);
  EXPECT_EQ(here->message, "done here");
  EXPECT_THAT(there->message, HasSubstr("done here"));
  Watched again = next(guest);  // the dialer goes on
  EXPECT_EQ(backbone.at.late->load() + worker.at.late->load(), 0);
}

TEST_F(SessionTest, ALinkThatIsDroppedEndsTheSessionAtThePeerToo) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  SessionGuest guest(worker_loop_, nodes_, knobs_, {host.address()});
  Watched worker = next(guest), backbone = next(host);
  worker.link.reset();
  EXPECT_TRUE(backbone.at.closes->take());
  EXPECT_EQ(worker.at.closes->size(), 0u);
}

TEST_F(SessionTest, LinksMayBeDroppedAtAnyMoment) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  SessionGuest guest(worker_loop_, nodes_, knobs_, {host.address()});
  for (std::uint32_t i = 0; i < 20; ++i) {
    Watched worker = next(guest), backbone = next(host);
    std::thread sender([link = worker.link] {
      for (std::uint32_t n = 0; n < 50; ++n) link->send(frame_of(3000, n));
    });
    if (i % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 150));
    (i % 2 == 0 ? worker : backbone).link.reset();
    sender.join();
  }
}

TEST_F(SessionTest, CloseBeforeStartAndStartWithoutAConnection) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  CutProxy proxy(host.port());
  SessionGuest guest(worker_loop_, nodes_, knobs_, {proxy.address()});
  const LinkPtr unstarted = guest.links.take().value();
  const LinkPtr waiting = host.links.take().value();
  proxy.shut(true);
  proxy.cut();
  unstarted->send(frame_of(10, 1));
  unstarted->close({ErrorKind::unavailable, "never mind"});
  Watched late(unstarted);
  const auto closed = late.at.closes->take();
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->message, "never mind");
}

// ---- who may take part ------------------------------------------------------------------------------------------------

/// A node that says by hand what it wants on connections of its own.
class Stranger {
 public:
  Stranger(Loop& loop, const Nodes& nodes, const std::string& address) {
    dialer_ = Dialer::start(
        loop.context(), {address}, nodes.worker_credentials(), nodes.knobs, [this](LinkPtr link) { links_.put(std::move(link)); },
        [](const Error&) {});
  }
  Watched connect() { return Watched(links_.take().value()); }

 private:
  Mailbox<LinkPtr> links_;
  std::unique_ptr<Dialer> dialer_;
};

wire::Attach attach_to(std::uint8_t session, bool may_create = true) {
  wire::Attach attach{.may_create = may_create};
  attach.id.fill(session);
  return attach;
}

TEST_F(SessionTest, NobodyTakesOverTheSessionOfAnother) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  Nodes other = nodes_;
  other.worker = new_identity();
  Stranger owner(worker_loop_, nodes_, host.address()), thief(worker_loop_, other, host.address());
  Watched mine = owner.connect();
  mine.link->send(wire::make_attach(attach_to(1)));
  ASSERT_TRUE(mine.at.frames->take());  // attached
  Watched backbone = next(host);
  for (const bool may_create : {true, false}) {
    Watched theirs = thief.connect();
    theirs.link->send(wire::make_attach(attach_to(1, may_create)));
    const auto answer = theirs.at.frames->take();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->header.type, wire::FrameType::end);
    EXPECT_TRUE(theirs.at.closes->take());
    EXPECT_THAT(host.refusals.take()->error.message, HasSubstr("session"));
  }
  EXPECT_EQ(backbone.at.closes->size(), 0u);
  EXPECT_EQ(host.links.size(), 0u);
}

TEST_F(SessionTest, WhoDoesNotSayWhichSessionIsRefused) {
  knobs_.attach_deadline = 100ms;
  SessionHost host(backbone_loop_, nodes_, knobs_);
  Stranger stranger(worker_loop_, nodes_, host.address());
  Watched silent = stranger.connect();
  EXPECT_TRUE(silent.at.closes->take());
  const auto refusal = host.refusals.take();
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->error.message, HasSubstr("did not say which session"));
}

TEST_F(SessionTest, FramesWithoutASessionAreHeldOnlyUpToALimit) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  Stranger stranger(worker_loop_, nodes_, host.address());
  Watched loud = stranger.connect();
  for (std::uint32_t i = 0; i < 8; ++i) loud.link->send(frame_of(knobs_.max_early_bytes / 4, i));
  EXPECT_TRUE(loud.at.closes->take());
  EXPECT_THAT(host.refusals.take()->error.message, HasSubstr("before it has said"));
}

TEST_F(SessionTest, AnUnknownSessionThatMayNotBeNewIsRefused) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  Stranger stranger(worker_loop_, nodes_, host.address());
  Watched lost = stranger.connect();
  lost.link->send(wire::make_attach(attach_to(9, false)));
  const auto answer = lost.at.frames->take();
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->header.type, wire::FrameType::end);
  EXPECT_THAT(wire::decode_end({answer->header, answer->body})->reason, HasSubstr("unknown session"));
}

TEST_F(SessionTest, ANodeHasOnlySoManySessions) {
  knobs_.sessions_per_peer = 3;
  SessionHost host(backbone_loop_, nodes_, knobs_);
  nodes_.knobs.backoff_max = 1ms;
  std::vector<std::unique_ptr<Stranger>> strangers;
  std::vector<Watched> held;
  std::vector<LinkPtr> links;
  for (std::uint8_t i = 0; i < 3; ++i) {
    strangers.push_back(std::make_unique<Stranger>(worker_loop_, nodes_, host.address()));
    held.push_back(strangers.back()->connect());
    held.back().link->send(wire::make_attach(attach_to(i)));
    links.push_back(host.links.take().value());
  }
  strangers.push_back(std::make_unique<Stranger>(worker_loop_, nodes_, host.address()));
  Watched one_more = strangers.back()->connect();
  one_more.link->send(wire::make_attach(attach_to(77)));
  EXPECT_TRUE(one_more.at.closes->take());
  EXPECT_THAT(host.refusals.take()->error.message, HasSubstr("3 sessions here already"));
  // One that is suspended makes room.
  held.front().link.reset();
  strangers.erase(strangers.begin());
  Watched last = strangers.back()->connect();
  last.link->send(wire::make_attach(attach_to(78)));
  EXPECT_TRUE(host.links.take());
}

TEST_F(SessionTest, NonsenseOnAPathEndsTheSessionWithItsReason) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  Stranger stranger(worker_loop_, nodes_, host.address());
  const auto with = [&](const Bytes& frame) {
    Watched peer = stranger.connect();
    peer.link->send(wire::make_attach(attach_to(static_cast<std::uint8_t>(frame.size()))));
    Watched backbone = next(host);
    peer.link->send(frame);
    const auto closed = backbone.at.closes->take();
    EXPECT_TRUE(peer.at.closes->take());
    return closed ? closed->message : std::string("nothing happened");
  };
  EXPECT_THAT(with(wire::make_frame(wire::FrameType::ack, 0, pattern(3, 1))), HasSubstr("ack"));
  EXPECT_THAT(with(wire::make_frame(wire::FrameType::attach, 0, pattern(5, 1))), HasSubstr("attach"));
  EXPECT_THAT(with(wire::make_frame(wire::FrameType::end, 0, pattern(2, 1))), HasSubstr("end"));
}

/// Offers ask a node to send to addresses that the peer names: nonsense among them does no harm, and floods are not followed.
TEST_F(SessionTest, NonsenseOfferedAsCandidatesLeavesTheSessionAlone) {
  SessionHost host(backbone_loop_, nodes_, knobs_);
  SessionGuest guest(worker_loop_, nodes_, knobs_, {host.address()});
  Watched worker = next(guest), backbone = next(host);
  for (std::uint32_t i = 0; i < 200; ++i) worker.link->send(wire::make_frame(wire::FrameType::candidates, 0, pattern(i % 90, i)));
  worker.link->send(frame_of(10, 42));
  const auto frame = backbone.at.frames->take();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header.request, 42u);
  EXPECT_EQ(backbone.at.closes->size(), 0u);
}

}  // namespace
}  // namespace linkcpp::net
