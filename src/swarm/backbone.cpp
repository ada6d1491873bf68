#include "swarm/backbone.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cmath>
#include <cstdio>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dispatch/dispatcher.h"
#include "net/driver.h"
#include "net/identity.h"
#include "net/path_choice.h"
#include "net/session_transport.h"
#include "net/token.h"
#include "net/transport.h"
#include "swarm/peer.h"
#include "swarm/provision.h"
#include "swarm/region_frames.h"
#include "swarm/status.h"
#include "wire/frame_size.h"

namespace linkcpp::swarm {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr auto tick = std::chrono::milliseconds(20);
constexpr auto account_period = std::chrono::seconds(1);
constexpr auto index_period = std::chrono::seconds(1);  // between looks for a slice index that is being made
constexpr std::size_t max_peer_sources = 16;
constexpr auto reminder_period = std::chrono::seconds(10);

dispatch::Time now() { return Clock::now().time_since_epoch(); }

/// Into the engine's log: it is what the operator reads when something went wrong.
void note(const std::string& text) { std::fprintf(stderr, "linkcpp: %s\n", text.c_str()); }

/// "ggml 0.27.0" and "ggml 0.27.3" agree: op codes and parameters are stable within a minor version.
std::string minor_version(const std::string& engine) {
  const std::size_t first = engine.find('.');
  return first == std::string::npos ? engine : engine.substr(0, engine.find('.', first + 1));
}

/// A step of the dispatcher: a region, or the part of it that fits a frame.
struct Step {
  engine::RegionCall* call = nullptr;
  bool done = false;
  std::optional<Error> error;
  std::vector<PartialSum> partials;
};

/// A region on its way: large ones travel in parts. The parts' addresses are kept by their steps.
struct Journey {
  dispatch::Time begun{0};
  std::deque<engine::RegionCall> parts;
  std::vector<dispatch::StepId> steps;
};

/// One dispatch frame that was sent and not yet answered.
struct Outstanding {
  dispatch::StepId step = 0;
  PeerPtr peer;
};

class Star final : public Backbone {
 public:
  Star(Config config, engine::Anatomy anatomy, net::Credentials credentials)
      : config_(std::move(config)),
        anatomy_(std::move(anatomy)),
        credentials_(std::move(credentials)),
        dispatcher_(dispatch::Knobs{.step_deadline = config_.deadline, .resend_floor = config_.resend_floor}),
        status_(config_.status_fd),
        account_timer_(driver_.context()),
        provision_timer_(driver_.context()) {
    link_knobs_.keep_warm = config_.keep_warm;
    for (const engine::MoeLayer& layer : anatomy_.layers) {
      layers_.emplace_back(layer.key, static_cast<std::uint16_t>(layer.n_expert));
    }
  }

  ~Star() override {
    driver_.run_exclusive([this] {
      emit_account();
      closing_ = true;
      account_timer_.cancel();
      provision_timer_.cancel();
      dialers_.clear();
      listener_.reset();
      // Links live in the driver's context: none may outlive it.
      by_id_.clear();
      outstanding_.clear();
      for (const PeerPtr& peer : std::exchange(peers_, {})) peer->link->close({ErrorKind::unavailable, "the backbone is shutting down"});
      driver_.context().poll();  // lets the farewells leave
    });
  }

  Result<> start() {
    Result<> result;
    driver_.run_exclusive([this, &result] { result = start_exclusive(); });
    return result;
  }

  void flush_status() override {
    driver_.run_exclusive([this] { emit_account(); });
  }

  [[nodiscard]] const engine::Anatomy& anatomy() const override { return anatomy_; }
  [[nodiscard]] const Config& config() const override { return config_; }
  [[nodiscard]] std::string listen_address() const override { return listener_ ? listener_->addresses().front() : std::string(); }

  Result<> wait_for_coverage(const std::function<bool()>& aborted) override {
    auto remind = Clock::now() + std::chrono::seconds(2);
    while (!driver_.run_until([this] { return covered_; }, Clock::now() + tick)) {
      if (aborted && aborted()) return fail(ErrorKind::unavailable, "stopped while waiting for workers: {}", missing());
      if (Clock::now() < remind) continue;
      note("waiting for workers: " + missing());
      remind = Clock::now() + reminder_period;
    }
    driver_.run_exclusive([this] { status_.emit({{"event", "ready"}}); });
    return {};
  }

  dispatch::Account account() override {
    dispatch::Account copy;
    driver_.run_exclusive([&] { copy = account_; });
    return copy;
  }

