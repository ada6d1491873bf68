#include "engine/expert_graph.h"

#include <bit>
#include <cstring>

namespace linkcpp::engine {
namespace {

constexpr std::size_t tensors_per_op = 6;  // result, two contiguous copies, reshaping around it
constexpr std::size_t other_tensors = 8;   // ids and their reshaping, copy of the output

}  // namespace

class GraphBuilder {
 public:
  GraphBuilder(const wire::Program& program, const BoundProgram& bound, PairForm form, ExpertGraph& to)
      : p_(program), bound_(bound), form_(form), to_(to) {
    const std::size_t n = p_.ops.size() * tensors_per_op + p_.inputs.size() + other_tensors;
    to_.context_.reset(ggml_init(
        {.mem_size = n * ggml_tensor_overhead() + ggml_graph_overhead_custom(n, false), .mem_buffer = nullptr, .no_alloc = true}));
    c_ = to_.context_.get();
    to_.graph_ = ggml_new_graph_custom(c_, n, false);
  }

  void build() {
    make_ids();
    to_.inputs_.assign(p_.inputs.size(), nullptr);
    for (const wire::Op& op : p_.ops) {
      ggml_tensor* result = node(op);
      ops_.push_back(result);
      // In the program's order, since some ops work in place.
      ggml_build_forward_expand(to_.graph_, result);
    }
    ggml_tensor* output = contiguous(ops_[p_.output]);
    ggml_set_output(output);
    // A later op may read it too, which must not free the memory that it is a view of.
    if (output->view_src != nullptr) ggml_set_output(output->view_src);
    ggml_build_forward_expand(to_.graph_, output);
    to_.output_ = output;
  }

 private:
  using Kind = wire::OpKind;

  void make_ids() {
    bool global = false, local = false;
    for (const ExpertWeight* weight : bound_.weights) (weight->local_ids ? local : global) = true;
    const auto ids = [&](bool wanted) {
      if (!wanted) return static_cast<ggml_tensor*>(nullptr);
      ggml_tensor* t = ggml_new_tensor_2d(c_, GGML_TYPE_I32, form_.per_token, form_.n_tokens);
      ggml_set_input(t);
      return t;
    };
    to_.global_ids_ = ids(global);
    to_.local_ids_ = ids(local);
  }

  ggml_tensor* input(std::size_t k) {
    ggml_tensor*& t = to_.inputs_[k];
    if (t == nullptr) {
      const wire::Input& input = p_.inputs[k];
      const std::int64_t per_token = input.kind == wire::Input::Kind::token ? 1 : form_.per_token;
      t = form_.grid ? ggml_new_tensor_3d(c_, GGML_TYPE_F32, input.n, per_token, form_.n_tokens)
                     : ggml_new_tensor_2d(c_, GGML_TYPE_F32, input.n, form_.n_tokens);
      ggml_set_input(t);
    }
    return t;
  }

  ggml_tensor* value(const wire::Source& s) {
    if (s.kind == wire::Source::Kind::op) return ops_[s.index];
    return s.kind == wire::Source::Kind::input ? input(s.index) : nullptr;
  }

  ggml_tensor* contiguous(ggml_tensor* t) { return ggml_is_contiguous(t) ? t : ggml_cont(c_, t); }

  ggml_tensor* node(const wire::Op& op) {
    ggml_tensor *a = value(op.sources[0]), *b = value(op.sources[1]);
    if (op.kind == Kind::view) {
      return ggml_view_3d(c_, a, op.n_out, a->ne[1], a->ne[2], a->nb[1], a->nb[2], op.offset * sizeof(float));
    }
    if (op.kind == Kind::mul_mat_id) return multiply(op, a);
    ggml_tensor* result = op.kind == Kind::add_id ? add_bias(op, a) : row_wise(op, a, b);
    std::memcpy(result->op_params, op.params.data(), sizeof result->op_params);
    return result;
  }

