#include "dispatch/dispatcher.h"

#include <algorithm>
#include <cassert>
#include <format>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "dispatch/split.h"

namespace linkcpp::dispatch {
namespace {

constexpr double smoothing = 0.2;
/// Until a worker has answered once, nothing is known of its speed: it gets this long before a replica is asked too.
constexpr Time grace_of_strangers = std::chrono::seconds(2);

/// Smoothed estimate; negative until the first sample.
class Estimate {
 public:
  void add(double sample) { value_ = known() ? value_ + smoothing * (sample - value_) : sample; }
  [[nodiscard]] bool known() const { return value_ >= 0; }
  [[nodiscard]] double value_or(double otherwise) const { return known() ? value_ : otherwise; }

 private:
  double value_ = -1;
};

struct Worker {
  WorkerInfo info;
  bool draining = false;
  Estimate rtt_ns;
  Estimate per_pair_ns;
  std::unordered_map<std::uint16_t, std::size_t> holding_of;  ///< layer to index in info.holdings

  void index_holdings() {
    holding_of.clear();
    for (std::size_t i = 0; i < info.holdings.size(); ++i) holding_of[info.holdings[i].layer] = i;
  }
  [[nodiscard]] const wire::LayerHolding* holding(std::uint16_t layer) const {
    const auto found = holding_of.find(layer);
    return found == holding_of.end() ? nullptr : &info.holdings[found->second];
  }
};

struct Request {
  StepId step = 0;
  WorkerId worker = 0;
  std::vector<Pair> pairs;
  Time sent{0};
  Time late_at{0};
  bool doubled = false;  ///< replicas were asked as well
  bool doomed = false;   ///< some of its pairs were answered by another: its sum would count them twice
};

struct Step {
  std::uint16_t layer = 0;
  std::vector<Pair> pairs;
  std::vector<std::uint8_t> answered;  ///< by Pair::index
  std::vector<std::uint8_t> attempts;  ///< by Pair::index
  std::size_t n_left = 0;
  Time deadline{0};
  std::vector<RequestId> requests;   ///< outstanding
  std::vector<Pair> parked;          ///< no live worker holds their expert now
  std::vector<WorkerId> refused;     ///< workers that failed a request of this step
  std::vector<std::string> reasons;  ///< of losses and failures, for the error
};

Gap missing_experts(const Step& step, std::span<const Pair> pairs) {
  Gap gap{step.layer, {}};
  for (const Pair& pair : pairs) gap.experts.push_back(pair.expert);
  std::ranges::sort(gap.experts);
  gap.experts.erase(std::unique(gap.experts.begin(), gap.experts.end()), gap.experts.end());
  return gap;
}

}  // namespace

struct Dispatcher::State {
  explicit State(Knobs k) : knobs(k) {}

  Knobs knobs;
  WorkerId next_worker = 0;
  StepId next_step = 1;
  RequestId next_request = 1;
  std::map<WorkerId, Worker> workers;  ///< ordered: ties go to the lower id
  std::unordered_map<StepId, Step> steps;
  std::unordered_map<RequestId, Request> requests;
  Request just_answered;
  RequestId just_answered_id = 0;

  // ---- sending -------------------------------------------------------------------------------------------------------

  std::vector<Candidate> candidates(const Step& step, const std::vector<WorkerId>& excluded) const {
    std::vector<Candidate> out;
    for (const auto& [id, worker] : workers) {
      const wire::LayerHolding* holding = worker.holding(step.layer);
      if (holding == nullptr || worker.draining || std::ranges::contains(step.refused, id) || std::ranges::contains(excluded, id)) continue;
      out.push_back({id, holding, worker.rtt_ns.value_or(static_cast<double>(worker.info.rtt.count())),
                     worker.per_pair_ns.value_or(static_cast<double>(knobs.assumed_per_pair.count()))});
    }
    return out;
  }

  /// Splits pairs over the live workers and sends them; what nobody holds is parked.
  void assign(StepId id, std::span<const Pair> pairs, const std::vector<WorkerId>& excluded, Time now, Actions& out) {
    Step& step = steps.at(id);
    const std::vector<Candidate> live = candidates(step, excluded);
    SplitResult split = split_pairs(pairs, live, knobs.extra_worker_gain);
    for (const Pair& pair : pairs) {
      if (++step.attempts[pair.index] > knobs.max_attempts) {
        return fail_step(id, ErrorKind::unavailable, std::format("its pairs were sent {} times without an answer", knobs.max_attempts),
                         out);
      }
    }
    for (auto& [worker, share] : split.shares) send(id, worker, std::move(share), now, out);
    if (split.uncovered.empty()) return;
    for (const Pair& pair : split.uncovered) --step.attempts[pair.index];
    if (held_only_by_refusers(step, split.uncovered))
      return fail_step(id, ErrorKind::unavailable, "the workers that hold them could not compute", out);
    step.parked.insert(step.parked.end(), split.uncovered.begin(), split.uncovered.end());
  }

