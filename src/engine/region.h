// Finds the routed-expert regions of a compute graph by data flow, and plans the order of base work, dispatch and combine.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/abi.h"
#include "engine/anatomy.h"
#include "wire/program.h"

namespace linkcpp::engine {

/// An activation that a region needs from outside.
struct RegionInput {
  const ggml_tensor* tensor = nullptr;
  bool pair = false;  ///< a row a (token, slot) pair; else a row a token
};

/// One routed-expert region: everything between the hidden state and the sum over the selected experts.
struct Region {
  LayerKey layer = 0;
  wire::Program program;
  std::uint64_t program_id = 0;
  const ggml_tensor* ids = nullptr;  ///< [top_k, n_tokens] I32, rows may be strided
  std::uint32_t top_k = 0;
  std::uint32_t n_tokens = 0;
  std::vector<RegionInput> inputs;  ///< in the order of program.inputs
  ggml_tensor* output = nullptr;    ///< reduced: [n, n_tokens]; else the pair rows [n, top_k, n_tokens]
  bool reduced = false;             ///< the sum over slots belongs to the region
};

/// A step of the plan between two pieces of base work.
struct PlanEvent {
  enum class Kind : std::uint8_t {
    snapshot_ids,    ///< read the selected experts
    snapshot_input,  ///< read input `input`: its memory is reused after the region's first use of it
    dispatch,        ///< all inputs are there: send
    combine,         ///< the next base node needs the output: wait and write it. Never earlier: before its own place in
                     ///< the graph the output's memory may still belong to another tensor
  };
  Kind kind{};
  std::uint32_t region = 0;
  std::uint32_t input = 0;
  std::uint32_t after = 0;  ///< happens when this many base nodes were computed
};

struct Plan {
  std::vector<ggml_tensor*> base_nodes;  ///< what the base device computes, in graph order
  std::vector<Region> regions;
  std::vector<PlanEvent> events;  ///< by `after`
  /// For each base node, nodes of real work up to and including it: tells whether a range holds any.
  std::vector<std::uint32_t> work_before;
  std::uint32_t matmuls = 0;         ///< computed MUL_MAT_ID nodes of the graph
  std::uint32_t dispatched = 0;      ///< of those, in regions
  std::vector<std::string> on_base;  ///< for each of the others, its weight's name without "blk.N."
  std::string error;                 ///< not empty: an expert tensor is used in a way that cannot be dispatched; the pass must fail

  [[nodiscard]] bool has_work(std::size_t first, std::size_t last) const { return work_before[last] != work_before[first]; }
};

/// Says whether a tensor is one of the model's stacked expert tensors that workers hold.
using ExpertFilter = std::function<bool(const ExpertName&, const ggml_tensor&)>;

/// Plans one graph. Cost: below a microsecond a node; callers cache by graph uid.
Plan plan_graph(const abi::Graph& graph, const ExpertFilter& is_expert);

}  // namespace linkcpp::engine