  ggml_tensor* multiply(const wire::Op& op, ggml_tensor* rows) {
    const ExpertWeight& weight = *bound_.weights[op.sources[1].index];
    rows = contiguous(rows);
    // Flat pairs are tokens to the engine: an expert may come up any number of times among them, but only once for one token.
    if (!form_.grid) rows = ggml_reshape_3d(c_, rows, rows->ne[0], 1, form_.n_tokens);
    ggml_tensor* product = ggml_mul_mat_id(c_, weight.tensor, rows, weight.local_ids ? to_.local_ids_ : to_.global_ids_);
    std::memcpy(product->op_params, op.params.data(), sizeof product->op_params);
    to_.weight_uses_.push_back({product, 0, op.sources[1].index});
    return form_.grid ? product : ggml_reshape_2d(c_, product, product->ne[0], form_.n_tokens);
  }

  ggml_tensor* add_bias(const wire::Op& op, ggml_tensor* rows) {
    const ExpertWeight& weight = *bound_.weights[op.sources[1].index];
    ggml_tensor* ids = weight.local_ids ? to_.local_ids_ : to_.global_ids_;
    if (!form_.grid) ids = ggml_reshape_2d(c_, ids, form_.n_tokens, 1);
    ggml_tensor* sum = ggml_add_id(c_, contiguous(rows), weight.tensor, ids);
    to_.weight_uses_.push_back({sum, 1, op.sources[1].index});
    return sum;
  }

  /// GLU and CLAMP take parts of rows as they are, since llama.cpp gives them such; what else meets one gets a copy of it, so that no
  /// device's kernel is asked for strides that it may not know.
  ggml_tensor* row_wise(const wire::Op& op, ggml_tensor* a, ggml_tensor* b) {
    switch (op.kind) {
      case Kind::glu: {
        const auto kind = static_cast<ggml_glu_op>(op.params[0]);
        return b != nullptr ? ggml_glu_split(c_, a, b, kind) : ggml_glu(c_, a, kind, op.params[1] != 0);
      }
      case Kind::clamp:
        return ggml_clamp(c_, a, std::bit_cast<float>(op.params[0]), std::bit_cast<float>(op.params[1]));
      case Kind::unary:
        return ggml_unary(c_, contiguous(a), static_cast<ggml_unary_op>(op.params[0]));
      case Kind::scale:
        return ggml_scale(c_, contiguous(a), 1.0f);
      case Kind::mul:
        return ggml_mul(c_, contiguous(a), contiguous(b));
      case Kind::add:
        return ggml_add(c_, contiguous(a), contiguous(b));
      case Kind::sub:
        return ggml_sub(c_, contiguous(a), contiguous(b));
      case Kind::div:
        return ggml_div(c_, contiguous(a), contiguous(b));
      case Kind::sqr:
        return ggml_sqr(c_, contiguous(a));
      case Kind::sqrt:
        return ggml_sqrt(c_, contiguous(a));
      case Kind::mul_mat_id:
      case Kind::add_id:
      case Kind::view:
        break;
    }
    return a;
  }

  const wire::Program& p_;
  const BoundProgram& bound_;
  PairForm form_;
  ExpertGraph& to_;
  ggml_context* c_ = nullptr;
  std::vector<ggml_tensor*> ops_;
};

ExpertGraph::ExpertGraph(const wire::Program& program, const BoundProgram& bound, PairForm form) {
  GraphBuilder(program, bound, form, *this).build();
}

Result<> ExpertGraph::allocate(ggml_gallocr_t allocator) {
  if (ggml_gallocr_alloc_graph(allocator, graph_)) return {};
  return fail(ErrorKind::unavailable, "the device has no memory left for the activations of this batch: send fewer tokens at once");
}

void ExpertGraph::bind(const BoundProgram& bound) {
  for (const WeightUse& use : weight_uses_) use.node->src[use.source] = bound.weights[use.weight]->tensor;
}

const ggml_tensor* ExpertGraph::unsupported(const ExpertDevice& device) const {
  for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph_, i);
    if (!device.supports(node)) return node;
  }
  return nullptr;
}

}  // namespace linkcpp::engine