  /// The holdings have changed: what waited for them is tried again.
  void send_parked(Time now, Actions& out) {
    std::vector<StepId> waiting;
    for (const auto& [step_id, step] : steps) {
      if (!step.parked.empty()) waiting.push_back(step_id);
    }
    std::ranges::sort(waiting);
    for (const StepId step_id : waiting) {
      std::vector<Pair> parked = std::exchange(steps.at(step_id).parked, {});
      std::ranges::sort(parked, {}, &Pair::index);  // they were parked in the order of losses
      assign(step_id, parked, {}, now, out);
    }
  }

  bool held_only_by_refusers(const Step& step, std::span<const Pair> pairs) const {
    return std::ranges::any_of(pairs, [&](const Pair& pair) {
      return std::ranges::any_of(step.refused, [&](WorkerId id) {
        const auto worker = workers.find(id);
        const wire::LayerHolding* holding = worker == workers.end() ? nullptr : worker->second.holding(step.layer);
        return holding != nullptr && holding->has(pair.expert);
      });
    });
  }

  void send(StepId id, WorkerId worker_id, std::vector<Pair> pairs, Time now, Actions& out) {
    const RequestId request_id = next_request++;
    Request& request = requests[request_id];
    request.step = id;
    request.worker = worker_id;
    request.pairs = pairs;
    request.sent = now;
    request.late_at = now + patience(workers.at(worker_id), pairs.size());
    steps.at(id).requests.push_back(request_id);
    out.sends.push_back({id, request_id, worker_id, std::move(pairs)});
  }

  Time patience(const Worker& worker, std::size_t n_pairs) const {
    if (!worker.per_pair_ns.known()) return std::max(knobs.resend_floor, grace_of_strangers);
    const double predicted = worker.rtt_ns.value_or(0) + worker.per_pair_ns.value_or(0) * static_cast<double>(n_pairs);
    return std::max(knobs.resend_floor, Time(static_cast<std::int64_t>(predicted * knobs.resend_factor)));
  }

  // ---- ends ----------------------------------------------------------------------------------------------------------

  void erase_step(StepId id) {
    const auto step = steps.find(id);
    if (step == steps.end()) return;
    for (const RequestId request : step->second.requests) requests.erase(request);
    steps.erase(step);
  }

  void fail_step(StepId id, ErrorKind kind, const std::string& why, Actions& out) {
    const Step& step = steps.at(id);
    std::vector<Pair> open;
    for (const Pair& pair : step.pairs) {
      if (step.answered[pair.index] == 0) open.push_back(pair);
    }
    std::string text = std::format("{} could not be computed: {}", describe({missing_experts(step, open)}), why);
    for (const std::string& reason : step.reasons) text += "; " + reason;
    if (!step.parked.empty()) {
      const Gap gap = missing_experts(step, step.parked);
      text += std::format("; no live worker holds {}: start one with linkcpp worker --join TOKEN --experts {}", describe({gap}),
                          gap.experts.front());
      if (gap.experts.size() > 1) text += std::format("-{}", gap.experts.back());
    }
    out.finished.push_back({id, Error{kind, std::move(text)}});
    erase_step(id);
  }

  /// Takes an outstanding request away from its step.
  std::optional<Request> take(RequestId id) {
    const auto found = requests.find(id);
    if (found == requests.end()) return std::nullopt;
    Request request = std::move(found->second);
    requests.erase(found);
    std::erase(steps.at(request.step).requests, id);
    return request;
  }

  /// Pairs that are neither answered, nor parked, nor in a request whose answer can still be used.
  std::vector<Pair> orphans(const Step& step) const {
    std::vector<std::uint8_t> covered = step.answered;
    for (const RequestId id : step.requests) {
      const Request& request = requests.at(id);
      if (request.doomed) continue;
      for (const Pair& pair : request.pairs) covered[pair.index] = 1;
    }
    for (const Pair& pair : step.parked) covered[pair.index] = 1;
    std::vector<Pair> open;
    for (const Pair& pair : step.pairs) {
      if (covered[pair.index] == 0) open.push_back(pair);
    }
    return open;
  }

