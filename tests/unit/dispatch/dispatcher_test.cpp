// The dispatcher's rules, one by one, in virtual time.
#include "dispatch/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace linkcpp::dispatch {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

wire::LayerHolding holding(std::uint16_t layer, std::uint16_t n_expert, std::vector<int> experts) {
  wire::LayerHolding h{layer, n_expert, std::vector<std::uint64_t>((n_expert + 63) / 64, 0)};
  for (const int e : experts) h.bits[e / 64] |= std::uint64_t{1} << (e % 64);
  return h;
}

std::vector<int> range(int first, int last) {
  std::vector<int> out;
  for (int i = first; i <= last; ++i) out.push_back(i);
  return out;
}

WorkerInfo worker(std::string name, std::vector<int> experts, Time rtt = 1ms) {
  return {std::move(name), {holding(0, 16, std::move(experts))}, 1, rtt};
}

/// Pairs of one token with these experts.
std::vector<Pair> token(std::vector<int> experts) {
  std::vector<Pair> pairs;
  for (std::uint32_t i = 0; i < experts.size(); ++i) pairs.push_back({0, i, static_cast<std::uint16_t>(experts[i])});
  return pairs;
}

class Dispatch : public testing::Test {
 protected:
  WorkerId join(WorkerInfo info) { return d.add_worker(std::move(info), now, out); }
  StepId begin(std::vector<int> experts) {
    const auto pairs = token(std::move(experts));
    return d.begin(0, pairs, now, out);
  }
  Knobs knobs{.step_deadline = 10s, .resend_floor = 250ms};
  Dispatcher d{knobs};
  Actions out;
  Time now{0};
};

TEST_F(Dispatch, OneSendForEachTouchedWorker) {
  join(worker("a", range(0, 7)));
  join(worker("b", range(8, 15)));
  begin({1, 9, 3, 12});
  ASSERT_EQ(out.sends.size(), 2);
  EXPECT_EQ(out.sends[0].pairs.size(), 2);
  EXPECT_EQ(out.sends[1].pairs.size(), 2);
}

TEST_F(Dispatch, ReplicasKeepTheStarSmall) {
  join(worker("a", range(0, 7)));
  join(worker("b", range(8, 15)));
  join(worker("all", range(0, 15)));
  begin({1, 9, 3, 12});
  ASSERT_EQ(out.sends.size(), 1) << "one worker that holds everything beats two";
  EXPECT_EQ(out.sends[0].worker, 2);
}

TEST_F(Dispatch, NearReplicaIsPreferred) {
  join(worker("far", range(0, 15), 80ms));
  join(worker("near", range(0, 15), 5ms));
  begin({1, 2});
  ASSERT_EQ(out.sends.size(), 1);
  EXPECT_EQ(out.sends[0].worker, 1);
}

TEST_F(Dispatch, LargeBatchesSpreadOverReplicas) {
  join(worker("a", range(0, 15), 1ms));
  join(worker("b", range(0, 15), 1ms));
  std::vector<Pair> pairs;
  for (std::uint32_t t = 0; t < 512; ++t) {
    for (std::uint32_t s = 0; s < 4; ++s) pairs.push_back({t, t * 4 + s, static_cast<std::uint16_t>((t + s * 4) % 16)});
  }
  d.begin(0, pairs, now, out);
  ASSERT_EQ(out.sends.size(), 2);
  EXPECT_EQ(out.sends[0].pairs.size() + out.sends[1].pairs.size(), 2048);
  EXPECT_NEAR(static_cast<double>(out.sends[0].pairs.size()), 1024, 200);
}

