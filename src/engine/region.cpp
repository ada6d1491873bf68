#include "engine/region.h"

#include <algorithm>
#include <cstring>
#include <format>
#include <optional>

namespace linkcpp::engine {
namespace {

constexpr int none = -1;

/// Open-addressed map from tensor to node index: a graph has thousands of nodes and is planned in under a microsecond a node.
class NodeIndex {
 public:
  explicit NodeIndex(const abi::Graph& graph) {
    std::size_t size = 64;
    while (size < static_cast<std::size_t>(graph.n_nodes) * 2) size *= 2;
    mask_ = size - 1;
    slots_.assign(size, {nullptr, none});
    for (int i = 0; i < graph.n_nodes; ++i) insert(graph.nodes[i], i);
  }
  [[nodiscard]] int find(const ggml_tensor* tensor) const {
    if (tensor == nullptr) return none;
    for (std::size_t at = hash(tensor);; at = (at + 1) & mask_) {
      if (slots_[at].tensor == tensor) return slots_[at].index;
      if (slots_[at].tensor == nullptr) return none;
    }
  }

 private:
  struct Slot {
    const ggml_tensor* tensor;
    int index;
  };
  [[nodiscard]] std::size_t hash(const ggml_tensor* tensor) const {
    return (reinterpret_cast<std::uintptr_t>(tensor) >> 4) * 0x9E3779B97F4A7C15ull >> 20 & mask_;
  }
  void insert(const ggml_tensor* tensor, int index) {
    std::size_t at = hash(tensor);
    while (slots_[at].tensor != nullptr) at = (at + 1) & mask_;
    slots_[at] = {tensor, index};
  }
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

/// Uses of a tensor in the whole graph that a view was cut from; 0 if the engine keeps no count.
int use_count(const abi::Graph& graph, const ggml_tensor* tensor) {
  const abi::HashSet& set = graph.visited_hash_set;
  if (graph.use_counts == nullptr || set.size == 0 || set.used == nullptr) return 0;
  const std::size_t start = (reinterpret_cast<std::uintptr_t>(tensor) >> 4) % set.size;
  std::size_t at = start;
  do {
    if ((set.used[at / 32] >> (at % 32) & 1) == 0) return 0;
    if (set.keys[at] == tensor) return graph.use_counts[at];
    at = (at + 1) % set.size;
  } while (at != start);
  return 0;
}

bool is_view_op(ggml_op op) {
  return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

std::optional<wire::OpKind> row_wise_kind(ggml_op op) {
  switch (op) {
    case GGML_OP_GLU:
      return wire::OpKind::glu;
    case GGML_OP_UNARY:
      return wire::OpKind::unary;
    case GGML_OP_CLAMP:
      return wire::OpKind::clamp;
    case GGML_OP_SCALE:
      return wire::OpKind::scale;
    case GGML_OP_MUL:
      return wire::OpKind::mul;
    case GGML_OP_ADD:
      return wire::OpKind::add;
    case GGML_OP_SUB:
      return wire::OpKind::sub;
    case GGML_OP_DIV:
      return wire::OpKind::div;
    case GGML_OP_SQR:
      return wire::OpKind::sqr;
    case GGML_OP_SQRT:
      return wire::OpKind::sqrt;
    default:
      return std::nullopt;
  }
}

/// What grows into a Region: the indices of its nodes and how they refer to each other.
struct Draft {
  LayerKey layer = 0;
  const ggml_tensor* ids = nullptr;
  std::vector<int> ops;        ///< node indices, in program order
  std::vector<int> reduction;  ///< slot views and ADDs (or the CONT of top-1), when reduced
  std::vector<int> input_use;  ///< for each input: first node index that uses it
  Region region;
  int output = none;
};

class Planner {
 public:
  Planner(const abi::Graph& graph, const ExpertFilter& is_expert)
      : graph_(graph),
        is_expert_(is_expert),
        index_(graph),
        owner_(graph.n_nodes, none),
        op_slot_(graph.n_nodes, 0),
        taint_(graph.n_nodes, none),
        uses_(graph.n_nodes, 0) {}

  Plan run() {
    count_uses();
    for (int i = 0; i < graph_.n_nodes && plan_.error.empty(); ++i) visit(i);
    const std::size_t n_drafts = drafts_.size();  // splitting appends one-op drafts behind these
    for (std::size_t d = 0; d < n_drafts && plan_.error.empty(); ++d) close(d);
    if (plan_.error.empty()) schedule();
    return std::move(plan_);
  }

 private:
  ggml_tensor* node(int i) const { return graph_.nodes[i]; }
  bool computed(int i) const { return (node(i)->flags & GGML_TENSOR_FLAG_COMPUTE) != 0; }

  void count_uses() {
    for (int i = 0; i < graph_.n_nodes; ++i) {
      for (const ggml_tensor* source : node(i)->src) {
        if (const int s = index_.find(source); s != none) ++uses_[s];
      }
    }
  }

  /// The expert name of a leaf that the model's manifest holds; the cheap test comes first, this runs for every source.
  std::optional<ExpertName> expert_leaf(const ggml_tensor* tensor) const {
    if (tensor == nullptr || tensor->op != GGML_OP_NONE || std::strncmp(tensor->name, "blk.", 4) != 0 ||
        std::strstr(tensor->name, "exps") == nullptr) {
      return std::nullopt;
    }
    auto name = parse_expert_name(tensor->name);
    if (!name || !is_expert_(*name, *tensor)) return std::nullopt;
    return name;
  }

  void visit(int i) {
    for (const ggml_tensor* source : node(i)->src) {
      if (const int s = index_.find(source); s != none) taint_[i] = std::max(taint_[i], owner_[s] != none ? owner_[s] : taint_[s]);
    }
    if (!computed(i)) return;
    if (const auto use = expert_use(i)) {
      if (!add_expert_op(i, *use)) {
        plan_.error = std::format("expert tensor '{}' is used in a form that cannot be dispatched (input type {}, element stride {})",
                                  use->weight->name, ggml_type_name(use->rows->type), use->rows->nb[0]);
      }
      return;
    }
    if (absorb(i)) return;
    for (const ggml_tensor* source : node(i)->src) {
      if (expert_leaf(source)) {
        plan_.error = std::format("expert tensor '{}' is used by {} outside of a routed-expert region; it is not on this machine",
                                  source->name, ggml_op_name(node(i)->op));
        return;
      }
    }
  }

  /// A node that multiplies by, or adds, a stacked expert tensor.
  struct ExpertUse {
    wire::OpKind kind;
    const ggml_tensor* rows;
    const ggml_tensor* weight;
    ExpertName name;
  };
  std::optional<ExpertUse> expert_use(int i) const {
    const ggml_tensor* t = node(i);
    if (t->op != GGML_OP_MUL_MAT_ID && t->op != GGML_OP_ADD_ID) return std::nullopt;
    const bool matmul = t->op == GGML_OP_MUL_MAT_ID;
    const ggml_tensor* weight = t->src[matmul ? 0 : 1];
    auto name = expert_leaf(weight);
    if (!name) return std::nullopt;
    return ExpertUse{matmul ? wire::OpKind::mul_mat_id : wire::OpKind::add_id, t->src[matmul ? 1 : 0], weight, std::move(*name)};
  }

  bool add_expert_op(int i, const ExpertUse& use) {
    const ggml_tensor* ids = node(i)->src[2];
    if (ids->type != GGML_TYPE_I32 || ids->nb[0] != sizeof(std::int32_t) || ids->ne[2] != 1 || ids->ne[3] != 1) return false;
    int d = find_draft(ids, use.name.layer);
    if (d != none && !source_fits(static_cast<std::size_t>(d), use.rows)) d = none;
    if (d == none) d = static_cast<int>(new_draft(use.name.layer, ids));
    return append(static_cast<std::size_t>(d), i, use.kind);
  }

  std::size_t new_draft(LayerKey layer, const ggml_tensor* ids) {
    drafts_.push_back({});
    drafts_.back().layer = layer;
    drafts_.back().ids = ids;
    return drafts_.size() - 1;
  }

  int find_draft(const ggml_tensor* ids, LayerKey layer) const {
    for (int d = static_cast<int>(drafts_.size()) - 1; d >= 0; --d) {
      if (drafts_[d].ids == ids && drafts_[d].layer == layer) return d;
    }
    return none;
  }

  /// Takes a row-wise op into the region that feeds it, when all its other sources are there already or come from outside.
  bool absorb(int i) {
    const ggml_tensor* tensor = node(i);
    int d = none;
    for (const ggml_tensor* source : tensor->src) {
      if (const int s = index_.find(source); s != none && owner_[s] != none) d = std::max(d, owner_[s]);
    }
    if (d == none) return false;
    const auto draft = static_cast<std::size_t>(d);
    if (tensor->op == GGML_OP_VIEW) return is_row_part(draft, tensor) && append(draft, i, wire::OpKind::view);
    const auto kind = row_wise_kind(tensor->op);
    return kind && is_pair_shape(draft, tensor) && append(draft, i, *kind);
  }

  bool is_pair_shape(std::size_t d, const ggml_tensor* t) const {
    const ggml_tensor* ids = drafts_[d].ids;
    return t->type == GGML_TYPE_F32 && t->ne[1] == ids->ne[0] && t->ne[2] == ids->ne[1] && t->ne[3] == 1;
  }
  bool is_token_shape(std::size_t d, const ggml_tensor* t) const {
    return t->type == GGML_TYPE_F32 && t->ne[1] == 1 && t->ne[2] == drafts_[d].ids->ne[1] && t->ne[3] == 1;
  }

  /// A view of the same part of every row of one of the region's tensors (the halves of a merged gate_up). A view of whole rows is
  /// none: with one token and one expert a token, that is how the only slot looks, and the sum over slots begins there.
  bool is_row_part(std::size_t d, const ggml_tensor* t) const {
    const ggml_tensor* from = t->src[0];
    const std::size_t offset = row_part_offset(t);
    return is_pair_shape(d, t) && t->ne[0] < from->ne[0] && t->nb[1] == from->nb[1] && t->nb[2] == from->nb[2] &&
           t->nb[0] == sizeof(float) && offset % sizeof(float) == 0 &&
           offset / sizeof(float) + t->ne[0] <= static_cast<std::size_t>(from->ne[0]);
  }
  static std::size_t row_part_offset(const ggml_tensor* view) {
    const ggml_tensor* from = view->src[0];
    return view->view_offs - (from->view_src != nullptr ? from->view_offs : 0);
  }

  /// Whether a tensor can be a source of the region: one of its ops, or an activation from outside that does not depend on it.
  bool source_fits(std::size_t d, const ggml_tensor* t) const {
    const int s = index_.find(t);
    if (s != none && owner_[s] == static_cast<int>(d)) return true;
    if (s != none && (owner_[s] > static_cast<int>(d) || taint_[s] >= static_cast<int>(d))) return false;
    return (is_pair_shape(d, t) || is_token_shape(d, t)) && t->nb[0] == sizeof(float);
  }

  bool append(std::size_t d, int i, wire::OpKind kind) {
    const ggml_tensor* tensor = node(i);
    wire::Op op;
    op.kind = kind;
    op.n_out = static_cast<std::uint32_t>(tensor->ne[0]);
    static_assert(sizeof op.params == sizeof tensor->op_params);
    std::memcpy(op.params.data(), tensor->op_params, sizeof op.params);
    if (kind == wire::OpKind::mul_mat_id || kind == wire::OpKind::add_id) {
      const auto use = expert_use(i);
      if (!use || !source_fits(d, use->rows)) return false;
      op.sources[0] = source(d, use->rows, i);
      op.sources[1] = weight(d, use->name.role);
    } else {
      if (kind == wire::OpKind::view) {
        op.offset = static_cast<std::uint32_t>(row_part_offset(tensor) / sizeof(float));
        op.params = {};
      }
      const std::size_t n_sources = tensor->src[1] != nullptr ? 2 : 1;
      for (std::size_t k = 0; k < n_sources; ++k) {
        if (!source_fits(d, tensor->src[k])) return false;
        const std::int64_t n = tensor->src[k]->ne[0];
        if (k == 1 && kind != wire::OpKind::glu && n != tensor->ne[0] && n != 1) return false;
      }
      for (std::size_t k = 0; k < n_sources; ++k) op.sources[k] = source(d, tensor->src[k], i);
    }
    Draft& draft = drafts_[d];
    owner_[i] = static_cast<int>(d);
    op_slot_[i] = static_cast<std::uint16_t>(draft.ops.size());
    draft.ops.push_back(i);
    draft.region.program.ops.push_back(op);
    return true;
  }

  wire::Source source(std::size_t d, const ggml_tensor* t, int user) {
    if (const int s = index_.find(t); s != none && owner_[s] == static_cast<int>(d)) return {wire::Source::Kind::op, op_slot_[s]};
    Draft& draft = drafts_[d];
    auto& inputs = draft.region.inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k].tensor == t) return {wire::Source::Kind::input, static_cast<std::uint16_t>(k)};
    }
    const bool pair = !is_token_shape(d, t);
    inputs.push_back({t, pair});
    draft.input_use.push_back(user);
    draft.region.program.inputs.push_back(
        {pair ? wire::Input::Kind::pair : wire::Input::Kind::token, static_cast<std::uint32_t>(t->ne[0])});
    return {wire::Source::Kind::input, static_cast<std::uint16_t>(inputs.size() - 1)};
  }

