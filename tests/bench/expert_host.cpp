// A worker's expert compute against the engine's own MUL_MAT_ID graph: same weights, same threads, same process.
//
// Both read the same mapped file and are timed in turns, so that a busy machine harms both alike. The counter `ratio` is plain time over
// replay time, each the best of all rounds: 1.0 is plain speed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "unit/engine/expert_test_model.h"

namespace linkcpp {
namespace {

using Clock = std::chrono::steady_clock;

struct Subject {
  test::TempFolder folder;
  test::ModelShape shape;
  std::unique_ptr<engine::ExpertHost> host;
  [[nodiscard]] std::filesystem::path path() const { return folder.path() / "model.gguf"; }
};

/// One layer of 32 experts of which 8 are used; made once for each type and number of threads.
Subject& subject(ggml_type type, int n_threads) {
  static std::map<std::pair<ggml_type, int>, std::unique_ptr<Subject>> made;
  auto& entry = made[{type, n_threads}];
  if (!entry) {
    entry = std::make_unique<Subject>();
    entry->shape = {.type = type, .n_embd = 1024, .n_ff = 512, .n_expert = 32, .top_k = 8, .n_layers = 1};
    const auto anatomy = test::write_model(entry->shape, entry->path());
    entry->host = engine::ExpertHost::open(anatomy, {.n_threads = n_threads, .experts = {{}}}).value();
  }
  return *entry;
}

template <class Work>
double seconds(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void expert_host(benchmark::State& state, ggml_type type, wire::CombineMode mode) {
  const std::int64_t n_tokens = state.range(0);
  const int n_threads = static_cast<int>(state.range(1));
  Subject& s = subject(type, n_threads);
  const test::Workload load(s.shape, n_tokens, 1);
  test::ReferenceLayer plain(s.shape, s.path(), 0, n_tokens, n_threads);
  plain.set(load.x, load.ids, load.w);
  test::Share share(s.shape, load, [](auto) { return true; });
  engine::HostRequest request = share.request(s.shape, load, mode);
  const wire::Program program = test::make_program(s.shape);
  std::vector<double> plain_times, replay_times;
  for (int i = 0; i < 3; ++i) {
    plain.compute();
    if (auto done = s.host->run(program, 0, {&request, 1}); !done) return state.SkipWithError(done.error().message.c_str());
  }
  const auto time_plain = [&] { plain_times.push_back(seconds([&] { plain.compute(); })); };
  const auto time_replay = [&] {
    replay_times.push_back(seconds([&] { benchmark::DoNotOptimize(s.host->run(program, 0, {&request, 1})); }));
  };
  bool plain_first = false;
  for (auto _ : state) {
    // In turns, since whoever comes second finds other bytes in the caches.
    plain_first = !plain_first;
    if (plain_first) time_plain();
    time_replay();
    if (!plain_first) time_plain();
    state.SetIterationTime(replay_times.back());
  }
  const double plain_best = std::ranges::min(plain_times), replay_best = std::ranges::min(replay_times);
  state.counters["plain_us"] = plain_best * 1e6;
  state.counters["replay_us"] = replay_best * 1e6;
  state.counters["ratio"] = plain_best / replay_best;
}

void arguments(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "threads"})->ArgsProduct({{1, 64}, {1, 2}})->UseManualTime()->Unit(benchmark::kMicrosecond)->MinTime(1.0);
}

BENCHMARK_CAPTURE(expert_host, f16_raw, GGML_TYPE_F16, wire::CombineMode::raw)->Apply(arguments);
BENCHMARK_CAPTURE(expert_host, q8_0_raw, GGML_TYPE_Q8_0, wire::CombineMode::raw)->Apply(arguments);
BENCHMARK_CAPTURE(expert_host, q4_K_raw, GGML_TYPE_Q4_K, wire::CombineMode::raw)->Apply(arguments);
BENCHMARK_CAPTURE(expert_host, q8_0_sum, GGML_TYPE_Q8_0, wire::CombineMode::sum)->Apply(arguments);

}  // namespace
}  // namespace linkcpp
