// A whole swarm in virtual time: random holdings, delays, losses, rejoins, drains, refusals. Every seed is a different history.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "dispatch/dispatcher.h"

namespace linkcpp::dispatch {
namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t n_expert = 12;
constexpr Time tick_period = 20ms;

struct SimWorker {
  wire::LayerHolding holding;
  Time delay{0};
  bool draining = false;
};

struct Answer {
  RequestId request = 0;
  WorkerId worker = 0;
  bool refused = false;
};

/// What the world knows of a step, independently of the dispatcher.
struct SimStep {
  std::vector<Pair> pairs;
  std::vector<int> used;  ///< how often each pair's answer was used
  Time deadline{0};
  bool excuse = false;  ///< at some time an expert was uncovered or a worker refused
};

class World {
 public:
  explicit World(unsigned seed) : random_(seed), dispatcher_(knobs_) {}

  void run() {
    for (int i = 0; i < 3; ++i) join();
    for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) event();
    while (!steps_.empty() && !testing::Test::HasFailure()) advance(tick_period);  // all must end by their deadlines
    EXPECT_EQ(dispatcher_.outstanding(), 0u) << "something leaked";
  }
  int completed = 0, failed = 0, resent = 0;

 private:
  int dice(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  void event() {
    switch (dice(10)) {
      case 0:
        if (workers_.size() < 6) join();
        break;
      case 1:
        if (!workers_.empty() && dice(2) == 0) lose();
        break;
      case 2:
        if (!workers_.empty() && dice(3) == 0) drain();
        break;
      case 3:
      case 4:
      case 5:
        begin();
        break;
      default:
        advance(Time(std::chrono::milliseconds(1 + dice(60))));
    }
  }

  void join() {
    Actions out;
    SimWorker worker;
    worker.holding = {0, n_expert, {dice(3) == 0 ? (1u << n_expert) - 1 : random_() & ((1u << n_expert) - 1)}};
    worker.delay = std::chrono::milliseconds(1 + dice(dice(4) == 0 ? 1500 : 80));
    const WorkerId expected_id = next_id_++;
    workers_[expected_id] = worker;
    const WorkerId id = dispatcher_.add_worker({"w" + std::to_string(expected_id), {worker.holding}, 1, worker.delay}, now_, out);
    ASSERT_EQ(id, expected_id);
    carry_out(out);
  }

  auto random_worker() { return std::next(workers_.begin(), dice(static_cast<int>(workers_.size()))); }

  void lose() {
    const auto victim = random_worker();
    const WorkerId id = victim->first;
    workers_.erase(victim);
    std::erase_if(flights_, [id](const auto& f) { return f.second.worker == id; });
    Actions out;
    dispatcher_.remove_worker(id, "lost", now_, out);
    carry_out(out);
  }

  void drain() {
    const auto worker = random_worker();
    worker->second.draining = true;
    dispatcher_.drain_worker(worker->first, now_);
  }

  bool covered(std::uint16_t expert) const {
    for (const auto& [id, w] : workers_) {
      if (!w.draining && w.holding.has(expert)) return true;
    }
    return false;
  }

  void begin() {
    std::vector<Pair> pairs;
    const std::uint32_t n_tokens = dice(4) == 0 ? 20 : 1, top_k = 4;
    for (std::uint32_t t = 0; t < n_tokens; ++t) {
      std::set<std::uint16_t> chosen;
      while (chosen.size() < top_k) chosen.insert(static_cast<std::uint16_t>(dice(n_expert)));
      std::uint32_t slot = 0;
      for (const std::uint16_t e : chosen) pairs.push_back({t, t * top_k + slot++, e});
    }
    Actions out;
    const StepId id = dispatcher_.begin(0, pairs, now_, out);
    steps_[id] = {pairs, std::vector<int>(pairs.size(), 0), now_ + knobs_.step_deadline};
    carry_out(out);
  }

  void carry_out(Actions& out) {
    for (const Send& send : out.sends) check_and_fly(send);
    for (const Finished& f : out.finished) finish(f);
    out = {};
    note_excuses();
  }

  void check_and_fly(const Send& send) {
    const auto worker = workers_.find(send.worker);
    ASSERT_NE(worker, workers_.end()) << "sent to a dead worker";
    EXPECT_FALSE(worker->second.draining) << "sent to a draining worker";
    ASSERT_TRUE(steps_.contains(send.step)) << "sent for a step that is over";
    for (const Pair& pair : send.pairs) EXPECT_TRUE(worker->second.holding.has(pair.expert)) << "sent to a worker that lacks the expert";
    EXPECT_TRUE(std::ranges::is_sorted(send.pairs, [](const Pair& a, const Pair& b) { return a.index < b.index; }));
    const bool refuse = dice(60) == 0;
    const Time hiccup = dice(20) == 0 ? std::chrono::milliseconds(300 + dice(4000)) : Time(0);  // now and then an answer is late
    flights_.emplace(now_ + worker->second.delay + hiccup, Answer{send.request, send.worker, refuse});
    step_of_[send.request] = send.step;
  }

  void finish(const Finished& f) {
    const auto step = steps_.find(f.step);
    ASSERT_NE(step, steps_.end()) << "a step ended twice";
    if (f.error) {
      ++failed;
      const bool slow = f.error->kind == ErrorKind::timeout && now_ >= step->second.deadline;
      EXPECT_TRUE(slow || step->second.excuse) << f.error->message;
    } else {
      ++completed;
      for (const int n : step->second.used) EXPECT_EQ(n, 1) << "a pair must count exactly once";
    }
    steps_.erase(step);
  }

  void note_excuses() {
    for (auto& [id, step] : steps_) {
      for (const Pair& pair : step.pairs) step.excuse |= !covered(pair.expert);
    }
  }

  void advance(Time by) {
    const Time end = now_ + by;
    while (true) {
      const Time next_tick = now_ - now_ % tick_period + tick_period;
      const bool answer_first = !flights_.empty() && flights_.begin()->first <= next_tick;
      const Time at = answer_first ? std::max(now_, flights_.begin()->first) : next_tick;
      if (at > end) break;
      now_ = at;
      answer_first ? deliver() : tick();
      if (testing::Test::HasFailure()) return;
    }
    now_ = end;
  }

  void tick() {
    Actions out;
    dispatcher_.on_tick(now_, out);
    resent += static_cast<int>(out.sends.size());
    carry_out(out);
    for (const auto& [id, step] : steps_) EXPECT_LT(now_, step.deadline + tick_period) << "a step outlived its deadline";
  }

  void deliver() {
    const Answer answer = flights_.begin()->second;
    flights_.erase(flights_.begin());
    Actions out;
    const StepId step_id = step_of_.at(answer.request);
    if (answer.refused) {
      if (const auto step = steps_.find(step_id); step != steps_.end()) step->second.excuse = true;
      dispatcher_.on_failed(answer.request, "refused", now_, out);
      return carry_out(out);
    }
    const auto before = dispatcher_.pairs_of(answer.request);
    const std::vector<Pair> pairs(before.begin(), before.end());
    if (dispatcher_.on_answer(answer.request, now_, 200us, 0us, out) == AnswerUse::use) {
      ASSERT_TRUE(steps_.contains(step_id));
      for (const Pair& pair : pairs) ++steps_[step_id].used[pair.index];
      EXPECT_EQ(dispatcher_.pairs_of(answer.request).size(), pairs.size());
    }
    carry_out(out);
  }

  std::mt19937 random_;
  Knobs knobs_{.step_deadline = 5s, .resend_floor = 250ms};
  Dispatcher dispatcher_;
  Time now_{0};
  WorkerId next_id_ = 0;
  std::map<WorkerId, SimWorker> workers_;
  std::map<StepId, SimStep> steps_;
  std::map<RequestId, StepId> step_of_;
  std::multimap<Time, Answer> flights_;
};

TEST(Simulation, RandomHistoriesKeepTheInvariants) {
  const char* wanted = std::getenv("LINKCPP_SIM_SEEDS");
  const unsigned n = wanted != nullptr ? static_cast<unsigned>(std::atoi(wanted)) : 1000;
  int completed = 0, failed = 0, resent = 0;
  for (unsigned seed = 0; seed < n; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    world.run();
    completed += world.completed;
    failed += world.failed;
    resent += world.resent;
    if (testing::Test::HasFailure()) break;
  }
  RecordProperty("completed", completed);
  RecordProperty("failed", failed);
  EXPECT_GT(completed, failed) << "the world is too hostile to mean anything";
  EXPECT_GT(failed, 0) << "the world is too kind to mean anything";
  EXPECT_GT(resent, 0);
}

}  // namespace
}  // namespace linkcpp::dispatch