  wire::Source weight(std::size_t d, const std::string& role) {
    auto& weights = drafts_[d].region.program.weights;
    const auto at = std::ranges::find(weights, role);
    const auto slot = static_cast<std::uint16_t>(at - weights.begin());
    if (at == weights.end()) weights.push_back(role);
    return {wire::Source::Kind::weight, slot};
  }

  bool escapes(int i, int n_inside) const {
    return uses_[i] == 0 || uses_[i] > n_inside || use_count(graph_, node(i)) > n_inside || (node(i)->flags & GGML_TENSOR_FLAG_OUTPUT) != 0;
  }

  /// Ends a draft: finds its one result, with the sum over slots if that is what follows; otherwise falls back to single matmuls.
  void close(std::size_t d) {
    std::vector<int> inside(drafts_[d].ops.size(), 0);
    for (const wire::Op& op : drafts_[d].region.program.ops) {
      for (const wire::Source& s : op.sources) {
        if (s.kind == wire::Source::Kind::op) ++inside[s.index];
      }
    }
    std::vector<int> results;
    for (std::size_t k = 0; k < inside.size(); ++k) {
      if (escapes(drafts_[d].ops[k], inside[k])) results.push_back(static_cast<int>(k));
    }
    if (results.size() != 1 || is_part_view(d, results.front())) {
      split(d);
      return;
    }
    drafts_[d].region.program.output = static_cast<std::uint16_t>(results.front());
    drafts_[d].output = drafts_[d].ops[results.front()];
    find_reduction(d);
    finish(d);
  }