TEST_F(Dispatch, AnswersCompleteTheStep) {
  join(worker("a", range(0, 7)));
  join(worker("b", range(8, 15)));
  const StepId step = begin({1, 9});
  const auto sends = std::exchange(out, {}).sends;
  EXPECT_EQ(d.on_answer(sends[0].request, 1ms, 100us, 0us, out), AnswerUse::use);
  EXPECT_EQ(d.pairs_of(sends[0].request).size(), 1);
  EXPECT_TRUE(out.finished.empty());
  EXPECT_EQ(d.on_answer(sends[1].request, 2ms, 100us, 0us, out), AnswerUse::use);
  ASSERT_EQ(out.finished.size(), 1);
  EXPECT_EQ(out.finished[0].step, step);
  EXPECT_FALSE(out.finished[0].error);
  EXPECT_EQ(d.outstanding(), 0);
  EXPECT_EQ(d.on_answer(sends[1].request, 3ms, 100us, 0us, out), AnswerUse::stale) << "a second answer to the same request";
}

TEST_F(Dispatch, LossGoesToTheReplicaAtOnce) {
  const WorkerId a = join(worker("a", range(0, 15), 1ms));
  join(worker("b", range(0, 15), 5ms));
  begin({1, 9});
  ASSERT_EQ(out.sends.size(), 1);
  ASSERT_EQ(out.sends[0].worker, a);
  out = {};
  d.remove_worker(a, "connection reset", now, out);
  ASSERT_EQ(out.sends.size(), 1);
  EXPECT_EQ(out.sends[0].worker, 1);
  d.on_answer(out.sends[0].request, 1ms, 0us, 0us, out);
  ASSERT_EQ(out.finished.size(), 1);
  EXPECT_FALSE(out.finished[0].error);
}

TEST_F(Dispatch, UncoveredExpertsWaitForAWorkerThatHoldsThem) {
  join(worker("a", range(0, 7)));
  begin({1, 9});
  ASSERT_EQ(out.sends.size(), 1);
  d.on_answer(out.sends[0].request, 1ms, 0us, 0us, out);
  EXPECT_TRUE(out.finished.empty());
  out = {};
  now = 3s;
  join(worker("b", range(8, 15)));
  ASSERT_EQ(out.sends.size(), 1);
  d.on_answer(out.sends[0].request, now, 0us, 0us, out);
  ASSERT_EQ(out.finished.size(), 1);
  EXPECT_FALSE(out.finished[0].error);
}

TEST_F(Dispatch, DeadlineNamesLayerExpertsReasonAndRemedy) {
  const WorkerId a = join(worker("alpha", range(0, 15)));
  begin({1, 9, 10});
  d.remove_worker(a, "connection reset by peer", now, out);
  d.on_tick(9999ms, out);
  EXPECT_TRUE(out.finished.empty());
  d.on_tick(10s, out);
  ASSERT_EQ(out.finished.size(), 1);
  const std::string text = out.finished[0].error->message;
  EXPECT_EQ(out.finished[0].error->kind, ErrorKind::timeout);
  EXPECT_THAT(text, HasSubstr("layer 0: experts 1, 9-10"));
  EXPECT_THAT(text, HasSubstr("alpha"));
  EXPECT_THAT(text, HasSubstr("connection reset by peer"));
  EXPECT_THAT(text, HasSubstr("linkcpp worker"));
  EXPECT_EQ(d.outstanding(), 0);
}

TEST_F(Dispatch, DrainingWorkersGetNothingNewButAreAwaited) {
  const WorkerId a = join(worker("a", range(0, 15)));
  begin({1});
  const RequestId request = out.sends.at(0).request;
  d.drain_worker(a, now);
  out = {};
  begin({2});
  EXPECT_TRUE(out.sends.empty());
  EXPECT_EQ(d.on_answer(request, 1ms, 0us, 0us, out), AnswerUse::use);
  const std::vector<std::pair<std::uint16_t, std::uint16_t>> layers{{0, 16}};
  EXPECT_EQ(describe(d.gaps(layers)), "layer 0: experts 0-15");
}

TEST_F(Dispatch, RefusalOfTheOnlyHolderFailsTheStepWithItsReason) {
  join(worker("a", range(0, 15)));
  begin({1});
  d.on_failed(out.sends.at(0).request, "worker a: out of memory", now, out);
  ASSERT_EQ(out.finished.size(), 1);
  EXPECT_THAT(out.finished[0].error->message, HasSubstr("out of memory"));
}

