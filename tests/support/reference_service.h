// An expert service that computes regions in this process with plain ggml ops on the model's own weights: what a worker must equal.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/expert_service.h"

namespace linkcpp::test {

class ReferenceService final : public engine::ExpertService {
 public:
  explicit ReferenceService(std::vector<ggml_tensor*> weights) {
    for (ggml_tensor* w : weights) weights_[w->name] = w;
    cpu_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
  }

  Result<Ticket> begin(engine::RegionCall& call) override {
    ++begun;
    if (fail_next) return fail(ErrorKind::unavailable, "no worker");
    calls_[++last_] = &call;
    return last_;
  }
  /// Computes only now, from the buffers as they are now: they must have been kept.
  Result<> await(Ticket ticket, engine::RegionCall& call, const std::function<bool()>&) override {
    if (calls_.erase(ticket) != 1) return fail(ErrorKind::internal, "unknown ticket");
    if (fail_await) return fail(ErrorKind::timeout, "lost");
    compute(call);
    return {};
  }
  void abandon(Ticket ticket) override { calls_.erase(ticket); }
  void pass_done(const engine::PassSummary& summary) override {
    ++passes;
    regions = summary.regions;
    matmuls = summary.matmuls;
    dispatched = summary.dispatched;
    on_base.assign(summary.on_base.begin(), summary.on_base.end());
  }
  [[nodiscard]] std::size_t in_flight() const { return calls_.size(); }

  int begun = 0, passes = 0;
  // Of the latest pass.
  std::uint32_t regions = 0, matmuls = 0, dispatched = 0;
  std::vector<std::string> on_base;
  bool fail_next = false, fail_await = false;

 private:
  void compute(engine::RegionCall& call) {
    std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(
        ggml_init({.mem_size = std::size_t{64} << 20, .mem_buffer = nullptr, .no_alloc = false}), ggml_free);
    ggml_context* c = context.get();
    const wire::Program& p = *call.program;
    ggml_tensor* ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, call.top_k, call.n_tokens);
    std::memcpy(ids->data, call.experts.data(), call.experts.size_bytes());
    std::vector<ggml_tensor*> inputs, ops;
    for (std::size_t k = 0; k < p.inputs.size(); ++k) {
      const std::int64_t rows = p.inputs[k].kind == wire::Input::Kind::token ? 1 : call.top_k;
      inputs.push_back(ggml_new_tensor_3d(c, GGML_TYPE_F32, p.inputs[k].n, rows, call.n_tokens));
      std::memcpy(inputs.back()->data, call.inputs[k].data(), call.inputs[k].size_bytes());
    }
    const auto at = [&](const wire::Source& s) -> ggml_tensor* {
      using Kind = wire::Source::Kind;
      if (s.kind == Kind::op) return ops[s.index];
      if (s.kind == Kind::input) return inputs[s.index];
      if (s.kind == Kind::weight) return weights_.at("blk." + std::to_string(call.layer) + "." + p.weights[s.index]);
      return nullptr;
    };
    for (const wire::Op& op : p.ops) {
      ggml_tensor *a = at(op.sources[0]), *b = at(op.sources[1]), *t = nullptr;
      switch (op.kind) {
        case wire::OpKind::mul_mat_id:
          t = ggml_mul_mat_id(c, b, a, ids);
          break;
        case wire::OpKind::add_id:
          t = ggml_add_id(c, a, b, ids);
          break;
        case wire::OpKind::mul:
          t = ggml_mul(c, a, b);
          break;
        case wire::OpKind::unary:
          t = ggml_unary(c, a, static_cast<ggml_unary_op>(op.params[0]));
          break;
        case wire::OpKind::add:
          t = ggml_add(c, a, b);
          break;
        case wire::OpKind::sqr:
          t = ggml_sqr(c, a);
          break;
        case wire::OpKind::glu:
          t = ggml_glu_split(c, a, b, static_cast<ggml_glu_op>(op.params[0]));
          break;
        case wire::OpKind::view:
          t = ggml_view_3d(c, a, op.n_out, a->ne[1], a->ne[2], a->nb[1], a->nb[2], op.offset * sizeof(float));
          break;
        default:
          GGML_ABORT("op kind not needed by the tests");
      }
      std::memcpy(t->op_params, op.params.data(), op.kind == wire::OpKind::view ? 0 : sizeof op.params);
      ops.push_back(t);
    }
    ggml_cgraph* graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, ops[p.output]);
    if (ggml_backend_graph_compute(cpu_.get(), graph) != GGML_STATUS_SUCCESS) GGML_ABORT("the reference graph failed");
    const float* rows = static_cast<const float*>(ops[p.output]->data);
    const std::size_t n = p.n_out();
    if (!call.sum) {
      std::memcpy(call.output.data(), rows, call.output.size_bytes());
      return;
    }
    for (std::size_t t = 0; t < call.n_tokens; ++t) {
      for (std::size_t s = 0; s < call.top_k; ++s) {
        for (std::size_t i = 0; i < n; ++i) {
          float& to = call.output[t * n + i];
          const float value = rows[(t * call.top_k + s) * n + i];
          to = s == 0 ? value : to + value;
        }
      }
    }
  }

  struct BackendFree {
    void operator()(ggml_backend_t b) const { ggml_backend_free(b); }
  };
  std::unique_ptr<ggml_backend, BackendFree> cpu_;
  std::map<std::string, ggml_tensor*> weights_;
  std::map<Ticket, engine::RegionCall*> calls_;
  Ticket last_ = 0;
};

}  // namespace linkcpp::test