  Result<Ticket> begin(engine::RegionCall& call) override {
    const std::uint32_t tokens = wire::tokens_in_a_frame(*call.program, config_.wire, mode_of(call), call.top_k);
    if (tokens == 0 || call.experts.size() != std::size_t{call.n_tokens} * call.top_k) {
      return fail(ErrorKind::invalid_input, "a token of top-{} with rows of {} does not fit a frame", call.top_k, call.program->n_out());
    }
    for (const std::int32_t expert : call.experts) {
      if (expert < 0 || expert > UINT16_MAX) return fail(ErrorKind::internal, "the router selected expert {}, which cannot be", expert);
    }
    Ticket ticket = 0;
    bool backlog = false;
    driver_.run_exclusive([&] {
      ticket = ++last_ticket_;
      Journey& journey = journeys_[ticket];
      journey.begun = now();
      add(call.layer, {.steps = 1, .tokens = call.n_tokens, .pairs = call.experts.size()});
      note_selected(call);
      for (std::uint32_t first = 0; first < call.n_tokens; first += tokens) {
        journey.parts.push_back(part_of(call, first, std::min(tokens, call.n_tokens - first)));
      }
      for (engine::RegionCall& part : journey.parts) begin_part(part, journey);
      backlog = std::exchange(backlog_, false);
    });
    // What the kernel did not take at once must go on leaving while the caller computes what overlaps.
    if (backlog) driver_.hand_over();
    return ticket;
  }

  Result<> await(Ticket ticket, engine::RegionCall& call, const std::function<bool()>& aborted) override {
    const auto start = Clock::now();
    const auto done = [this, ticket] {
      const auto journey = journeys_.find(ticket);
      return journey == journeys_.end() ||
             std::ranges::all_of(journey->second.steps, [this](dispatch::StepId id) { return steps_.at(id).done; });
    };
    auto wake = start + tick;
    while (!driver_.run_until(done, wake)) {
      if (aborted && aborted()) {
        abandon(ticket);
        return fail(ErrorKind::unavailable, "the engine aborted the computation");
      }
      driver_.run_exclusive([&] {
        dispatch::Actions actions;
        dispatcher_.on_tick(now(), actions);
        carry_out(actions);
        wake = Clock::now() + tick;
        if (const auto next = dispatcher_.next_deadline())
          wake = std::min(wake, Clock::time_point(std::chrono::duration_cast<Clock::duration>(*next)));
      });
    }
    return finish(ticket, call, start);
  }

  void abandon(Ticket ticket) override {
    driver_.run_exclusive([this, ticket] { forget(ticket); });
  }

  void pass_done(const engine::PassSummary& summary) override {
    driver_.run_exclusive([&] {
      account_.passes += summary.regions > 0 ? 1 : 0;
      account_.regions += summary.regions;
      account_.matmuls.seen += summary.matmuls;
      account_.matmuls.dispatched += summary.dispatched;
      for (const std::string& weight : summary.on_base) ++account_.matmuls.on_base[weight];
    });
  }

 private:
  Result<> start_exclusive() {
    if (!config_.listen.empty()) {
      auto listener = net::SessionListener::open(
          driver_.context(), config_.listen, credentials_, link_knobs_, config_.session,
          [this](net::LinkPtr link) { adopt(std::move(link)); },
          [this](const std::string& endpoint, const Error& error) { refused(endpoint, error.message); });
      if (!listener) return pass(listener);
      listener_ = std::move(*listener);
      status_.emit({{"event", "listening"}, {"address", listen_address()}, {"addresses", listener_->addresses()}});
    }
    for (const std::string& address : config_.workers) {
      dialers_.push_back(net::SessionDialer::start(
          driver_.context(), {address}, credentials_, link_knobs_, config_.session, [this](net::LinkPtr link) { adopt(std::move(link)); },
          [this, address](const Error& error) { refused(address, error.message); }));
    }
    update_coverage();
    schedule_account();
    return {};
  }

  // ---- joining and leaving -------------------------------------------------------------------------------------------

