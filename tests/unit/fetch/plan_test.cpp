#include "fetch/plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace linkcpp::fetch {
namespace {

using namespace std::chrono_literals;

TEST(Plan, PrefersLowTiersAndSpreadsWithinOne) {
  Plan plan({});
  for (int i = 0; i < 3; ++i) plan.add_slice();
  const auto web = plan.add_source(3), a = plan.add_source(1), b = plan.add_source(1);
  EXPECT_EQ(plan.next(0ns), (Plan::Job{0, a}));
  EXPECT_EQ(plan.next(0ns), (Plan::Job{1, b}));
  plan.finish({0, a}, Outcome::missing, 0ns);
  EXPECT_EQ(plan.next(0ns), (Plan::Job{0, b})) << "the most urgent again, elsewhere";
  plan.finish({0, b}, Outcome::missing, 0ns);
  EXPECT_EQ(plan.next(0ns), (Plan::Job{0, web}));
}

TEST(Plan, BarsLiarsAfterThree) {
  Plan plan({});
  for (int i = 0; i < 4; ++i) plan.add_slice();
  const auto liar = plan.add_source(0), honest = plan.add_source(1);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.next(0ns), (Plan::Job{i, liar}));
    plan.finish({i, liar}, Outcome::wrong, 0ns);
    EXPECT_EQ(plan.next(0ns), (Plan::Job{i, honest}));
    plan.finish({i, honest}, Outcome::done, 0ns);
  }
  EXPECT_TRUE(plan.barred(liar));
  EXPECT_EQ(plan.next(0ns), (Plan::Job{3, honest}));
}

TEST(Plan, TaintedSliceIsAskedForOnceMoreFromTheSameSource) {
  Plan plan({});
  plan.add_slice();
  const auto first = plan.add_source(0), second = plan.add_source(1);
  plan.finish(*plan.next(0ns), Outcome::vanished, 0ns);
  ASSERT_EQ(plan.next(0ns), (Plan::Job{0, second}));
  plan.finish({0, second}, Outcome::tainted, 0ns);
  EXPECT_EQ(plan.next(1h), (Plan::Job{0, second})) << "not the first, although it would be preferred and has rested";
  EXPECT_FALSE(plan.barred(first));
}

TEST(Plan, BacksOffAndComesBack) {
  Plan plan({.backoff_min = 100ms, .backoff_max = 400ms});
  plan.add_slice();
  plan.add_source(0);
  Plan::Time now{};
  for (const auto pause : {100ms, 200ms, 400ms, 400ms}) {
    plan.finish(*plan.next(now), Outcome::missing, now);
    EXPECT_FALSE(plan.next(now));
    ASSERT_TRUE(plan.wake());
    EXPECT_EQ(*plan.wake() - now, pause);
    now = *plan.wake();
  }
  plan.add_source(1);
  EXPECT_TRUE(plan.next(now));
}

TEST(Plan, ADeadSourceDoesNotHoldTheOthersRoundsUp) {
  Plan plan({.backoff_min = 100ms, .backoff_max = 30s, .give_up_rounds = 3});
  for (int i = 0; i < 50; ++i) plan.add_slice();
  plan.add_source(0);
  Plan::Time now{};
  while (!plan.finished()) {
    while (const auto job = plan.next(now)) plan.finish(*job, Outcome::vanished, now);
    if (plan.finished()) break;
    ASSERT_TRUE(plan.wake());
    now = std::max(*plan.wake(), now + 1ns);
    ASSERT_LT(now, 2s) << "fifty slices wait for one source's rests in turn";
  }
  EXPECT_EQ(plan.failed(), 50u);
}

TEST(Plan, FullDiskHoldsEverything) {
  Plan plan({.backoff_min = 100ms, .give_up_rounds = 2});
  plan.add_slice();
  plan.add_source(0);
  plan.finish(*plan.next(0ns), Outcome::local, 0ns);
  EXPECT_FALSE(plan.next(99ms));
  plan.finish(*plan.next(100ms), Outcome::local, 100ms);
  EXPECT_TRUE(plan.finished());
  EXPECT_EQ(plan.failed(), 1u);
}

/// A swarm of honest, lying, flaky and dead sources. Every slice that an honest source has arrives, nothing is done twice, and it ends.
TEST(Plan, Simulation) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    enum class Kind { honest, liar, flaky, dead, refuses };
    const std::size_t n_slices = 1 + random() % 30, n_sources = 1 + random() % 6, parallel = 1 + random() % 5;
    Plan plan({.give_up_rounds = 40});
    std::vector<Kind> kinds;
    std::vector<std::vector<bool>> has(n_sources);
    std::vector<int> partial_from(n_slices, -1), done(n_slices, 0);
    for (std::size_t i = 0; i < n_slices; ++i) plan.add_slice();
    for (std::size_t s = 0; s < n_sources; ++s) {
      kinds.push_back(static_cast<Kind>(random() % 5));
      plan.add_source(static_cast<int>(random() % 3), static_cast<unsigned>(random() % 3));
      for (std::size_t i = 0; i < n_slices; ++i) has[s].push_back(random() % 2 == 0);
    }
    std::vector<Plan::Job> running;
    Plan::Time now{};
    int steps = 0;
    while (!plan.finished()) {
      ASSERT_LT(++steps, 100'000) << "seed " << seed;
      const auto job = running.size() < parallel ? plan.next(now) : std::nullopt;
      if (job) {
        for (const auto& other : running) ASSERT_NE(other.slice, job->slice) << "twice at a time";
        ASSERT_EQ(done[job->slice], 0);
        running.push_back(*job);
        continue;
      }
      if (running.empty()) {
        if (plan.finished()) break;
        const auto wake = plan.wake();
        ASSERT_TRUE(wake) << "seed " << seed;
        now = std::max(*wake, now + 1ns);
        continue;
      }
      const std::size_t at = random() % running.size();
      const Plan::Job ended = running[at];
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
      const Kind kind = kinds[ended.source];
      int& partial = partial_from[ended.slice];
      Outcome outcome = Outcome::missing;
      if (kind == Kind::refuses) {
        outcome = Outcome::useless;
      } else if (kind == Kind::dead || (kind == Kind::flaky && random() % 3 != 0)) {
        outcome = Outcome::vanished;
        if (kind == Kind::flaky && has[ended.source][ended.slice] && partial < 0) partial = 0;
      } else if (has[ended.source][ended.slice]) {
        const bool lies = kind == Kind::liar;
        const bool ruined = lies || partial == 1;
        outcome = !ruined ? Outcome::done : partial < 0 ? Outcome::wrong : Outcome::tainted;
        if (lies && partial < 0 && random() % 4 == 0) {  // lies and runs away
          partial = 1;
          outcome = Outcome::vanished;
        } else {
          partial = -1;
        }
      }
      if (outcome == Outcome::done) ++done[ended.slice];
      plan.finish(ended, outcome, now);
      now += std::chrono::milliseconds(random() % 50);
    }
    for (std::size_t i = 0; i < n_slices; ++i) {
      bool obtainable = false;
      for (std::size_t s = 0; s < n_sources; ++s) obtainable = obtainable || (kinds[s] == Kind::honest && has[s][i]);
      EXPECT_TRUE(!obtainable || plan.is_done(i)) << "seed " << seed << " slice " << i;
      EXPECT_EQ(done[i], plan.is_done(i) ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace linkcpp::fetch