TEST_F(Dispatch, RefusalGoesToAReplica) {
  join(worker("a", range(0, 15), 1ms));
  join(worker("b", range(0, 15), 9ms));
  begin({1});
  d.on_failed(std::exchange(out, {}).sends.at(0).request, "no", now, out);
  ASSERT_EQ(out.sends.size(), 1);
  EXPECT_EQ(out.sends[0].worker, 1);
}

/// Two workers that have answered before, so that lateness is judged by what is known of them.
class Late : public Dispatch {
 protected:
  void SetUp() override {
    join(worker("a", range(0, 15), 1ms));
    join(worker("b", range(0, 7), 5ms));
    join(worker("c", range(8, 15), 5ms));
    begin({1, 9});
    original = out.sends.at(0);
    ASSERT_EQ(out.sends.size(), 1);
    d.on_answer(original.request, 1ms, 10us, 0us, out);
    out = {};
    now = 1s;
    step = begin({1, 9});
    original = std::exchange(out, {}).sends.at(0);
    ASSERT_EQ(original.worker, 0);
    d.on_tick(now + 100ms, out);
    EXPECT_TRUE(out.sends.empty()) << "never before the floor";
    d.on_tick(now + 250ms, out);
    ASSERT_EQ(out.sends.size(), 2);
    b = out.sends[0];
    c = out.sends[1];
    out = {};
    d.on_tick(now + 300ms, out);
    EXPECT_TRUE(out.sends.empty()) << "replicas are asked once";
  }
  bool done() const { return out.finished.size() == 1 && !out.finished[0].error; }
  Send original, b, c;
  StepId step = 0;
};

TEST_F(Late, OriginalFirstMakesTheReplicasStale) {
  EXPECT_EQ(d.on_answer(original.request, now, 0us, 0us, out), AnswerUse::use);
  EXPECT_TRUE(done());
  EXPECT_EQ(d.on_answer(b.request, now, 0us, 0us, out), AnswerUse::stale);
  EXPECT_EQ(d.outstanding(), 0);
}

TEST_F(Late, OneReplicaFirstMakesTheOriginalStale) {
  EXPECT_EQ(d.on_answer(b.request, now, 0us, 0us, out), AnswerUse::use);
  EXPECT_EQ(d.on_answer(original.request, now, 0us, 0us, out), AnswerUse::stale) << "its sum would count expert 1 twice";
  EXPECT_TRUE(out.finished.empty());
  EXPECT_EQ(d.on_answer(c.request, now, 0us, 0us, out), AnswerUse::use);
  EXPECT_TRUE(done());
}

TEST_F(Late, LosingTheOtherReplicaAfterThatAsksTheOriginalWorkerAgain) {
  EXPECT_EQ(d.on_answer(b.request, now, 0us, 0us, out), AnswerUse::use);
  out = {};
  d.remove_worker(2, "gone", now, out);
  ASSERT_EQ(out.sends.size(), 1);
  EXPECT_EQ(out.sends[0].worker, 0);
  EXPECT_EQ(out.sends[0].pairs.size(), 1);
  EXPECT_EQ(d.on_answer(out.sends[0].request, now, 0us, 0us, out), AnswerUse::use);
  EXPECT_TRUE(done());
}

TEST_F(Late, CancelledStepsLeaveNothing) {
  d.cancel(step);
  EXPECT_EQ(d.outstanding(), 0);
  EXPECT_EQ(d.on_answer(original.request, now, 0us, 0us, out), AnswerUse::stale);
}

TEST(Describe, RangesAndLayersAreCompressed) {
  EXPECT_EQ(describe({{0, {3, 4, 5, 9}}, {1, {0, 1}}, {2, {0, 1}}, {3, {0, 1}}, {static_cast<std::uint16_t>(0x8000 | 4), {7}}}),
            "layer 0: experts 3-5, 9; layers 1-3: experts 0-1; layer 4: chunk experts 7");
}

}  // namespace
}  // namespace linkcpp::dispatch