  bool is_part_view(std::size_t d, int op) const { return drafts_[d].region.program.ops[op].kind == wire::OpKind::view; }

  /// Matches the chain ((slot0 + slot1) + slot2) + … over views of the result, or the copy of the only slot.
  void find_reduction(std::size_t d) {
    Draft& draft = drafts_[d];
    const ggml_tensor* rows = node(draft.output);
    const std::int64_t top_k = draft.ids->ne[0];
    if (uses_[draft.output] != top_k || use_count(graph_, rows) > top_k || (rows->flags & GGML_TENSOR_FLAG_OUTPUT) != 0) return;
    std::vector<int> views(static_cast<std::size_t>(top_k), none), chain;
    std::int64_t next = 0, seen = 0;
    const ggml_tensor* sum = nullptr;
    const int horizon = std::min<int>(graph_.n_nodes, draft.output + 256 + static_cast<int>(8 * top_k));
    for (int i = draft.output + 1; i < horizon; ++i) {
      const ggml_tensor* t = node(i);
      if (t->op == GGML_OP_VIEW && t->src[0] == rows) {
        const std::int64_t slot = slot_of(t, rows);
        if (slot < 0 || views[slot] != none) return;
        views[slot] = i;
        ++seen;
        continue;
      }
      const auto is_slot = [&](const ggml_tensor* s, std::int64_t slot) {
        return slot < top_k && views[slot] != none && s == node(views[slot]);
      };
      if (top_k == 1 && t->op == GGML_OP_CONT && is_slot(t->src[0], 0)) {
        next = 1;
        chain.push_back(i);
        break;
      }
      if (t->op == GGML_OP_ADD && next == 0 && is_slot(t->src[0], 0) && is_slot(t->src[1], 1)) {
        next = 2;
      } else if (t->op == GGML_OP_ADD && next > 1 && t->src[0] == sum && is_slot(t->src[1], next)) {
        ++next;
      } else {
        continue;
      }
      sum = t;
      chain.push_back(i);
      if (next == top_k) break;
    }
    if (next != top_k || seen != top_k) return;
    // Views are used once each, by the chain; partial sums once, by the next link.
    for (const int v : views) {
      if (escapes(v, 1)) return;
    }
    for (std::size_t k = 0; k + 1 < chain.size(); ++k) {
      if (escapes(chain[k], 1)) return;
    }
    draft.reduction = views;
    draft.reduction.insert(draft.reduction.end(), chain.begin(), chain.end());
    for (const int i : draft.reduction) owner_[i] = static_cast<int>(d);
    draft.output = chain.back();
    draft.region.reduced = true;
  }