  void rescue_orphans(StepId id, Time now, Actions& out) {
    const std::vector<Pair> open = orphans(steps.at(id));
    if (!open.empty()) assign(id, open, {}, now, out);
  }

  void learn(const Request& request, Time now, Time compute, Time queued) {
    const auto worker = workers.find(request.worker);
    if (worker == workers.end() || request.pairs.empty()) return;
    const Time network = std::max(Time(0), now - request.sent - compute - queued);
    worker->second.rtt_ns.add(static_cast<double>(network.count()));
    worker->second.per_pair_ns.add(static_cast<double>(compute.count()) / static_cast<double>(request.pairs.size()));
  }

  /// Exact cover: an answer counts whole or not at all, so that no pair is added twice into a sum.
  AnswerUse use_answer(RequestId id, Request request, Time now, Actions& out) {
    Step& step = steps.at(request.step);
    const bool overlaps = std::ranges::any_of(request.pairs, [&](const Pair& pair) { return step.answered[pair.index] != 0; });
    if (overlaps) {
      rescue_orphans(request.step, now, out);
      return AnswerUse::stale;
    }
    for (const Pair& pair : request.pairs) step.answered[pair.index] = 1;
    step.n_left -= request.pairs.size();
    const StepId step_id = request.step;
    const bool had_double = step.requests.size() > 0;
    just_answered = std::move(request);
    just_answered_id = id;
    if (step.n_left == 0) {
      out.finished.push_back({step_id, std::nullopt});
      erase_step(step_id);
      return AnswerUse::use;
    }
    if (had_double) doom_overlapping(step_id, now, out);
    return AnswerUse::use;
  }

  void doom_overlapping(StepId id, Time now, Actions& out) {
    const Step& step = steps.at(id);
    bool doomed_any = false;
    for (const RequestId other : step.requests) {
      Request& request = requests.at(other);
      if (request.doomed) continue;
      request.doomed = std::ranges::any_of(request.pairs, [&](const Pair& pair) { return step.answered[pair.index] != 0; });
      doomed_any |= request.doomed;
    }
    if (doomed_any) rescue_orphans(id, now, out);
  }

  // ---- time ----------------------------------------------------------------------------------------------------------

