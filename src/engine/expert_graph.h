// A region program as a ggml graph over a fixed number of pairs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/expert_device.h"
#include "engine/expert_program.h"

namespace linkcpp::engine {

/// How pairs lie in the graph's tensors.
///   grid: every token has `per_token` pairs; tensors are [n, per_token, n_tokens], token rows stay single ([n, 1, n_tokens]), as
///         in llama.cpp's own graph.
///   flat: n_tokens pairs, each a token of its own with one expert (per_token is 1); token rows are repeated for each pair.
struct PairForm {
  bool grid = false;
  std::uint32_t per_token = 1;
  std::uint32_t n_tokens = 0;
  [[nodiscard]] std::size_t n_pairs() const { return std::size_t{per_token} * n_tokens; }
  bool operator==(const PairForm&) const = default;
};

/// Built once, computed many times. The arithmetic is that of the engine's own graph: same ops, same row lengths, same order.
class ExpertGraph {
 public:
  ExpertGraph(const wire::Program& program, const BoundProgram& bound, PairForm form);

  /// Gives every tensor memory from `allocator`, which must outlive the graph's last use.
  Result<> allocate(ggml_gallocr_t allocator);
  /// Points the graph to another layer's weights of the same types and shapes.
  void bind(const BoundProgram& bound);

  [[nodiscard]] ggml_cgraph* graph() const { return graph_; }
  /// Rows of program input k: [n, pairs] or, token inputs in a grid, [n, tokens]. Null if no op reads it.
  [[nodiscard]] ggml_tensor* input(std::size_t k) const { return inputs_[k]; }
  /// Expert numbers by pair, I32; null where no weight is indexed that way.
  [[nodiscard]] ggml_tensor* global_ids() const { return global_ids_; }
  [[nodiscard]] ggml_tensor* local_ids() const { return local_ids_; }
  /// [n_out, pairs], contiguous.
  [[nodiscard]] ggml_tensor* output() const { return output_; }
  /// The first node that a device does not support, or null.
  [[nodiscard]] const ggml_tensor* unsupported(const ExpertDevice& device) const;

 private:
  friend class GraphBuilder;
  struct WeightUse {
    ggml_tensor* node;
    int source;
    std::uint16_t weight;
  };
  ContextPtr context_;
  ggml_cgraph* graph_ = nullptr;
  std::vector<ggml_tensor*> inputs_;
  ggml_tensor *global_ids_ = nullptr, *local_ids_ = nullptr, *output_ = nullptr;
  std::vector<WeightUse> weight_uses_;
};

}  // namespace linkcpp::engine