  static std::int64_t slot_of(const ggml_tensor* view, const ggml_tensor* rows) {
    const std::size_t offset = view->view_offs - (rows->view_src != nullptr ? rows->view_offs : 0);
    const bool shape = view->ne[0] == rows->ne[0] && view->ne[1] == rows->ne[2] && view->ne[2] == 1 && view->nb[1] == rows->nb[2];
    return shape && offset % rows->nb[1] == 0 && offset < rows->nb[2] ? static_cast<std::int64_t>(offset / rows->nb[1]) : -1;
  }

  /// The universal fallback: every op on an expert tensor is a region of its own whose pair rows come back; the base does the rest.
  void split(std::size_t d) {
    const std::vector<int> ops = std::move(drafts_[d].ops);
    const LayerKey layer = drafts_[d].layer;
    const ggml_tensor* ids = drafts_[d].ids;
    drafts_[d] = {};
    drafts_[d].layer = layer;
    drafts_[d].ids = ids;
    for (const int i : ops) owner_[i] = none;
    bool first = true;
    for (const int i : ops) {
      const auto use = expert_use(i);
      if (!use) continue;
      const std::size_t part = first ? d : new_draft(layer, ids);
      first = false;
      // The rows may depend on other parts of the former whole, which source_fits() would refuse; one op cannot depend on itself.
      if (!((is_pair_shape(part, use->rows) || is_token_shape(part, use->rows)) && use->rows->nb[0] == sizeof(float))) {
        plan_.error = std::format("expert tensor '{}' cannot be dispatched: its input rows are not plain F32", use->weight->name);
        return;
      }
      append_single(part, i, *use);
      finish(part);
    }
  }

