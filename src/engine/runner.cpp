#include "engine/runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace linkcpp::engine {
namespace {

bool is_host(const ggml_tensor* tensor) {
  const ggml_backend_buffer_t buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
  return buffer == nullptr || ggml_backend_buffer_is_host(buffer);
}

/// Bytes from the first to behind the last element of a tensor of 4-byte elements that is not empty, strides included.
std::size_t span_bytes(const ggml_tensor* t) {
  std::size_t bytes = sizeof(float);
  for (int d = 0; d < GGML_MAX_DIMS; ++d) bytes += static_cast<std::size_t>(t->ne[d] - 1) * t->nb[d];
  return bytes;
}

/// Copies a tensor of 4-byte elements [n, rows1, rows2] into a dense buffer, from host or device memory.
template <class T>
void read_rows(const ggml_tensor* t, std::vector<T>& to, std::vector<std::byte>& scratch) {
  static_assert(sizeof(T) == 4);
  const auto n = static_cast<std::size_t>(t->ne[0]);
  to.resize(static_cast<std::size_t>(ggml_nelements(t)));
  if (to.empty()) return;  // the last layer of a batch from which nobody wants logits
  const std::byte* from = static_cast<const std::byte*>(t->data);
  if (!is_host(t)) {
    scratch.resize(span_bytes(t));
    ggml_backend_tensor_get(t, scratch.data(), 0, scratch.size());
    from = scratch.data();
  }
  if (ggml_is_contiguous(t)) {
    std::memcpy(to.data(), from, to.size() * sizeof(T));
    return;
  }
  T* out = to.data();
  for (std::int64_t i2 = 0; i2 < t->ne[2]; ++i2) {
    for (std::int64_t i1 = 0; i1 < t->ne[1]; ++i1, out += n) std::memcpy(out, from + i2 * t->nb[2] + i1 * t->nb[1], n * sizeof(T));
  }
}

/// Sums the slots of each token in slot order, the very additions that the engine's chain of ADD nodes makes.
void sum_slots(const float* rows, std::size_t n, std::size_t top_k, std::size_t n_tokens, float* to) {
  for (std::size_t t = 0; t < n_tokens; ++t, to += n) {
    const float* row = rows + t * top_k * n;
    std::memcpy(to, row, n * sizeof(float));
    for (std::size_t slot = 1; slot < top_k; ++slot) {
      row += n;
      for (std::size_t i = 0; i < n; ++i) to[i] += row[i];
    }
  }
}

}  // namespace

Runner::Runner(ggml_backend_t base, ExpertService* service, ExpertFilter is_expert, RunnerOptions options)
    : base_(base), service_(service), is_expert_(std::move(is_expert)), options_(options) {}

ggml_status Runner::compute(ggml_cgraph* graph, const std::function<bool()>& aborted) {
  if (service_ == nullptr) return ggml_backend_graph_compute(base_, graph);
  const abi::Graph& view = abi::view(graph);
  const Plan& plan = plan_for(view);
  if (!plan.error.empty()) {
    error_ = plan.error;
    return GGML_STATUS_FAILED;
  }
  const ggml_status status = plan.regions.empty() ? ggml_backend_graph_compute(base_, graph) : run(view, plan, aborted);
  if (status == GGML_STATUS_SUCCESS && plan.matmuls + plan.regions.size() > 0) {
    counters_.regions_run += plan.regions.size();
    service_->pass_done({static_cast<std::uint32_t>(plan.regions.size()), plan.matmuls, plan.dispatched, plan.on_base});
  }
  return status;
}