  /// Asks replicas for a late request, if they can take all of it.
  void double_late(RequestId id, Time now, Actions& out) {
    Request& request = requests.at(id);
    request.doubled = true;
    const Step& step = steps.at(request.step);
    std::vector<Pair> open;
    for (const Pair& pair : request.pairs) {
      if (step.answered[pair.index] == 0) open.push_back(pair);
    }
    const std::vector<Candidate> others = candidates(step, {request.worker});
    if (open.empty() || !split_pairs(open, others, knobs.extra_worker_gain).uncovered.empty()) return;
    const StepId step_id = request.step;  // assign() may invalidate the reference
    assign(step_id, open, {request.worker}, now, out);
  }
};

Dispatcher::Dispatcher(Knobs knobs) : state_(std::make_unique<State>(knobs)) {}
Dispatcher::~Dispatcher() = default;
Dispatcher::Dispatcher(Dispatcher&&) noexcept = default;
Dispatcher& Dispatcher::operator=(Dispatcher&&) noexcept = default;

WorkerId Dispatcher::add_worker(WorkerInfo info, Time now, Actions& out) {
  const WorkerId id = state_->next_worker++;
  Worker& worker = state_->workers[id];
  worker.info = std::move(info);
  worker.index_holdings();
  state_->send_parked(now, out);
  return id;
}

void Dispatcher::update_worker(WorkerId id, std::vector<wire::LayerHolding> holdings, Time now, Actions& out) {
  const auto worker = state_->workers.find(id);
  if (worker == state_->workers.end()) return;
  worker->second.info.holdings = std::move(holdings);
  worker->second.index_holdings();
  state_->send_parked(now, out);
}

void Dispatcher::remove_worker(WorkerId id, const std::string& reason, Time now, Actions& out) {
  const auto worker = state_->workers.find(id);
  if (worker == state_->workers.end()) return;
  const std::string name = worker->second.info.name;
  state_->workers.erase(worker);
  std::vector<RequestId> lost;
  for (const auto& [request_id, request] : state_->requests) {
    if (request.worker == id) lost.push_back(request_id);
  }
  std::ranges::sort(lost);
  for (const RequestId request_id : lost) {
    const auto request = state_->take(request_id);
    if (!request) continue;  // its step failed meanwhile
    state_->steps.at(request->step).reasons.push_back(std::format("worker {} was lost ({})", name, reason));
    state_->rescue_orphans(request->step, now, out);
  }
}

void Dispatcher::drain_worker(WorkerId id, Time) {
  if (const auto worker = state_->workers.find(id); worker != state_->workers.end()) worker->second.draining = true;
}

StepId Dispatcher::begin(std::uint16_t layer, std::span<const Pair> pairs, Time now, Actions& out) {
  const StepId id = state_->next_step++;
  Step& step = state_->steps[id];
  step.layer = layer;
  step.pairs.assign(pairs.begin(), pairs.end());
  step.answered.assign(pairs.size(), 0);
  step.attempts.assign(pairs.size(), 0);
  step.n_left = pairs.size();
  step.deadline = now + state_->knobs.step_deadline;
  assert(std::ranges::all_of(pairs, [&](const Pair& pair) { return pair.index < pairs.size(); }));
  if (pairs.empty()) {
    out.finished.push_back({id, std::nullopt});
    state_->erase_step(id);
    return id;
  }
  state_->assign(id, pairs, {}, now, out);
  return id;
}

AnswerUse Dispatcher::on_answer(RequestId id, Time now, Time compute, Time queued, Actions& out) {
  auto request = state_->take(id);
  if (!request) return AnswerUse::stale;
  state_->learn(*request, now, compute, queued);
  return state_->use_answer(id, std::move(*request), now, out);
}

void Dispatcher::on_failed(RequestId id, const std::string& reason, Time now, Actions& out) {
  const auto request = state_->take(id);
  if (!request) return;
  Step& step = state_->steps.at(request->step);
  step.refused.push_back(request->worker);
  step.reasons.push_back(reason);
  state_->rescue_orphans(request->step, now, out);
}

void Dispatcher::on_tick(Time now, Actions& out) {
  std::vector<StepId> expired;
  for (const auto& [id, step] : state_->steps) {
    if (step.deadline <= now) expired.push_back(id);
  }
  std::ranges::sort(expired);
  const double seconds = std::chrono::duration<double>(state_->knobs.step_deadline).count();
  for (const StepId id : expired) state_->fail_step(id, ErrorKind::timeout, std::format("the deadline of {:g} s passed", seconds), out);
  std::vector<RequestId> late;
  for (const auto& [id, request] : state_->requests) {
    if (!request.doubled && !request.doomed && request.late_at <= now) late.push_back(id);
  }
  std::ranges::sort(late);
  for (const RequestId id : late) {
    if (state_->requests.contains(id)) state_->double_late(id, now, out);
  }
}

std::optional<Time> Dispatcher::next_deadline() const {
  std::optional<Time> next;
  const auto sooner = [&next](Time t) { next = next ? std::min(*next, t) : t; };
  for (const auto& [id, step] : state_->steps) sooner(step.deadline);
  for (const auto& [id, request] : state_->requests) {
    if (!request.doubled && !request.doomed) sooner(request.late_at);
  }
  return next;
}

void Dispatcher::cancel(StepId step) { state_->erase_step(step); }

std::span<const Pair> Dispatcher::pairs_of(RequestId id) const {
  if (const auto request = state_->requests.find(id); request != state_->requests.end()) return request->second.pairs;
  if (id == state_->just_answered_id) return state_->just_answered.pairs;
  return {};
}

std::vector<Gap> Dispatcher::gaps(std::span<const std::pair<std::uint16_t, std::uint16_t>> layers) const {
  std::vector<Gap> out;
  for (const auto& [layer, n_expert] : layers) {
    Gap gap{layer, {}};
    for (std::uint16_t e = 0; e < n_expert; ++e) {
      const bool held = std::ranges::any_of(state_->workers, [&](const auto& entry) {
        const wire::LayerHolding* holding = entry.second.holding(layer);
        return !entry.second.draining && holding != nullptr && holding->has(e);
      });
      if (!held) gap.experts.push_back(e);
    }
    if (!gap.experts.empty()) out.push_back(std::move(gap));
  }
  return out;
}

std::size_t Dispatcher::outstanding() const { return state_->steps.size() + state_->requests.size(); }

}  // namespace linkcpp::dispatch
