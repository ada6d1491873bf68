// What planning a graph costs: nanoseconds a node. Graphs are planned once and then found by uid, so this is paid on cache misses.
#include <benchmark/benchmark.h>

#include "engine/abi.h"
#include "engine/region.h"
#include "support/moe_graph.h"

namespace linkcpp {
namespace {

/// Arguments: layers, tokens, whether there is a shared expert. Sizes of rows do not matter to the planner.
void plan(benchmark::State& state) {
  test::MoeShape shape;
  shape.n_layers = static_cast<int>(state.range(0));
  shape.n_tokens = state.range(1);
  shape.shared_expert = state.range(2) != 0;
  shape.n_expert = 64;
  shape.top_k = 8;
  const test::MoeGraph moe = test::build_moe_graph(shape);
  const abi::Graph& graph = abi::view(moe.graph);
  const engine::ExpertFilter all = [](const engine::ExpertName&, const ggml_tensor&) { return true; };
  for (auto _ : state) {
    engine::Plan plan = engine::plan_graph(graph, all);
    if (!plan.error.empty() || plan.regions.size() != static_cast<std::size_t>(shape.n_layers)) {
      state.SkipWithError("the graph was not planned as expected");
      return;
    }
    benchmark::DoNotOptimize(plan);
  }
  state.counters["nodes"] = graph.n_nodes;
  state.counters["s_per_node"] =
      benchmark::Counter(static_cast<double>(graph.n_nodes), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(plan)
    ->ArgNames({"layers", "tokens", "shared"})
    ->Args({4, 1, 1})
    ->Args({48, 1, 0})
    ->Args({48, 1, 1})
    ->Args({48, 512, 1})
    ->Args({90, 1, 1});

}  // namespace
}  // namespace linkcpp