const Plan& Runner::plan_for(const abi::Graph& graph) {
  const ggml_tensor* first = graph.n_nodes > 0 ? graph.nodes[0] : nullptr;
  const ggml_tensor* last = graph.n_nodes > 0 ? graph.nodes[graph.n_nodes - 1] : nullptr;
  if (graph.uid != 0) {
    const auto found = std::ranges::find_if(
        plans_, [&](const Cached& c) { return c.uid == graph.uid && c.n_nodes == graph.n_nodes && c.first == first && c.last == last; });
    if (found != plans_.end()) {
      ++counters_.cached;
      plans_.splice(plans_.begin(), plans_, found);
      return plans_.front().plan;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  Plan plan = plan_graph(graph, is_expert_);
  counters_.planning += std::chrono::steady_clock::now() - start;
  ++counters_.planned;
  counters_.nodes_planned += static_cast<std::uint64_t>(graph.n_nodes);
  if (graph.uid == 0) {  // cannot be recognised again: it must not displace a plan that can
    unnamed_ = std::move(plan);
    return unnamed_;
  }
  plans_.push_front({graph.uid, graph.n_nodes, first, last, std::move(plan)});
  while (plans_.size() > options_.cached_plans) plans_.pop_back();
  return plans_.front().plan;
}

ggml_status Runner::run(const abi::Graph& graph, const Plan& plan, const std::function<bool()>& aborted) {
  if (flights_.size() < plan.regions.size()) flights_.resize(plan.regions.size());
  for (Flight& flight : flights_) flight.begun = flight.done = false;
  std::size_t at = 0;
  for (const PlanEvent& event : plan.events) {
    if (event.after > at) {
      if (const ggml_status status = compute_base(graph, plan, at, event.after); status != GGML_STATUS_SUCCESS) {
        abandon_all(plan);
        error_ = "the base device failed or was aborted";
        return status;
      }
      at = event.after;
    }
    if (auto handled = handle(plan, event, aborted); !handled) {
      abandon_all(plan);
      error_ = std::move(handled.error().message);
      // FAILED makes the server answer an error and live on; ABORTED only where the base itself would have said so.
      return aborted && aborted() ? GGML_STATUS_ABORTED : GGML_STATUS_FAILED;
    }
  }
  return compute_base(graph, plan, at, plan.base_nodes.size());
}

ggml_status Runner::compute_base(const abi::Graph& graph, const Plan& plan, std::size_t first, std::size_t last) {
  if (!plan.has_work(first, last)) return GGML_STATUS_SUCCESS;
  // The engine's interface takes mutable node pointers; the base does not change the list.
  auto* nodes = const_cast<ggml_tensor**>(plan.base_nodes.data()) + first;
  abi::Graph part = abi::subgraph(graph, nodes, static_cast<int>(last - first));
  return ggml_backend_graph_compute(base_, abi::opaque(&part));
}

Result<> Runner::handle(const Plan& plan, const PlanEvent& event, const std::function<bool()>& aborted) {
  const Region& region = plan.regions[event.region];
  Flight& flight = flights_[event.region];
  switch (event.kind) {
    case PlanEvent::Kind::snapshot_ids:
      read_rows(region.ids, flight.ids, scratch_);
      return {};
    case PlanEvent::Kind::snapshot_input:
      if (flight.inputs.size() < region.inputs.size()) flight.inputs.resize(region.inputs.size());
      read_rows(region.inputs[event.input].tensor, flight.inputs[event.input], scratch_);
      return {};
    case PlanEvent::Kind::dispatch:
      return dispatch(region, flight, aborted);
    case PlanEvent::Kind::combine:
      return combine(region, flight, aborted);
  }
  return {};
}

Result<> Runner::dispatch(const Region& region, Flight& flight, const std::function<bool()>& aborted) {
  RegionCall& call = flight.call;
  call.layer = region.layer;
  call.program_id = region.program_id;
  call.program = &region.program;
  call.n_tokens = region.n_tokens;
  call.top_k = region.top_k;
  call.experts = flight.ids;
  call.sum = options_.sum && region.reduced;
  call.inputs.clear();
  for (std::size_t k = 0; k < region.inputs.size(); ++k) call.inputs.emplace_back(flight.inputs[k]);
  flight.rows.resize(std::size_t{region.n_tokens} * (call.sum ? 1 : region.top_k) * region.program.n_out());
  call.output = flight.rows;
  auto ticket = service_->begin(call);
  if (!ticket) return pass(ticket);
  flight.ticket = *ticket;
  flight.begun = true;
  if (options_.overlap) return {};
  flight.done = true;
  return service_->await(flight.ticket, call, aborted);
}

Result<> Runner::combine(const Region& region, Flight& flight, const std::function<bool()>& aborted) {
  if (!flight.done) {
    flight.done = true;
    if (auto waited = service_->await(flight.ticket, flight.call, aborted); !waited) return waited;
  }
  write_output(region, flight);
  return {};
}

void Runner::write_output(const Region& region, Flight& flight) {
  const std::size_t n = region.program.n_out();
  const bool host = is_host(region.output);
  if (region.reduced && !flight.call.sum) {
    float* to = static_cast<float*>(region.output->data);
    if (!host) {
      flight.staging.resize(region.n_tokens * n);
      to = flight.staging.data();
    }
    sum_slots(flight.rows.data(), n, region.top_k, region.n_tokens, to);
    if (!host) ggml_backend_tensor_set(region.output, to, 0, flight.staging.size() * sizeof(float));
    return;
  }
  const std::size_t bytes = flight.rows.size() * sizeof(float);
  if (host) {
    std::memcpy(region.output->data, flight.rows.data(), bytes);
  } else {
    ggml_backend_tensor_set(region.output, flight.rows.data(), 0, bytes);
  }
}

void Runner::abandon_all(const Plan& plan) {
  for (std::size_t r = 0; r < plan.regions.size(); ++r) {
    if (flights_[r].begun && !flights_[r].done) service_->abandon(flights_[r].ticket);
    flights_[r].done = true;
  }
}

}  // namespace linkcpp::engine
