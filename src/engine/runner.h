// Runs a compute graph: base work on the wrapped device, routed-expert regions through the expert service.
#pragma once

#include <ggml-backend.h>

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/expert_service.h"
#include "engine/region.h"

namespace linkcpp::engine {

struct RunnerOptions {
  bool overlap = true;  ///< false: wait right after sending, to measure what overlap gains
  bool sum = false;     ///< combine mode: partial sums instead of pair rows
  std::size_t cached_plans = 8;
};

/// One for each backend instance (llama context). Threading: one graph at a time.
class Runner {
 public:
  /// `service` may be null: then every graph goes to the base as it is.
  Runner(ggml_backend_t base, ExpertService* service, ExpertFilter is_expert, RunnerOptions options);

  /// Computes the graph. On failure nothing is in flight any more and error() says why.
  ggml_status compute(ggml_cgraph* graph, const std::function<bool()>& aborted);
  [[nodiscard]] const std::string& error() const { return error_; }

  /// For tests and figures: graphs that were planned anew, and found in the cache.
  struct Counters {
    std::uint64_t planned = 0, cached = 0, nodes_planned = 0, regions_run = 0;
    std::chrono::nanoseconds planning{0};
  };
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  struct Cached {
    std::uint64_t uid;
    int n_nodes;
    const ggml_tensor *first, *last;
    Plan plan;
  };
  /// Buffers and state of one region while its pass runs; kept between passes so that nothing is allocated in the steady state.
  struct Flight {
    RegionCall call;
    std::vector<std::int32_t> ids;
    std::vector<std::vector<float>> inputs;
    std::vector<float> rows;     ///< what comes back
    std::vector<float> staging;  ///< summed result on its way to a device without host memory
    ExpertService::Ticket ticket = 0;
    bool begun = false, done = false;
  };

  const Plan& plan_for(const abi::Graph& graph);
  ggml_status run(const abi::Graph& graph, const Plan& plan, const std::function<bool()>& aborted);
  ggml_status compute_base(const abi::Graph& graph, const Plan& plan, std::size_t first, std::size_t last);
  Result<> handle(const Plan& plan, const PlanEvent& event, const std::function<bool()>& aborted);
  Result<> dispatch(const Region& region, Flight& flight, const std::function<bool()>& aborted);
  Result<> combine(const Region& region, Flight& flight, const std::function<bool()>& aborted);
  void write_output(const Region& region, Flight& flight);
  void abandon_all(const Plan& plan);

  ggml_backend_t base_;
  ExpertService* service_;
  ExpertFilter is_expert_;
  RunnerOptions options_;
  std::list<Cached> plans_;
  Plan unnamed_;  ///< of the latest graph without a uid
  std::vector<Flight> flights_;
  std::vector<std::byte> scratch_;
  std::string error_;
  Counters counters_;
};

}  // namespace linkcpp::engine