  void adopt(net::LinkPtr link) {
    auto peer = std::make_shared<Peer>();
    peer->link = std::move(link);
    peers_.push_back(peer);
    // Weak: the link owns its handlers, and the peer owns the link.
    const std::weak_ptr<Peer> weak = peer;
    peer->link->start({.on_frame =
                           [this, weak](const wire::FrameView& frame) {
                             if (auto p = weak.lock()) on_frame(p, frame);
                           },
                       .on_close =
                           [this, weak](const Error& error) {
                             if (auto p = weak.lock()) on_close(p, error);
                           },
                       .on_suspended =
                           [this, weak] {
                             if (auto p = weak.lock()) on_suspended(p);
                           },
                       .on_resumed =
                           [this, weak] {
                             if (auto p = weak.lock()) on_resumed(p);
                           }});
  }

  void on_frame(const PeerPtr& peer, const wire::FrameView& frame) {
    if (closing_) return;
    using enum wire::FrameType;
    if (!peer->id && frame.header.type != hello && frame.header.type != refuse) return violation(peer, "frame before its hello");
    switch (frame.header.type) {
      case hello:
        return on_hello(peer, frame.body);
      case combine:
        return on_combine(peer, frame);
      case failed:
        return on_failed(peer, frame);
      case drain:
        return on_drain(peer);
      case offer:
        return on_offer(peer, frame.body);
      case holds:
        return on_holds(peer, frame.body);
      case refuse:
        return on_refuse(peer, frame.body);
      default:
        return violation(peer, "frame of a type that workers do not send");
    }
  }

  void violation(const PeerPtr& peer, const std::string& what) { refuse(peer, {ErrorKind::invalid_input, "protocol violation: " + what}); }

  void refuse(const PeerPtr& peer, Error error) {
    Bytes body;
    wire::encode(wire::Refuse{error.kind, error.message}, body);
    peer->link->send(wire::make_frame(wire::FrameType::refuse, 0, body));
    refused(peer->link->endpoint(), error.message);
    peer->link->close(std::move(error));
  }

  void refused(const std::string& endpoint, const std::string& reason) {
    note(std::format("refused or failed: {}: {}", endpoint, reason));
    status_.emit({{"event", "refused"}, {"endpoint", endpoint}, {"reason", reason}});
  }

  void on_hello(const PeerPtr& peer, ByteSpan body) {
    if (peer->id) return violation(peer, "second hello");
    auto hello = wire::decode_hello(body);
    if (!hello) return violation(peer, hello.error().message);
    peer->hello = std::move(*hello);
    if (auto fits = check_hello(peer->hello); !fits) return refuse(peer, std::move(fits.error()));
    replace_former_self(peer);
    peer->transport_said = peer->link->kind();
    peer->name = unique_name(peer);
    peer->link->send(wire::make_frame(wire::FrameType::welcome, 0, {}));
    dispatch::Actions actions;
    peer->id = dispatcher_.add_worker({peer->name, peer->hello.holdings, peer->hello.row_types, peer->link->stats().rtt}, now(), actions);
    by_id_[*peer->id] = peer;
    note(std::format("worker {} joined from {} by {} ({}): {}", peer->name, peer->link->endpoint(), peer->link->kind(), peer->hello.device,
                     describe_holdings(peer->hello)));
    status_.emit({{"event", "worker_joined"},
                  {"name", peer->name},
                  {"key", net::short_name(peer->link->peer())},
                  {"endpoint", peer->link->endpoint()},
                  {"transport", peer->link->kind()},
                  {"device", peer->hello.device},
                  {"experts", describe_holdings(peer->hello)},
                  {"held", count_holdings(peer->hello)}});
    update_coverage();
    carry_out(actions);
  }

  Result<> check_hello(const wire::Hello& hello) const {
    const std::string engine = engine::engine_version();
    if (minor_version(hello.engine) != minor_version(engine)) {
      return fail(ErrorKind::incompatible, "the worker runs on '{}', this backbone on '{}': install the same engine version on both",
                  hello.engine, engine);
    }
    const bool holds_nothing_yet = hello.model == wire::Digest{} && hello.holdings.empty();  // its offer follows
    if (hello.model != anatomy_.digest && !holds_nothing_yet) {
      return fail(ErrorKind::incompatible,
                  "the worker holds another model (digest {}…, this backbone serves {}…): start it with the same GGUF as the backbone",
                  wire::to_hex(hello.model).substr(0, 12), wire::to_hex(anatomy_.digest).substr(0, 12));
    }
    if ((hello.row_types >> static_cast<int>(config_.wire) & 1) == 0) {
      return fail(ErrorKind::incompatible, "the worker does not understand {} rows: update it, or serve with --wire f32",
                  wire::to_string(config_.wire));
    }
    return check_holdings(hello.holdings);
  }

