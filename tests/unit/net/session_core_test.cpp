#include "net/session_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "session_world.h"

namespace linkcpp::net {
namespace {

using namespace std::chrono_literals;
using sim::World;
using sim::WorldKnobs;
using testing::HasSubstr;

/// LINKCPP_SIM_SEEDS is for simulations of a thousand; these are longer and take that share of their own number.
unsigned seeds(unsigned n) {
  const char* wanted = std::getenv("LINKCPP_SIM_SEEDS");
  if (wanted == nullptr) return n;
  return std::max(1u, n * std::min(1000u, static_cast<unsigned>(std::max(std::atoi(wanted), 0))) / 1000u);
}

void run_worlds(const WorldKnobs& knobs, unsigned n) {
  int suspensions = 0;
  for (unsigned seed = 0; seed < seeds(n) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, knobs);
    world.run();
    suspensions += world.side(0).suspensions;
  }
  EXPECT_GT(suspensions, 0) << "the world is too kind to mean anything";
}

WorldKnobs patient() {
  WorldKnobs knobs;
  knobs.core.patience = 1h;
  return knobs;
}

// ---- simulations -----------------------------------------------------------------------------------------------------

TEST(SessionSimulation, EveryFrameOnceAndInOrderOverPathsThatComeAndGo) { run_worlds(patient(), 400); }

TEST(SessionSimulation, OnePathAtATime) {
  WorldKnobs knobs = patient();
  knobs.max_paths = 1;
  run_worlds(knobs, 200);
}

TEST(SessionSimulation, WhatIsMuchWaitsUntilThePeerHasSaidWhatItHas) {
  WorldKnobs knobs = patient();
  knobs.core.early_bytes = 4000;
  knobs.largest_body = 6000;
  run_worlds(knobs, 200);
}

TEST(SessionSimulation, SmallWindow) {
  WorldKnobs knobs = patient();
  knobs.core.max_kept_frames = 24;
  run_worlds(knobs, 100);
}

/// Numbers go round several times while old copies are still under way on slow paths.
TEST(SessionSimulation, NumbersGoRoundWhileOldCopiesAreUnderWay) {
  WorldKnobs knobs = patient();
  knobs.frames = 150'000;
  knobs.largest_body = 1;
  knobs.longest_delay = 900ms;
  knobs.longest_outage = 5s;
  run_worlds(knobs, 3);
}

// ---- single rules ----------------------------------------------------------------------------------------------------

using Actions = SessionCore::Actions;

/// Two ends and the frames between them, delivered by hand.
struct Pair {
  explicit Pair(SessionCoreKnobs knobs = {}) : dialler({9}, true, knobs), acceptor({9}, false, knobs) {}

  static wire::FrameView view(const Bytes& frame) {
    return {*wire::parse_frame_header(ByteSpan(frame).first(wire::frame_header_bytes)), ByteSpan(frame).subspan(wire::frame_header_bytes)};
  }
  static wire::FrameType type(const SharedFrame& frame) { return view(*frame).header.type; }
  static std::uint16_t flags(const SharedFrame& frame) { return view(*frame).header.flags; }

