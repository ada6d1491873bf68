// Builds compute graphs of one or more MoE layers as the engine's models do, for tests of the planner and the runner.
#pragma once

#include <ggml.h>

#include <format>
#include <memory>
#include <string>
#include <vector>

namespace linkcpp::test {

/// How a layer's routed experts are written in the graph.
struct MoeShape {
  std::int64_t n_embd = 32, n_ff = 16, n_expert = 8, top_k = 4, n_tokens = 3;
  int n_layers = 1;
  ggml_type weight_type = GGML_TYPE_F32;
  bool merged_gate_up = false;  ///< one tensor for gate and up, halves taken by views
  bool bias = false;            ///< ADD_ID behind every matmul
  bool weight_before = false;   ///< router weights multiply the input instead of the output
  bool gated = true;            ///< false: up, activation, down
  bool squared = false;         ///< ungated: the square of the activation
  bool shared_expert = false;   ///< work that does not need the routed result
  bool lora = false;            ///< an adapter on every matrix of the experts, of its own stacked matmuls
  bool scale_tensor = false;    ///< a pair scalar that is computed after the up matmul
  bool reduce = true;           ///< sum over slots by views and adds
  bool observe_up = false;      ///< mark the up result as an output, as an evaluation callback does
  const char* suffix = "exps";
};

/// Graph and context live together.
struct MoeGraph {
  std::unique_ptr<ggml_context, void (*)(ggml_context*)> context{nullptr, ggml_free};
  ggml_cgraph* graph = nullptr;
  ggml_tensor* input = nullptr;  ///< [n_embd, n_tokens]
  ggml_tensor* output = nullptr;
  std::vector<ggml_tensor*> weights;  ///< every leaf that needs data
};

class MoeGraphBuilder {
 public:
  explicit MoeGraphBuilder(MoeShape shape) : s_(shape) {
    g_.context.reset(ggml_init({.mem_size = std::size_t{64} << 20, .mem_buffer = nullptr, .no_alloc = true}));
  }

  MoeGraph build() {
    ggml_context* c = g_.context.get();
    g_.graph = ggml_new_graph_custom(c, 8192, false);
    g_.input = ggml_new_tensor_2d(c, GGML_TYPE_F32, s_.n_embd, s_.n_tokens);
    ggml_set_input(g_.input);
    ggml_tensor* cur = g_.input;
    for (int layer = 0; layer < s_.n_layers; ++layer) cur = add_layer(cur, layer);
    g_.output = ggml_scale(c, cur, 0.5f);
    ggml_set_output(g_.output);
    ggml_build_forward_expand(g_.graph, g_.output);
    return std::move(g_);
  }

 private:
  ggml_tensor* leaf(ggml_tensor* t, int layer, const std::string& role) {
    ggml_format_name(t, "blk.%d.%s", layer, role.c_str());
    g_.weights.push_back(t);
    return t;
  }
  ggml_tensor* matrix(int layer, const std::string& role, std::int64_t n_in, std::int64_t n_out) {
    return leaf(ggml_new_tensor_2d(g_.context.get(), GGML_TYPE_F32, n_in, n_out), layer, role);
  }
  ggml_tensor* experts(int layer, const std::string& which, std::int64_t n_in, std::int64_t n_out) {
    return leaf(ggml_new_tensor_3d(g_.context.get(), s_.weight_type, n_in, n_out, s_.n_expert), layer,
                std::format("ffn_{}_{}.weight", which, s_.suffix));
  }
  /// Rows times a stacked matrix, and times the matrix that an adapter adds to it.
  ggml_tensor* multiply(ggml_tensor* weight, ggml_tensor* rows, ggml_tensor* ids, int layer, const std::string& which) {
    ggml_context* c = g_.context.get();
    ggml_tensor* product = ggml_mul_mat_id(c, weight, rows, ids);
    if (!s_.lora) return product;
    const auto part = [&](const char* side, std::int64_t n_in, std::int64_t n_out) {
      return leaf(ggml_new_tensor_3d(c, GGML_TYPE_F32, n_in, n_out, s_.n_expert), layer,
                  std::format("ffn_{}_{}.weight.lora_{}", which, s_.suffix, side));
    };
    ggml_tensor* low = ggml_mul_mat_id(c, part("a", weight->ne[0], 2), rows, ids);
    return ggml_add(c, product, ggml_scale(c, ggml_mul_mat_id(c, part("b", 2, weight->ne[1]), low, ids), 0.5f));
  }
  ggml_tensor* with_bias(ggml_tensor* rows, int layer, const std::string& which, ggml_tensor* ids) {
    if (!s_.bias) return rows;
    ggml_tensor* b = ggml_new_tensor_2d(g_.context.get(), GGML_TYPE_F32, rows->ne[0], s_.n_expert);
    return ggml_add_id(g_.context.get(), rows, leaf(b, layer, std::format("ffn_{}_{}.bias", which, s_.suffix)), ids);
  }