  void append_single(std::size_t d, int i, const ExpertUse& use) {
    wire::Op op;
    op.kind = use.kind;
    op.n_out = static_cast<std::uint32_t>(node(i)->ne[0]);
    std::memcpy(op.params.data(), node(i)->op_params, sizeof op.params);
    op.sources[0] = source(d, use.rows, i);
    op.sources[1] = weight(d, use.name.role);
    owner_[i] = static_cast<int>(d);
    drafts_[d].ops = {i};
    drafts_[d].region.program.ops = {op};
    drafts_[d].region.program.output = 0;
    drafts_[d].output = i;
  }

  void finish(std::size_t d) {
    Draft& draft = drafts_[d];
    Region& region = draft.region;
    region.layer = draft.layer;
    region.ids = draft.ids;
    region.top_k = static_cast<std::uint32_t>(draft.ids->ne[0]);
    region.n_tokens = static_cast<std::uint32_t>(draft.ids->ne[1]);
    region.output = node(draft.output);
    region.program_id = wire::program_id(region.program);
  }

  // Times below are node indices: "at t" means when every base node with an index up to t was computed.

  struct Timed {
    int at;
    PlanEvent event;
  };

  /// A leaf or a tensor of an earlier graph is there from the start.
  int available(const ggml_tensor* t) const { return index_.find(t); }