  /// Frames that the actions of `from` send, taken by the other end. Answers are appended to what `to` says.
  void pass(Actions& from, SessionCore& to, Actions& answers) {
    for (auto& send : std::exchange(from.sends, {})) give(send, to, answers);
  }
  void give(const SessionCore::Send& send, SessionCore& to, Actions& answers) {
    const auto frame = view(*send.frame);
    Actions out;
    if (frame.header.type == wire::FrameType::attach && &to == &acceptor && !attached) {
      attached = true;
      ASSERT_TRUE(to.add_accepted_path(send.path, *wire::decode_attach(frame), now, out));
    } else {
      const auto result = to.receive(send.path, frame, now, out);
      ASSERT_TRUE(result) << result.error().message;
    }
    delivered += (out.deliver ? 1 : 0) + static_cast<int>(out.deliveries.size());
    for (auto& answer : out.sends) answers.sends.push_back(std::move(answer));
    if (out.ended) answers.ended = out.ended;
  }
  /// Attached, over path 1.
  void join() {
    Actions a, b;
    dialler.add_dialled_path(1, now, a);
    pass(a, acceptor, b);
    pass(b, dialler, a);
  }
  SharedFrame send(SessionCore& from, wire::FrameType type, std::size_t n = 10) {
    Actions out;
    from.send(wire::make_frame(type, 5, Bytes(n)), now, out);
    ended = out.ended;
    last = out;
    return out.sends.empty() ? nullptr : out.sends.back().frame;
  }
  SessionCore dialler, acceptor;
  SessionCore::Time now{0};
  bool attached = false;
  int delivered = 0;
  std::optional<Error> ended;
  Actions last;
};

TEST(SessionCore, OvertakingIsAllowedOnceWhatIsOrderedIsThere) {
  Pair pair;
  pair.join();
  const auto program = pair.send(pair.dialler, wire::FrameType::program);
  const auto first = pair.send(pair.dialler, wire::FrameType::dispatch);
  EXPECT_EQ(Pair::flags(program), 0);
  EXPECT_EQ(Pair::flags(first), 1) << "the program is not acknowledged yet";
  Actions answers, ignored;
  pair.give({1, program}, pair.acceptor, answers);
  ASSERT_EQ(answers.sends.size(), 1u) << "an ordered frame is acknowledged at once";
  pair.pass(answers, pair.dialler, ignored);
  EXPECT_EQ(Pair::flags(pair.send(pair.dialler, wire::FrameType::dispatch)), 2 | wire::may_overtake);
  EXPECT_EQ(Pair::flags(pair.send(pair.dialler, wire::FrameType::program)), 3);
  EXPECT_EQ(Pair::flags(pair.send(pair.dialler, wire::FrameType::dispatch)), 4);
}

TEST(SessionCore, AnOrderedFrameThatOnlyArrivedDoesNotYetLetOthersOvertake) {
  Pair pair;
  pair.join();
  (void)pair.send(pair.dialler, wire::FrameType::dispatch);
  const auto program = pair.send(pair.dialler, wire::FrameType::program);
  Actions answers, ignored;
  pair.give({1, program}, pair.acceptor, answers);
  EXPECT_EQ(pair.delivered, 0);
  pair.pass(answers, pair.dialler, ignored);
  EXPECT_EQ(Pair::flags(pair.send(pair.dialler, wire::FrameType::dispatch)) & wire::may_overtake, 0)
      << "the program was acknowledged, but is not handed over";
}

TEST(SessionCore, ControlFramesAreNotNumbered) {
  Pair pair;
  Actions out;
  pair.dialler.add_dialled_path(1, {}, out);
  for (const auto& send : out.sends) EXPECT_EQ(Pair::flags(send.frame), 0);
  EXPECT_EQ(Pair::flags(pair.send(pair.dialler, wire::FrameType::hello)), 0);
  EXPECT_EQ(Pair::flags(pair.send(pair.dialler, wire::FrameType::hello)), 1);
}

TEST(SessionCore, AcksComeAfterManyFramesOrSomeTime) {
  Pair pair;
  pair.join();
  Actions answers;
  for (int i = 0; i < 31; ++i) pair.give({1, pair.send(pair.dialler, wire::FrameType::dispatch)}, pair.acceptor, answers);
  EXPECT_TRUE(answers.sends.empty());
  EXPECT_EQ(pair.acceptor.next_deadline(), SessionCore::Time(20ms));
  pair.give({1, pair.send(pair.dialler, wire::FrameType::dispatch)}, pair.acceptor, answers);
  EXPECT_EQ(answers.sends.size(), 1u);
  EXPECT_FALSE(pair.acceptor.next_deadline());
  pair.give({1, pair.send(pair.dialler, wire::FrameType::dispatch)}, pair.acceptor, answers);
  Actions tick;
  pair.acceptor.on_tick(20ms, tick);
  EXPECT_EQ(tick.sends.size(), 1u);
  pair.pass(answers, pair.dialler, tick);
  pair.pass(tick, pair.dialler, answers);
  EXPECT_EQ(pair.dialler.kept_frames(), 0u);
}

/// One dispatch and one combine of 6 KB each at a time, as fast and as slowly as decoding can be.
TEST(SessionCore, AcksAreLessThanAHundredthOfWhatDecodingSends) {
  for (const auto pause : {100us, 2'000us, 25'000us, 100'000us}) {
    WorldKnobs knobs = patient();
    knobs.reorders = false;
    World world(1, knobs);
    world.faults_ = false;
    world.dial();
    world.advance(1s);
    for (int i = 0; i < 300; ++i) {
      world.send(0, false, 6144);
      world.advance(pause);
      world.send(1, false, 6144);
      world.advance(pause);
    }
    world.advance(1s);
    for (int i = 0; i < 2; ++i) {
      const auto& side = world.side(i);
      EXPECT_LT(static_cast<double>(side.control_bytes), 0.01 * static_cast<double>(side.bytes)) << pause.count() << " us";
      EXPECT_EQ(side.core->kept_frames(), 0u);
    }
  }
}

TEST(SessionCore, LittleIsSentAgainAtOnceAndMuchAfterThePeerHasSpoken) {
  Pair pair({.early_bytes = 1000});
  pair.join();
  for (int i = 0; i < 10; ++i) (void)pair.send(pair.dialler, wire::FrameType::dispatch, 180);
  Actions out;
  pair.dialler.lose_path(1, {}, out);
  EXPECT_TRUE(out.suspended);
  out = {};
  pair.dialler.add_dialled_path(2, {}, out);
  ASSERT_EQ(out.sends.size(), 6u) << "attach and five frames of 200 bytes";
  EXPECT_EQ(Pair::type(out.sends[0].frame), wire::FrameType::attach);
  Actions attached;
  ASSERT_TRUE(pair.acceptor.add_accepted_path(2, *wire::decode_attach(Pair::view(*out.sends[0].frame)), {}, attached));
  Actions rest;
  pair.give(attached.sends[0], pair.dialler, rest);
  EXPECT_EQ(rest.sends.size(), 5u);
}

TEST(SessionCore, WhatThePeerHasIsNotSentAgain) {
  Pair pair;
  pair.join();
  Actions lost, out;
  for (int i = 0; i < 3; ++i) pair.give({1, pair.send(pair.dialler, wire::FrameType::dispatch)}, pair.acceptor, lost);
  Actions a, b;
  pair.acceptor.lose_path(1, {}, a);
  pair.dialler.lose_path(1, {}, a);
  (void)pair.send(pair.acceptor, wire::FrameType::combine);
  pair.dialler.add_dialled_path(2, {}, out);
  EXPECT_EQ(out.sends.size(), 4u);
  ASSERT_TRUE(pair.acceptor.add_accepted_path(2, *wire::decode_attach(Pair::view(*out.sends[0].frame)), {}, b));
  EXPECT_TRUE(b.resumed);
  ASSERT_EQ(b.sends.size(), 2u) << "attached and the answer that waited";
  Actions resumed;
  pair.give(b.sends[0], pair.dialler, resumed);
  EXPECT_EQ(pair.dialler.kept_frames(), 0u) << "attached said that all three had arrived";
}

TEST(SessionCore, TooMuchKeptEndsTheSession) {
  Pair pair({.max_kept_bytes = 1000});
  for (int i = 0; i < 5; ++i) {
    (void)pair.send(pair.dialler, wire::FrameType::dispatch, 180);
    ASSERT_FALSE(pair.ended);
  }
  (void)pair.send(pair.dialler, wire::FrameType::dispatch, 180);
  ASSERT_TRUE(pair.ended);
  EXPECT_THAT(pair.ended->message, HasSubstr("5 frames"));
  EXPECT_EQ(pair.dialler.kept_bytes(), 0u) << "memory is released";
  Pair many({.max_kept_frames = 3});
  for (int i = 0; i < 4; ++i) (void)many.send(many.dialler, wire::FrameType::dispatch);
  EXPECT_TRUE(many.ended);
}

TEST(SessionCore, WithoutAPathItLivesAsLongAsThePatience) {
  Pair pair;
  pair.join();
  Actions out;
  pair.dialler.lose_path(1, 5s, out);
  EXPECT_EQ(pair.dialler.next_deadline(), SessionCore::Time(15s));
  pair.dialler.on_tick(14s, out);
  EXPECT_FALSE(out.ended);
  pair.dialler.on_tick(15s, out);
  ASSERT_TRUE(out.ended);
  EXPECT_EQ(out.ended->kind, ErrorKind::timeout);
}

TEST(SessionCore, PathsThatNeverAnswerDoNotProlongIt) {
  Pair pair;
  pair.join();
  Actions out;
  pair.dialler.lose_path(1, 0s, out);
  pair.dialler.add_dialled_path(2, 9s, out);
  pair.dialler.lose_path(2, 9500ms, out);
  pair.dialler.add_dialled_path(3, 9600ms, out);
  pair.dialler.on_tick(10s, out);
  EXPECT_TRUE(out.ended);
}

TEST(SessionCore, AForsakenSessionEndsWithItsLastPath) {
  Pair pair;
  pair.join();
  Actions out;
  pair.dialler.forsake({}, out);
  EXPECT_FALSE(out.ended);
  pair.dialler.lose_path(1, {}, out);
  EXPECT_TRUE(out.ended);
}

TEST(SessionCore, AFarewellEndsTheOtherSideBehindWhatWasSentBefore) {
  Pair pair;
  pair.join();
  const auto frame = pair.send(pair.dialler, wire::FrameType::hello);
  Actions farewell, answers;
  pair.dialler.close({ErrorKind::unavailable, "enough"}, farewell);
  ASSERT_EQ(farewell.sends.size(), 1u);
  pair.pass(farewell, pair.acceptor, answers);
  EXPECT_FALSE(answers.ended) << "a frame is still under way";
  pair.give({1, frame}, pair.acceptor, answers);
  EXPECT_EQ(pair.delivered, 1);
  ASSERT_TRUE(answers.ended);
  EXPECT_EQ(answers.ended->message, "enough");
}

TEST(SessionCore, AFarewellDoesNotWaitForEver) {
  Pair pair;
  pair.join();
  (void)pair.send(pair.dialler, wire::FrameType::hello);
  Actions farewell, answers, tick;
  pair.dialler.close({ErrorKind::unavailable, "enough"}, farewell);
  pair.pass(farewell, pair.acceptor, answers);
  pair.acceptor.on_tick(999ms, tick);
  EXPECT_FALSE(tick.ended);
  pair.acceptor.on_tick(1s, tick);
  EXPECT_TRUE(tick.ended);
}

class TwoPaths : public testing::Test {
 protected:
  void SetUp() override {
    pair.join();
    Actions out, attached, rest;
    pair.dialler.add_dialled_path(2, {}, out);
    ASSERT_TRUE(pair.acceptor.add_accepted_path(2, *wire::decode_attach(Pair::view(*out.sends[0].frame)), {}, attached));
    pair.pass(attached, pair.dialler, rest);
  }
  /// Frames that are handed over and acknowledged at once.
  void exchange(int n) {
    for (int i = 0; i < n; ++i) {
      (void)pair.send(pair.dialler, wire::FrameType::dispatch);
      Actions answers, more;
      for (const auto& send : pair.last.sends) {
        if (send.path == 2 && path_2_waits) {
          slow.sends.push_back(send);
        } else {
          pair.give(send, pair.acceptor, answers);
        }
      }
      pair.pass(answers, pair.dialler, more);
    }
  }
  Pair pair;
  bool path_2_waits = false;
  Actions slow;  ///< under way on path 2, which keeps the order
};

/// 15 bits are used up, and an old frame has the number of the next one.
TEST_F(TwoPaths, AnOldCopyIsNotTakenForANewFrame) {
  pair.dialler.prefer_path(2);
  const auto frame = pair.send(pair.dialler, wire::FrameType::dispatch);
  slow.sends.push_back({2, frame});
  path_2_waits = true;
  Actions moved, answers, more;
  pair.dialler.doubt_path(2, {}, moved);
  EXPECT_EQ(pair.dialler.preferred(), 1u);
  pair.pass(moved, pair.acceptor, answers);
  exchange(32767);
  ASSERT_EQ(pair.delivered, 32768);
  EXPECT_GT(slow.sends.size(), 10u) << "it hears of the numbers";
  pair.pass(slow, pair.acceptor, more);
  EXPECT_EQ(pair.delivered, 32768);
  path_2_waits = false;
  exchange(100);
  EXPECT_EQ(pair.delivered, 32868);
}

TEST_F(TwoPaths, AnIdlePathKnowsTheNumbersWhenItIsNeeded) {
  exchange(100'000);
  pair.dialler.prefer_path(2);
  exchange(10);
  EXPECT_EQ(pair.delivered, 100'010);
  Actions lost, answers;
  pair.dialler.lose_path(2, {}, lost);
  pair.pass(lost, pair.acceptor, answers);
  exchange(10);
  EXPECT_EQ(pair.delivered, 100'020);
}

// ---- peers that break the rules --------------------------------------------------------------------------------------

class HostilePeer : public testing::Test {
 protected:
  void SetUp() override { pair.join(); }
  std::string blame(const Bytes& frame) {
    Actions out;
    const auto result = pair.acceptor.receive(1, Pair::view(frame), {}, out);
    return result ? "" : result.error().message;
  }
  static Bytes numbered(wire::FrameType type, std::uint16_t flags) {
    Bytes frame = wire::make_frame(type, 1, Bytes(10));
    std::memcpy(frame.data() + wire::flags_offset, &flags, sizeof flags);
    return frame;
  }
  Pair pair{{.max_kept_bytes = 4096}};
};

TEST_F(HostilePeer, MayNotRunAhead) {
  EXPECT_EQ(blame(numbered(wire::FrameType::hello, max_session_window - 1)), "");
  EXPECT_THAT(blame(numbered(wire::FrameType::hello, max_session_window)), HasSubstr("ahead"));
}

TEST_F(HostilePeer, MayNotSendNumbersBeforeTheFirst) {
  EXPECT_THAT(blame(numbered(wire::FrameType::hello, 0x7FFF)), HasSubstr("before the first"));
}

TEST_F(HostilePeer, MayNotLetOrderedFramesOvertake) {
  EXPECT_THAT(blame(numbered(wire::FrameType::hello, wire::may_overtake)), HasSubstr("may not overtake"));
}

TEST_F(HostilePeer, MayNotFillTheMemory) {
  std::string words;
  for (std::uint16_t i = 1; i < 1000 && words.empty(); ++i) words = blame(numbered(wire::FrameType::hello, i));
  EXPECT_THAT(words, HasSubstr("wait for an earlier one"));
  EXPECT_LE(pair.acceptor.held_bytes(), 4096u + 100u);
}

TEST_F(HostilePeer, MayNotAcknowledgeWhatWasNeverSent) {
  using wire::FrameType;
  EXPECT_THAT(blame(wire::make_session_state(FrameType::ack, {.next = 1})), HasSubstr("never sent"));
  (void)pair.send(pair.acceptor, FrameType::combine);
  (void)pair.send(pair.acceptor, FrameType::combine);
  EXPECT_EQ(blame(wire::make_session_state(FrameType::ack, {.next = 0, .mark = 0, .beyond = {std::byte{1}}})), "");
  EXPECT_THAT(blame(wire::make_session_state(FrameType::ack, {.next = 0, .mark = 0, .beyond = {std::byte{2}}})), HasSubstr("never sent"));
  EXPECT_THAT(blame(wire::make_session_state(FrameType::ack, {.next = 0, .mark = 0, .beyond = Bytes(1000, std::byte{1})})),
              HasSubstr("never sent"));
  EXPECT_THAT(blame(wire::make_session_state(FrameType::ack, {.next = 0, .mark = UINT64_MAX})), HasSubstr("ahead"));
  EXPECT_THAT(blame(wire::make_session_state(FrameType::ack, {.next = UINT64_MAX})), HasSubstr("never sent"));
}

TEST_F(HostilePeer, MayNotFloodAPathWithAttaches) {
  const Bytes attach = wire::make_attach({.id = {9}});
  for (int i = 0; i < 16; ++i) EXPECT_EQ(blame(attach), "");
  EXPECT_THAT(blame(attach), HasSubstr("floods"));
}

TEST_F(HostilePeer, MayNotAttachAPathTwiceToDifferentSessions) {
  EXPECT_THAT(blame(wire::make_attach({.id = {8}})), HasSubstr("two sessions"));
}

}  // namespace
}  // namespace linkcpp::net