  Result<> check_holdings(std::span<const wire::LayerHolding> holdings) const {
    for (const wire::LayerHolding& holding : holdings) {
      const engine::MoeLayer* layer = anatomy_.find(holding.layer);
      if (layer == nullptr || layer->n_expert != holding.n_expert) {
        return fail(ErrorKind::invalid_input, "the worker announces {} experts in layer {}, the model has {}", holding.n_expert,
                    holding.layer, layer == nullptr ? 0 : layer->n_expert);
      }
    }
    return {};
  }

  // ---- provisioning ----------------------------------------------------------------------------------------------------

  void on_offer(const PeerPtr& peer, ByteSpan body) {
    auto offer = wire::decode_offer(body);
    if (!offer) return violation(peer, offer.error().message);
    if (peer->offer) return violation(peer, "second offer");
    if (config_.index.empty()) {
      return refuse(peer, {ErrorKind::unavailable,
                           "this backbone assigns no experts: start the worker with --model FILE, or the backbone with `linkcpp serve`"});
    }
    peer->offer = std::move(*offer);
    status_.emit({{"event", "worker_offers"}, {"name", peer->name}, {"budget", peer->offer->budget}});
    provision();
  }

  /// Assigns experts to the workers that wait for it, as soon as there is an index.
  void provision() {
    const auto waits = [](const PeerPtr& peer) { return peer->id && peer->offer && !peer->assigned; };
    if (std::ranges::none_of(peers_, waits)) return;
    if (!slices_) {
      auto plan = read_slice_plan(config_.index, anatomy_);
      if (plan) slices_ = std::move(*plan);
      if (!plan && plan.error().message != index_problem_) note("workers wait for their experts: " + plan.error().message);
      if (!plan) index_problem_ = plan.error().message;
      if (!plan) return provision_later();
    }
    for (const PeerPtr& peer : std::vector<PeerPtr>(peers_)) {
      if (waits(peer)) assign_experts(peer);
    }
  }