  ggml_tensor* activation(ggml_tensor* x, int layer, ggml_tensor* ids) {
    ggml_context* c = g_.context.get();
    if (s_.merged_gate_up) {
      ggml_tensor* both = with_bias(ggml_mul_mat_id(c, experts(layer, "gate_up", s_.n_embd, 2 * s_.n_ff), x, ids), layer, "gate_up", ids);
      ggml_tensor* gate = ggml_view_3d(c, both, s_.n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
      ggml_tensor* up = ggml_view_3d(c, both, s_.n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2], s_.n_ff * sizeof(float));
      return ggml_swiglu_split(c, gate, up);
    }
    ggml_tensor* up = with_bias(multiply(experts(layer, "up", s_.n_embd, s_.n_ff), x, ids, layer, "up"), layer, "up", ids);
    if (s_.observe_up) ggml_set_output(up);
    if (s_.scale_tensor) {
      ggml_tensor* scales = leaf(ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, s_.n_expert, 1), layer, "ffn_up_exps.scale");
      up = ggml_mul(c, up, ggml_get_rows(c, ggml_repeat_4d(c, scales, 1, s_.n_expert, s_.n_tokens, 1), ids));
    }
    if (!s_.gated) return s_.squared ? ggml_sqr(c, ggml_relu(c, up)) : ggml_relu(c, up);
    ggml_tensor* gate = with_bias(multiply(experts(layer, "gate", s_.n_embd, s_.n_ff), x, ids, layer, "gate"), layer, "gate", ids);
    return ggml_swiglu_split(c, gate, up);
  }

  ggml_tensor* add_layer(ggml_tensor* cur, int layer) {
    ggml_context* c = g_.context.get();
    cur = ggml_rms_norm(c, cur, 1e-6f);
    ggml_tensor* probs = ggml_soft_max(c, ggml_mul_mat(c, matrix(layer, "ffn_gate_inp.weight", s_.n_embd, s_.n_expert), cur));
    ggml_tensor* ids = ggml_top_k(c, probs, static_cast<int>(s_.top_k));
    ggml_tensor* weights = ggml_get_rows(c, ggml_reshape_3d(c, probs, 1, s_.n_expert, s_.n_tokens), ids);
    ggml_tensor* x = ggml_reshape_3d(c, cur, s_.n_embd, 1, s_.n_tokens);
    if (s_.weight_before) {
      ggml_tensor* wide = ggml_repeat_4d(c, x, s_.n_embd, s_.top_k, s_.n_tokens, 1);
      x = ggml_mul(c, wide, weights);
    }
    ggml_tensor* rows = activation(x, layer, ids);
    rows = with_bias(multiply(experts(layer, "down", s_.n_ff, s_.n_embd), rows, ids, layer, "down"), layer, "down", ids);
    if (!s_.weight_before) rows = ggml_mul(c, rows, weights);
    ggml_tensor* sum = s_.reduce ? reduce(rows) : ggml_cont_2d(c, ggml_permute(c, rows, 1, 0, 2, 3), s_.top_k, s_.n_embd * s_.n_tokens);
    if (!s_.reduce) sum = ggml_reshape_2d(c, ggml_sum_rows(c, sum), s_.n_embd, s_.n_tokens);
    if (s_.shared_expert) {
      ggml_build_forward_expand(g_.graph, sum);
      ggml_tensor* hidden = ggml_silu(c, ggml_mul_mat(c, matrix(layer, "ffn_up_shexp.weight", s_.n_embd, s_.n_ff), cur));
      sum = ggml_add(c, sum, ggml_mul_mat(c, matrix(layer, "ffn_down_shexp.weight", s_.n_ff, s_.n_embd), hidden));
    }
    return ggml_add(c, sum, cur);
  }

  ggml_tensor* reduce(ggml_tensor* rows) {
    ggml_context* c = g_.context.get();
    std::vector<ggml_tensor*> slots;
    for (std::int64_t i = 0; i < s_.top_k; ++i) {
      slots.push_back(ggml_view_2d(c, rows, rows->ne[0], s_.n_tokens, rows->nb[2], static_cast<std::size_t>(i) * rows->nb[1]));
      ggml_build_forward_expand(g_.graph, slots.back());
    }
    ggml_tensor* sum = slots[0];
    for (std::size_t i = 1; i < slots.size(); ++i) {
      sum = ggml_add(c, sum, slots[i]);
      ggml_build_forward_expand(g_.graph, sum);
    }
    return slots.size() == 1 ? ggml_cont(c, sum) : sum;
  }

  MoeShape s_;
  MoeGraph g_;
};

inline MoeGraph build_moe_graph(MoeShape shape) { return MoeGraphBuilder(shape).build(); }

}  // namespace linkcpp::test