  void schedule() {
    std::vector<int> combine_at = first_outside_uses();
    std::vector<Timed> timed;
    for (std::size_t d = 0; d < drafts_.size(); ++d) {
      Draft& draft = drafts_[d];
      int dispatch_at = std::max(none, available(draft.ids));
      for (const RegionInput& input : draft.region.inputs) dispatch_at = std::max(dispatch_at, available(input.tensor));
      const auto r = static_cast<std::uint32_t>(d);
      // Rule of lifetimes: an input's memory may be reused as soon as the engine believes that its last user ran.
      const int ids_at = std::min(dispatch_at, draft.ops.front());
      timed.push_back({ids_at, {PlanEvent::Kind::snapshot_ids, r, 0, 0}});
      require_output(draft.ids, ids_at, combine_at);
      for (std::size_t k = 0; k < draft.region.inputs.size(); ++k) {
        const int at = std::min(dispatch_at, draft.input_use[k]);
        timed.push_back({at, {PlanEvent::Kind::snapshot_input, r, static_cast<std::uint32_t>(k), 0}});
        require_output(draft.region.inputs[k].tensor, at, combine_at);
      }
      timed.push_back({dispatch_at, {PlanEvent::Kind::dispatch, r, 0, 0}});
    }
    for (std::size_t d = 0; d < drafts_.size(); ++d) {
      timed.push_back({combine_at[d], {PlanEvent::Kind::combine, static_cast<std::uint32_t>(d), 0, 0}});
    }
    // At the same time: outputs are written first, since snapshots may read them; then what is complete is dispatched.
    const auto rank = [](const Timed& t) { return t.event.kind == PlanEvent::Kind::combine ? -1 : static_cast<int>(t.event.kind); };
    std::ranges::stable_sort(timed, [&](const Timed& a, const Timed& b) { return a.at != b.at ? a.at < b.at : rank(a) < rank(b); });
    emit(timed);
  }

  /// When each region's output must be written: just before the first node outside that reads it, at the latest at the end.
  std::vector<int> first_outside_uses() const {
    std::vector<int> at(drafts_.size(), graph_.n_nodes - 1);
    for (int i = 0; i < graph_.n_nodes; ++i) {
      for (const ggml_tensor* source : node(i)->src) {
        const int s = index_.find(source);
        if (s == none || owner_[s] == none || owner_[s] == owner_[i]) continue;
        if (drafts_[owner_[s]].output == s) at[owner_[s]] = std::min(at[owner_[s]], i - 1);
      }
    }
    return at;
  }

  /// An input that is (a view of) another region's output: that output must be written by then.
  void require_output(const ggml_tensor* t, int at, std::vector<int>& combine_at) const {
    const int s = index_.find(t);
    if (s != none && owner_[s] != none && drafts_[owner_[s]].output == s) combine_at[owner_[s]] = std::min(combine_at[owner_[s]], at);
  }

  /// Counted from what becomes of each node, not from what the search for regions meant to take.
  void count_matmul(int i) {
    if (node(i)->op != GGML_OP_MUL_MAT_ID || !computed(i)) return;
    ++plan_.matmuls;
    if (owner_[i] != none) {
      ++plan_.dispatched;
      return;
    }
    std::string_view name = node(i)->src[0]->name;
    if (name.starts_with("blk.")) name.remove_prefix(std::min(name.size(), name.find('.', 4) + 1));
    plan_.on_base.emplace_back(name);
  }

  void emit(const std::vector<Timed>& timed) {
    std::size_t next = 0;
    std::uint32_t work = 0;
    plan_.work_before.push_back(0);
    const auto flush = [&](int now) {
      while (next < timed.size() && timed[next].at <= now) {
        plan_.events.push_back(timed[next++].event);
        plan_.events.back().after = static_cast<std::uint32_t>(plan_.base_nodes.size());
      }
    };
    flush(none);
    for (int i = 0; i < graph_.n_nodes; ++i) {
      count_matmul(i);
      if (owner_[i] == none) {
        plan_.base_nodes.push_back(node(i));
        plan_.work_before.push_back(work += is_view_op(node(i)->op) || !computed(i) ? 0 : 1);
      }
      flush(i);
    }
    flush(graph_.n_nodes);
    for (Draft& draft : drafts_) plan_.regions.push_back(std::move(draft.region));
  }

  const abi::Graph& graph_;
  const ExpertFilter& is_expert_;
  NodeIndex index_;
  std::vector<int> owner_;              ///< draft that a node belongs to
  std::vector<std::uint16_t> op_slot_;  ///< place of the node in its draft's program
  std::vector<int> taint_;              ///< highest draft that the node depends on
  std::vector<int> uses_;               ///< uses within this graph
  std::vector<Draft> drafts_;
  Plan plan_;
};

}  // namespace

Plan plan_graph(const abi::Graph& graph, const ExpertFilter& is_expert) { return Planner(graph, is_expert).run(); }

}  // namespace linkcpp::engine