  void provision_later() {
    provision_timer_.expires_after(index_period);
    provision_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error && !closing_) provision();
    });
  }

  void assign_experts(const PeerPtr& peer) {
    std::vector<std::vector<wire::LayerHolding>> others;
    for (const PeerPtr& other : peers_) {
      if (other != peer && other->id) others.push_back(other->assigned ? other->assignment : other->hello.holdings);
    }
    auto assign = assignment(*slices_, anatomy_.digest, *peer->offer, others);
    if (!assign) return refuse(peer, std::move(assign.error()));
    peer->assigned = true;
    peer->assignment = wire::united(assign->urgent, assign->spare);
    assign->sources = sources_for(peer);
    Bytes body;
    wire::encode(*assign, body);
    peer->link->send(wire::make_frame(wire::FrameType::assign, 0, body));
    note(std::format("worker {} is to hold {}", peer->name, dispatch::describe(peer->assignment)));
    status_.emit({{"event", "worker_assigned"}, {"name", peer->name}, {"experts", dispatch::describe(peer->assignment)}});
  }

  /// Nearest first: other workers, this machine, web servers.
  std::vector<wire::SliceSourceAddress> sources_for(const PeerPtr& peer) const {
    std::vector<wire::SliceSourceAddress> sources;
    for (const PeerPtr& other : peers_) {
      if (other == peer || !other->offer || other->offer->share_port == 0 || sources.size() >= max_peer_sources) continue;
      if (net::is_relayed(other->link->kind())) continue;  // it is not reached where the relay is
      const std::string url = slice_url(other->link->endpoint(), other->offer->share_port);
      if (!url.empty()) sources.push_back({url, other->link->peer().bytes});
    }
    if (config_.slice_port != 0) sources.push_back({std::format("lks://:{}", config_.slice_port), credentials_.identity.key().bytes});
    for (const std::string& url : config_.sources) sources.push_back({url, {}});
    return sources;
  }

  void on_holds(const PeerPtr& peer, ByteSpan body) {
    auto holds = wire::decode_holds(body);
    if (!holds) return violation(peer, holds.error().message);
    if (!peer->assigned && !peer->offer) return violation(peer, "held experts, though nothing was assigned");
    if (auto fits = check_holdings(holds->holdings); !fits) return violation(peer, fits.error().message);
    const bool news = holds->bytes != std::exchange(peer->bytes_there, holds->bytes) || holds->holdings != peer->hello.holdings;
    if (!news) return;
    peer->hello.holdings = holds->holdings;
    dispatch::Actions actions;
    dispatcher_.update_worker(*peer->id, std::move(holds->holdings), now(), actions);
    status_.emit({{"event", "worker_holds"},
                  {"name", peer->name},
                  {"experts", describe_holdings(peer->hello)},
                  {"held", count_holdings(peer->hello)},
                  {"bytes", holds->bytes},
                  {"bytes_wanted", holds->bytes_wanted}});
    update_coverage();
    carry_out(actions);
  }

  /// A worker that lost its link and dialled again, before we noticed that the old link is dead.
  void replace_former_self(const PeerPtr& peer) {
    for (const PeerPtr& other : std::vector<PeerPtr>(peers_)) {
      if (other == peer || !other->id || other->link->peer() != peer->link->peer() || other->hello.name != peer->hello.name) continue;
      other->link->close({ErrorKind::unavailable, "the same worker joined again"});
      leave(other, "joined again over a new link");
    }
  }

  std::string unique_name(const PeerPtr& peer) const {
    const std::string wanted = peer->hello.name.empty() ? net::short_name(peer->link->peer()) : peer->hello.name;
    const auto taken = [this](const std::string& name) {
      return std::ranges::any_of(peers_, [&](const PeerPtr& p) { return p->id && p->name == name; });
    };
    std::string name = wanted;
    for (int i = 2; taken(name); ++i) name = std::format("{}#{}", wanted, i);
    return name;
  }

  void on_refuse(const PeerPtr& peer, ByteSpan body) {
    auto refusal = wire::decode_refuse(body);
    const std::string reason = refusal ? refusal->reason : "the worker refused without a readable reason";
    refused(peer->link->endpoint(), reason);
    peer->link->close({ErrorKind::unavailable, reason});
  }

  void on_drain(const PeerPtr& peer) {
    dispatcher_.drain_worker(*peer->id, now());
    note(std::format("worker {} drains: it finishes what it has and leaves", peer->name));
    status_.emit({{"event", "worker_draining"}, {"name", peer->name}});
    update_coverage();
  }

  void on_close(const PeerPtr& peer, const Error& error) {
    if (!closing_) leave(peer, error.message);
  }

  /// No connection is left. Whoever holds what nobody else has is waited for: its session keeps what is under way. Others are better asked
  /// at once, and it joins anew when it is back.
  void on_suspended(const PeerPtr& peer) {
    if (closing_ || !peer->id) return;
    peer->suspended = true;
    if (replaceable(peer)) {
      peer->link->close({ErrorKind::unavailable, "the connection was lost, and others hold the same experts"});
      return leave(peer, "the connection was lost, and others hold the same experts");
    }
    note(std::format("worker {} is out of touch; waiting for it to come back", peer->name));
    status_.emit({{"event", "worker_suspended"}, {"name", peer->name}});
  }

  void on_resumed(const PeerPtr& peer) {
    if (closing_ || !peer->id) return;
    peer->suspended = false;
    note(std::format("worker {} is back, by {}", peer->name, peer->link->kind()));
    status_.emit({{"event", "worker_resumed"}, {"name", peer->name}, {"transport", peer->link->kind()}});
  }

  /// Whether every expert that it holds is also held by somebody who is in touch.
  bool replaceable(const PeerPtr& peer) const {
    std::vector<wire::LayerHolding> others;
    for (const PeerPtr& other : peers_) {
      if (other != peer && other->id && !other->suspended) others = wire::united(others, other->hello.holdings);
    }
    return wire::united(others, peer->hello.holdings) == others;
  }

  void leave(const PeerPtr& peer, const std::string& reason) {
    std::erase(peers_, peer);
    if (!peer->id) return;
    const dispatch::WorkerId id = *std::exchange(peer->id, std::nullopt);
    by_id_.erase(id);
    std::erase_if(outstanding_, [&](const auto& entry) { return entry.second.peer == peer; });
    note(std::format("worker {} left: {}", peer->name, reason));
    status_.emit({{"event", "worker_left"}, {"name", peer->name}, {"reason", reason}});
    dispatch::Actions actions;
    dispatcher_.remove_worker(id, reason, now(), actions);
    update_coverage();
    carry_out(actions);
  }

  // ---- coverage ------------------------------------------------------------------------------------------------------

  void update_coverage() {
    const std::vector<dispatch::Gap> gaps = dispatcher_.gaps(layers_);
    std::string text = gaps.empty() ? "" : dispatch::describe(gaps);
    if (announced_ && covered_ == gaps.empty() && text == missing_) return;
    announced_ = true;
    covered_ = gaps.empty();
    missing_ = std::move(text);
    if (!covered_) note("no live worker holds " + missing_);
    status_.emit({{"event", "coverage"}, {"complete", covered_}, {"missing", missing_}});
  }

  std::string missing() {
    std::string text;
    driver_.run_exclusive([&] { text = missing_; });
    return "no live worker holds " + text;
  }

  // ---- dispatch and combine --------------------------------------------------------------------------------------------

  void carry_out(dispatch::Actions& actions) {
    for (const dispatch::Send& send : actions.sends) this->send(send);
    for (dispatch::Finished& finished : actions.finished) {
      const auto step = steps_.find(finished.step);
      if (step == steps_.end()) continue;
      step->second.done = true;
      step->second.error = std::move(finished.error);
      forget_requests(finished.step);
    }
    actions = {};
  }

  void send(const dispatch::Send& send) {
    const auto step = steps_.find(send.step);
    const auto peer = by_id_.find(send.worker);
    if (step == steps_.end() || peer == by_id_.end()) return;
    const engine::RegionCall& call = *step->second.call;
    if (peer->second->programs.insert(call.program_id).second) send_program(*peer->second, call);
    EncodedDispatch encoded = encode_dispatch(call, send.pairs, send.request, mode_of(call), config_.wire);
    outstanding_[send.request] = {send.step, peer->second};
    dispatch::Tally tally{.bytes_out = encoded.frame.size(), .payload_out = encoded.payload};
    add(call.layer, tally);
    tally.steps = 1;
    tally.tokens = encoded.n_tokens;
    tally.pairs = send.pairs.size();
    account_.workers[peer->second->name] += tally;
    peer->second->link->send(std::move(encoded.frame));
    backlog_ = backlog_ || peer->second->link->sending();
  }

  void send_program(Peer& peer, const engine::RegionCall& call) {
    Bytes frame = wire::begin_frame(wire::FrameType::program, call.program_id);
    wire::encode_program(*call.program, frame);
    wire::finish_frame(frame);
    peer.link->send(std::move(frame));
  }

  static wire::CombineMode mode_of(const engine::RegionCall& call) { return call.sum ? wire::CombineMode::sum : wire::CombineMode::raw; }

  void add(std::uint16_t layer, const dispatch::Tally& tally) {
    account_.layers[layer] += tally;
    account_.total += tally;
  }

  void note_selected(const engine::RegionCall& call) {
    std::vector<bool>& selected = account_.selected[call.layer];
    for (const std::int32_t expert : call.experts) {
      if (selected.size() <= static_cast<std::size_t>(expert)) selected.resize(static_cast<std::size_t>(expert) + 1);
      selected[static_cast<std::size_t>(expert)] = true;
    }
  }

  /// Takes a request out of the books; none if it is unknown, as for every answer that comes too late, or was sent to another worker:
  /// request ids are small numbers, and nobody may answer for somebody else. What is not in the books must not reach the dispatcher.
  std::optional<Outstanding> take(std::uint64_t request, const PeerPtr& peer) {
    const auto found = outstanding_.find(request);
    if (found == outstanding_.end() || found->second.peer != peer) return std::nullopt;
    Outstanding taken = std::move(found->second);
    outstanding_.erase(found);
    return taken;
  }

  void on_combine(const PeerPtr& peer, const wire::FrameView& frame) {
    auto combine = wire::decode_combine(frame.body);
    if (!combine) return violation(peer, combine.error().message);
    const auto request = take(frame.header.request, peer);
    if (!request) return;
    dispatch::Actions actions;
    const dispatch::Time compute = std::chrono::microseconds(combine->compute_us), queued = std::chrono::microseconds(combine->queue_us);
    Step& step = steps_.at(request->step);
    const std::span<const dispatch::Pair> pairs = dispatcher_.pairs_of(frame.header.request);
    const bool sum = step.call->sum;
    std::vector<std::uint32_t> tokens;
    if (sum) tokens = tokens_of(pairs);
    if (auto fits = check_combine(*combine, *step.call, sum ? tokens.size() : pairs.size(), mode_of(*step.call), config_.wire); !fits) {
      return violation(peer, fits.error().message);
    }
    if (dispatcher_.on_answer(frame.header.request, now(), compute, queued, actions) == dispatch::AnswerUse::use) {
      if (sum) {
        keep_partial(*combine, *peer->id, std::move(tokens), step);
      } else {
        place_rows(*combine, dispatcher_.pairs_of(frame.header.request), *step.call);
      }
    }
    dispatch::Tally tally{
        .bytes_in = wire::frame_header_bytes + frame.body.size(), .payload_in = combine->rows.size(), .compute = compute, .queued = queued};
    add(step.call->layer, tally);
    account_.workers[peer->name] += tally;
    carry_out(actions);
  }

  static void keep_partial(const wire::Combine& combine, dispatch::WorkerId worker, std::vector<std::uint32_t> tokens, Step& step) {
    PartialSum& partial = step.partials.emplace_back();
    partial.worker = worker;
    partial.tokens = std::move(tokens);
    partial.rows.resize(std::size_t{combine.n_rows} * combine.n);
    wire::decode_rows(wire::effective_row_type(combine.row_type, combine.n), combine.rows, combine.n, combine.n_rows, partial.rows.data(),
                      combine.n);
  }

  void on_failed(const PeerPtr& peer, const wire::FrameView& frame) {
    auto failure = wire::decode_failed(frame.body);
    if (!failure) return violation(peer, failure.error().message);
    note(std::format("worker {} could not compute a request: {}", peer->name, failure->reason));
    if (!take(frame.header.request, peer)) return;
    dispatch::Actions actions;
    dispatcher_.on_failed(frame.header.request, std::format("worker {}: {}", peer->name, failure->reason), now(), actions);
    carry_out(actions);
  }

  void forget_requests(dispatch::StepId step) {
    std::erase_if(outstanding_, [&](const auto& entry) { return entry.second.step == step; });
  }

  /// Tokens [first, first + n) of a call, as a call of its own over the same buffers.
  static engine::RegionCall part_of(const engine::RegionCall& call, std::uint32_t first, std::uint32_t n) {
    engine::RegionCall part = call;
    part.n_tokens = n;
    part.experts = call.experts.subspan(std::size_t{first} * call.top_k, std::size_t{n} * call.top_k);
    for (std::size_t k = 0; k < call.inputs.size(); ++k) {
      const wire::Input& input = call.program->inputs[k];
      const std::size_t row = std::size_t{input.n} * (input.kind == wire::Input::Kind::token ? 1 : call.top_k);
      part.inputs[k] = call.inputs[k].subspan(first * row, n * row);
    }
    const std::size_t row = std::size_t{call.program->n_out()} * (call.sum ? 1 : call.top_k);
    part.output = call.output.subspan(first * row, n * row);
    return part;
  }

  void begin_part(engine::RegionCall& part, Journey& journey) {
    std::vector<dispatch::Pair> pairs(part.experts.size());
    for (std::uint32_t i = 0; i < pairs.size(); ++i) pairs[i] = {i / part.top_k, i, static_cast<std::uint16_t>(part.experts[i])};
    dispatch::Actions actions;
    const dispatch::StepId step = dispatcher_.begin(part.layer, pairs, now(), actions);
    journey.steps.push_back(step);
    steps_.emplace(step, Step{.call = &part});
    carry_out(actions);
  }

  void forget(Ticket ticket) {
    const auto journey = journeys_.find(ticket);
    if (journey == journeys_.end()) return;
    for (const dispatch::StepId step : journey->second.steps) {
      dispatcher_.cancel(step);
      forget_requests(step);
      steps_.erase(step);
    }
    journeys_.erase(journey);
  }

  Result<> finish(Ticket ticket, engine::RegionCall& call, Clock::time_point waiting_since) {
    Result<> result;
    driver_.run_exclusive([&] {
      const auto found = journeys_.find(ticket);
      if (found == journeys_.end()) {
        result = fail(ErrorKind::internal, "a region was awaited that was not begun");
        return;
      }
      dispatch::Tally tally{.wait = Clock::now() - waiting_since, .flight = now() - found->second.begun};
      for (const dispatch::StepId id : found->second.steps) {
        Step& step = steps_.at(id);
        if (step.error && result) {
          tally.failed_steps = 1;
          note("a pass failed: " + step.error->message);
          status_.emit({{"event", "error"}, {"message", step.error->message}});
          result = std::unexpected(std::move(*step.error));
        } else if (!step.error && call.sum) {
          add_partials(step.partials, *step.call);
        }
      }
      add(call.layer, tally);
      forget(ticket);
    });
    return result;
  }

  // ---- account -------------------------------------------------------------------------------------------------------

  void schedule_account() {
    account_timer_.expires_after(account_period);
    account_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error || closing_) return;
      if (account_.total.steps != emitted_steps_) emit_account();
      for (const PeerPtr& peer : peers_) {
        if (peer->id) emit_paths(peer);
      }
      schedule_account();
    });
  }

  /// Which connections carry it, if that has changed, or their round trips by a fifth.
  void emit_paths(const PeerPtr& peer) {
    Json paths = Json::array();
    std::string shape = peer->link->path_note();
    for (const net::PathStats& path : peer->link->paths()) {
      paths.push_back({{"kind", path.kind},
                       {"endpoint", path.endpoint},
                       {"rtt_ms", static_cast<double>(path.rtt.count()) / 1000},
                       {"preferred", path.preferred},
                       {"bytes_sent", path.bytes_sent},
                       {"bytes_received", path.bytes_received}});
      const auto rtt = std::lround(4 * std::log2(static_cast<double>(std::max<std::int64_t>(path.rtt.count(), 1))));
      shape += std::format("|{} {} {} {}", path.kind, path.endpoint, path.preferred, rtt);
    }
    if (shape == peer->paths_said) return;
    Json event{{"event", "worker_paths"},         {"name", peer->name},
               {"transport", peer->link->kind()}, {"endpoint", peer->link->endpoint()},
               {"why", peer->link->path_note()},  {"paths", std::move(paths)}};
    if (std::exchange(peer->transport_said, peer->link->kind()) != peer->link->kind()) {
      event["moved"] = true;
      note(std::format("worker {} is reached by {} now, at {}", peer->name, peer->link->kind(), peer->link->endpoint()));
    }
    peer->paths_said = std::move(shape);
    status_.emit(std::move(event));
  }

  void emit_account() {
    emitted_steps_ = account_.total.steps;
    Json layers = Json::object(), workers = Json::object();
    for (const auto& [layer, tally] : account_.layers) layers[std::to_string(layer)] = to_json(tally);
    for (const auto& [name, tally] : account_.workers) workers[name] = to_json(tally);
    for (const PeerPtr& peer : peers_) {
      if (peer->id) workers[peer->name]["rtt_us"] = peer->link->stats().rtt.count();
    }
    Json selected = Json::object();
    for (const auto& [layer, experts] : account_.selected) selected[std::to_string(layer)] = std::ranges::count(experts, true);
    status_.emit({{"event", "account"},
                  {"passes", account_.passes},
                  {"regions", account_.regions},
                  {"matmuls", to_json(account_.matmuls)},
                  {"selected", selected},
                  {"total", to_json(account_.total)},
                  {"layers", layers},
                  {"workers", workers}});
  }

  Config config_;
  engine::Anatomy anatomy_;
  net::Credentials credentials_;
  net::LinkKnobs link_knobs_;
  std::vector<std::pair<std::uint16_t, std::uint16_t>> layers_;

  // Everything below is touched only on the driving side.
  dispatch::Dispatcher dispatcher_;
  std::vector<PeerPtr> peers_;
  std::unordered_map<dispatch::WorkerId, PeerPtr> by_id_;
  std::unordered_map<Ticket, Journey> journeys_;
  Ticket last_ticket_ = 0;
  std::unordered_map<dispatch::StepId, Step> steps_;
  std::unordered_map<dispatch::RequestId, Outstanding> outstanding_;
  dispatch::Account account_;
  StatusChannel status_;
  std::uint64_t emitted_steps_ = 0;
  std::string missing_;
  bool covered_ = false, announced_ = false, closing_ = false;
  std::optional<SlicePlan> slices_;
  std::string index_problem_;  ///< that was said last
  bool backlog_ = false;       ///< some link could not send all of it at once

  // Last, so that it is destroyed first: no handler runs once members go.
  net::Driver driver_;
  boost::asio::steady_timer account_timer_, provision_timer_;
  std::unique_ptr<net::SessionListener> listener_;
  std::vector<std::unique_ptr<net::SessionDialer>> dialers_;
};

}  // namespace

Result<std::unique_ptr<Backbone>> Backbone::open(Config config) {
  auto anatomy = engine::read_anatomy(config.model);
  if (!anatomy) return pass(anatomy);
  auto credentials = net::backbone_credentials(net::home_folder(config.home));
  if (!credentials) return pass(credentials);
  auto star = std::make_unique<Star>(std::move(config), std::move(*anatomy), std::move(*credentials));
  if (auto started = star->start(); !started) return pass(started);
  return star;
}

}  // namespace linkcpp::swarm
