#include "engine/expert_program.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace linkcpp::engine {
namespace {

using wire::Op;
using wire::OpKind;
using wire::Source;

bool is_number(std::int32_t param) { return !std::isnan(std::bit_cast<float>(param)); }
bool is_finite(std::int32_t param) { return std::isfinite(std::bit_cast<float>(param)); }

/// Precision hints of matrix products. Hints that let the engine replace the weight by something it is said to be are not among them.
bool is_precision(std::int32_t param) {
  return param == GGML_PREC_UNDEFINED || param == GGML_PREC_F32 || param == GGML_PREC_BF16 || param == GGML_PREC_F16 ||
         param == GGML_PREC_Q8 || param == GGML_PREC_Q4;
}

class Binder {
 public:
  Binder(const wire::Program& program, const ExpertLayer& layer) : p_(program), layer_(layer) {}

  Result<BoundProgram> run() {
    if (auto sound = wire::check_program(p_); !sound) return pass(sound);
    for (const std::string& role : p_.weights) {
      const auto found = layer_.weights.find(role);
      if (found == layer_.weights.end()) return bad("this layer of the model has no '{}'", role);
      bound_.weights.push_back(&found->second);
    }
    bound_.grid = true;
    for (const wire::Input& input : p_.inputs) bound_.pair_bytes += std::uint64_t{input.n} * sizeof(float);
    for (std::size_t i = 0; i < p_.ops.size(); ++i) {
      if (auto fits = check_weight(i); !fits) return pass(fits);
      if (auto known = check_params(i); !known) return pass(known);
      per_pair_.push_back(is_per_pair(i));
      // Result, and at worst a contiguous copy of each source.
      bound_.pair_bytes += (std::uint64_t{p_.ops[i].n_out} + length(p_.ops[i].sources[0]) + length(p_.ops[i].sources[1])) * sizeof(float);
    }
    bound_.grid = bound_.grid && per_pair_[p_.output];
    bound_.pair_bytes += workspace_;
    return std::move(bound_);
  }

 private:
  template <class... Args>
  [[nodiscard]] std::unexpected<Error> bad(std::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorKind::invalid_input, "invalid program for layer {}: {}", layer_.key, std::format(format, std::forward<Args>(args)...));
  }

  std::uint32_t length(const Source& s) const {
    if (s.kind == Source::Kind::op) return p_.ops[s.index].n_out;
    return s.kind == Source::Kind::input ? p_.inputs[s.index].n : 0;
  }
  bool per_pair(const Source& s) const {
    if (s.kind == Source::Kind::op) return per_pair_[s.index];
    return s.kind == Source::Kind::input && p_.inputs[s.index].kind == wire::Input::Kind::pair;
  }

  Result<> check_weight(std::size_t i) {
    const Op& op = p_.ops[i];
    if (op.kind != OpKind::mul_mat_id && op.kind != OpKind::add_id) return {};
    const ExpertWeight& weight = *bound_.weights[op.sources[1].index];
    const std::string& role = p_.weights[op.sources[1].index];
    if (weight.is_bias != (op.kind == OpKind::add_id))
      return bad("op {} uses '{}', which is {}", i, role, weight.is_bias ? "a bias" : "no bias");
    if (weight.n_out != op.n_out) return bad("op {} makes rows of {}, '{}' makes rows of {}", i, op.n_out, role, weight.n_out);
    if (op.kind == OpKind::add_id) return {};
    const std::uint32_t n_in = length(op.sources[0]);
    if (weight.n_in != n_in) return bad("op {} has rows of {}, '{}' takes rows of {}", i, n_in, role, weight.n_in);
    // The engine's scratch memory: the row in the weight's companion format, and a list of rows for every expert.
    workspace_ = std::max<std::uint64_t>(workspace_, std::uint64_t{n_in} * sizeof(float) + std::uint64_t{layer_.n_expert} * 16);
    return {};
  }

  Result<> check_params(std::size_t i) const {
    const auto& params = p_.ops[i].params;
    const auto zero_from = [&](std::size_t k) {
      return std::all_of(params.begin() + k, params.end(), [](std::int32_t p) { return p == 0; });
    };
    const auto numbers_from = [&](std::size_t k) { return std::all_of(params.begin() + k, params.end(), is_number); };
    bool known = true;
    switch (p_.ops[i].kind) {
      case OpKind::mul_mat_id:
        known = std::ranges::all_of(params, is_precision);
        break;
      case OpKind::glu:
        known = params[0] >= 0 && params[0] < GGML_GLU_OP_COUNT && (params[1] == 0 || params[1] == 1) && numbers_from(2);
        break;
      case OpKind::unary:
        known = params[0] >= 0 && params[0] < GGML_UNARY_OP_COUNT && numbers_from(1);
        break;
      case OpKind::clamp:
        known = is_number(params[0]) && is_number(params[1]) && zero_from(2);
        break;  // infinite: open to that side
      case OpKind::scale:
        known = is_finite(params[0]) && is_finite(params[1]) && zero_from(2);
        break;
      default:
        known = zero_from(0);
        break;
    }
    if (!known) return bad("op {} has parameters that this engine does not know", i);
    return {};
  }

  /// Whether op i makes a row a pair (and not one a token); notes where that would need a broadcast that ggml does not have.
  bool is_per_pair(std::size_t i) {
    const Op& op = p_.ops[i];
    const bool a = per_pair(op.sources[0]);
    if (op.kind == OpKind::mul_mat_id) return true;
    if (op.kind == OpKind::add_id) {
      if (!a) bound_.grid = false;
      return true;
    }
    if (op.sources[1] == Source{}) return a;
    const bool b = per_pair(op.sources[1]);
    const bool fits = op.kind == OpKind::glu ? a == b : a || !b;
    if (!fits) bound_.grid = false;
    return a || b;
  }

  const wire::Program& p_;
  const ExpertLayer& layer_;
  BoundProgram bound_;
  std::vector<bool> per_pair_;
  std::uint64_t workspace_ = 0;
};

}  // namespace

Result<BoundProgram> bind_program(const wire::Program& program, const ExpertLayer& layer) { return Binder(program, layer).run(); }

}  // namespace linkcpp::engine
