#include "worker/server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <unordered_map>
#include <utility>

#include "dispatch/dispatcher.h"
#include "net/driver.h"
#include "net/endpoint.h"
#include "net/path_choice.h"
#include "net/session_transport.h"
#include "worker/compute.h"
#include "worker/delay_line.h"
#include "worker/job_queue.h"
#include "worker/session.h"

namespace linkcpp::worker {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto report_period = std::chrono::minutes(1);
constexpr auto progress_period = std::chrono::seconds(1);
constexpr auto look_around = std::chrono::milliseconds(20);  // while draining
constexpr auto farewell = std::chrono::milliseconds(1'500);  // for links to close
constexpr std::size_t forget_programs_above = 1024;          // when to look for shared programs that no link uses any more

/// One thread waits for work, drives the event loop while it waits, and computes. While it computes for longer than a few
/// milliseconds the driver's background thread takes the loop over: pings are answered, requests are queued, and what waits for the
/// same layer becomes one batch. The compute thread is always the same, since the engine keeps a team of threads for each caller.
class ExpertServer final : public Server {
 public:
  ExpertServer(std::unique_ptr<engine::ExpertHost> host, ServerOptions options)
      : options_(std::move(options)),
        host_(std::move(host)),
        inward_(driver_.context(), options_.delay / 2),
        outward_(driver_.context(), options_.delay / 2) {}

  ~ExpertServer() override {
    provisioner_.reset();  // before the driver, which it wakes
    driver_.run_exclusive([this] {
      closing_ = true;
      provision_timer_.cancel();
      signals_.cancel();
      report_timer_.cancel();
      redial_timer_.cancel();
      listener_.reset();
      dialer_.reset();
      inward_.clear();
      outward_.clear();
      queue_.clear();
      sessions_.clear();  // links live in the driver's event loop: none may outlive it
      driver_.context().poll();
    });
  }

  Result<> start() {
    Result<> result;
    if (options_.provision) {
      auto provisioner = Provisioner::open(*options_.provision, [this] { driver_.run_exclusive([this] { layers_wait_ = true; }); });
      if (!provisioner) return pass(provisioner);
      provisioner_ = std::move(*provisioner);
    }
    driver_.run_exclusive([&] {
      result = listen();
      if (!result) return;
      dial();
      await_signal();
      schedule_report();
      if (provisioner_) schedule_progress();
    });
    return result;
  }

  [[nodiscard]] std::string listen_address() const override { return address_; }

  void stop() override {
    driver_.run_exclusive([this] { begin_drain(); });
  }

  ServerCounters counters() override {
    ServerCounters result;
    driver_.run_exclusive([&] {
      result = {.requests = counters_.requests,
                .tokens = counters_.tokens,
                .pairs = counters_.pairs,
                .batches = counters_.batches,
                .failures = counters_.failures,
                .bytes_in = bytes_in_,
                .bytes_out = bytes_out_,
                .compute = counters_.compute};
    });
    return result;
  }

  void run() override {
    Scratch scratch;
    while (!finished()) {
      const auto wake = Clock::now() + (draining_ ? look_around : std::chrono::seconds(1));
      const auto due = [this] { return !queue_.empty() || layers_wait_ || ended_ || draining_ != was_draining_; };
      if (!driver_.run_until(due, wake)) continue;
      std::vector<Job> batch;
      bool layers = false;
      driver_.run_exclusive([&] {
        was_draining_ = draining_;
        layers = std::exchange(layers_wait_, false);
        batch = queue_.take(options_.max_batch_bytes);
      });
      if (layers) take_up_layers();
      if (batch.empty()) continue;
      ComputeCounters done;
      std::vector<Answer> answers = compute(*host_, batch, scratch, done);
      answer(std::move(answers), done);
    }
    say_goodbye();
  }

 private:
  // ---- links -----------------------------------------------------------------------------------------------------------

  [[nodiscard]] net::Credentials credentials() const { return {options_.identity, options_.token.secret, options_.token.backbone, false}; }

  Result<> listen() {
    if (options_.listen.empty()) return {};
    auto listener = net::SessionListener::open(
        driver_.context(), options_.listen, credentials(), options_.link, options_.session,
        [this](net::LinkPtr link) { adopt(std::move(link), false); },
        [](const std::string& endpoint, const Error& error) { spdlog::warn("refused {}: {}", endpoint, error.message); });
    if (!listener) return pass(listener);
    listener_ = std::move(*listener);
    address_ = listener_->addresses().front();
    for (const std::string& address : listener_->addresses()) spdlog::info("listening for backbones on {}", address);
    return {};
  }

  void dial() {
    if (options_.dial.empty()) return;
    dialer_ = net::SessionDialer::start(
        driver_.context(), options_.dial, credentials(), options_.link, options_.session,
        [this](net::LinkPtr link) { adopt(std::move(link), true); }, [this](const Error& error) { dial_failed(error); });
  }

  void adopt(net::LinkPtr link, bool dialled) {
    auto session = std::make_shared<Session>();
    session->link = std::move(link);
    session->dialled = dialled;
    sessions_.push_back(session);
    // Weak: the link owns its handlers, and the session owns the link.
    const std::weak_ptr<Session> weak = session;
    session->link->start({.on_frame =
                              [this, weak](const wire::FrameView& frame) {
                                if (auto s = weak.lock(); s && !closing_ && !s->over) on_frame(s, frame);
                              },
                          .on_close =
                              [this, weak](const Error& error) {
                                if (auto s = weak.lock(); s && !closing_) on_close(s, error);
                              },
                          .on_suspended =
                              [weak] {
                                if (auto s = weak.lock())
                                  spdlog::warn("lost touch with the backbone at {}; waiting for it", s->link->endpoint());
                              },
                          .on_resumed =
                              [weak] {
                                if (auto s = weak.lock())
                                  spdlog::info("in touch again with the backbone at {} by {}", s->link->endpoint(), s->link->kind());
                              }});
    Bytes body;
    wire::encode(hello(), body);
    session->link->send(wire::make_frame(wire::FrameType::hello, 0, body));
    session->welcome_deadline = std::make_unique<boost::asio::steady_timer>(driver_.context(), options_.welcome_deadline);
    session->welcome_deadline->async_wait([this, weak](const boost::system::error_code& error) {
      if (auto s = weak.lock(); s && !error && !closing_ && !s->admitted && !s->over) {
        refuse(s, {ErrorKind::timeout,
                   std::format("no welcome came within {} ms after this worker's hello", options_.welcome_deadline.count())});
      }
    });
  }

  wire::Hello hello() const {
    wire::Hello hello;
    hello.engine = engine::engine_version();
    hello.name = options_.name;
    hello.device = host_->device_description().substr(0, wire::max_name_bytes);
    hello.n_threads = static_cast<std::uint16_t>(host_->n_threads());
    hello.row_types = (1u << wire::row_type_count) - 1;
    hello.model = model();
    hello.holdings = provisioner_ ? announced_ : host_->holdings();
    return hello;
  }

  /// Zeros while nothing is held that was assigned.
  [[nodiscard]] wire::Digest model() const {
    if (!provisioner_) return options_.model;
    const auto assigned = provisioner_->model();
    return assigned && !announced_.empty() ? *assigned : wire::Digest{};
  }

  void on_frame(const SessionPtr& session, const wire::FrameView& frame) {
    using enum wire::FrameType;
    if (!session->admitted && (frame.header.type == program || frame.header.type == dispatch || frame.header.type == assign))
      return violation(session, "work before the welcome");
    switch (frame.header.type) {
      case welcome:
        return on_welcome(session);
      case refuse:
        return on_refuse(session, frame.body);
      case program:
        return on_program(session, frame);
      case dispatch:
        return on_dispatch(session, frame);
      case assign:
        return on_assign(session, frame.body);
      default:
        return violation(session, "a frame of a type that backbones do not send");
    }
  }

  void on_welcome(const SessionPtr& session) {
    if (std::exchange(session->admitted, true)) return violation(session, "a second welcome");
    session->welcome_deadline.reset();
    last_failure_.clear();
    spdlog::info("joined backbone {} at {} by {}", net::short_name(session->link->peer()), session->link->endpoint(),
                 session->link->kind());
    if (draining_) session->link->send(wire::make_frame(wire::FrameType::drain, 0, {}));
    if (!provisioner_ || draining_) return;
    Bytes body;
    wire::encode(provisioner_->offer(), body);
    session->link->send(wire::make_frame(wire::FrameType::offer, 0, body));
  }

  void on_refuse(const SessionPtr& session, ByteSpan body) {
    auto refusal = wire::decode_refuse(body);
    const Error reason = refusal ? Error{refusal->kind, refusal->reason} : Error{ErrorKind::invalid_input, "without a readable reason"};
    spdlog::error("the backbone at {} refused this worker: {}", session->link->endpoint(), reason.message);
    session->over = true;
    session->link->close(reason);
    // It will say the same again until somebody has changed something.
    if (session->dialled && dialer_) redial_later();
  }

  void redial_later() {
    redial_timer_.expires_after(options_.link.backoff_max);
    redial_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error && !closing_ && !draining_ && !dialer_) dial();
    });
    dialer_.reset();
  }

  void violation(const SessionPtr& session, const std::string& what) {
    refuse(session, {ErrorKind::invalid_input, "protocol violation: " + what});
  }

  /// Ends one link, with the reason as its last frame.
  void refuse(const SessionPtr& session, Error error) {
    Bytes body;
    wire::encode(wire::Refuse{error.kind, error.message}, body);
    session->link->send(wire::make_frame(wire::FrameType::refuse, 0, body));
    spdlog::warn("closing the link to {}: {}", session->link->endpoint(), error.message);
    session->over = true;
    session->link->close(std::move(error));
  }

  void on_close(const SessionPtr& session, const Error& error) {
    std::erase(sessions_, session);
    queue_.drop(session);
    if (session->over || draining_) return;  // said already
    spdlog::warn("lost the backbone at {}{}: {}{}", session->link->endpoint(), session->admitted ? "" : " before its welcome",
                 error.message, session->dialled ? "; dialling again" : "");
  }

  /// The same failure again and again is said once.
  void dial_failed(const Error& error) {
    if (error.message == last_failure_) return;
    last_failure_ = error.message;
    spdlog::warn("cannot reach the backbone yet: {}; trying again", error.message);
  }

  // ---- provisioning ----------------------------------------------------------------------------------------------------

  void on_assign(const SessionPtr& session, ByteSpan body) {
    if (!provisioner_) return violation(session, "an assignment, though this worker offered nothing");
    auto assign = wire::decode_assign(body);
    if (!assign) return violation(session, assign.error().message);
    if (const auto held = provisioner_->model(); held && *held != assign->model) {
      return refuse(session, {ErrorKind::incompatible,
                              "this worker was given experts of another model: restart it to change models, or run one worker a model"});
    }
    const auto peer = net::parse_endpoint(session->link->endpoint());
    const std::size_t urgent = dispatch::describe(assign->urgent).size();
    spdlog::info("assigned: {}{}{}", dispatch::describe(assign->urgent), urgent != 0 && !assign->spare.empty() ? "; replicas: " : "",
                 dispatch::describe(assign->spare));
    const bool there = peer && !net::is_relayed(session->link->kind());  // else it is the relay's
    provisioner_->assign(std::move(*assign), there ? peer->host : "", session->link->peer());
  }

  /// On the compute thread, which alone uses the host.
  void take_up_layers() {
    bool changed = false;
    while (auto arrived = provisioner_->take()) {
      if (auto held = host_->hold(arrived->layer, arrived->experts, arrived->read); !held) {
        spdlog::error("layer {} cannot be held: {}", arrived->layer.key, held.error().message);
        continue;
      }
      changed = true;
    }
    if (!changed) return;
    driver_.run_exclusive([this] {
      announced_ = host_->holdings();
      announce(provisioner_->progress());
    });
  }

  /// What is held and how far the rest is. Holdings are the compute thread's: `announced_` is a copy.
  void announce(const ProvisionProgress& progress) {
    Bytes body;
    wire::encode(wire::Holds{progress.bytes, progress.bytes_wanted, announced_}, body);
    for (const SessionPtr& session : sessions_) {
      if (session->admitted && !session->over) session->link->send(wire::make_frame(wire::FrameType::holds, 0, body));
    }
  }

  /// Says how far it is, here and to the backbones, while slices arrive.
  void schedule_progress() {
    provision_timer_.expires_after(progress_period);
    provision_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error || closing_) return;
      show_progress();
      schedule_progress();
    });
  }

  void show_progress() {
    const ProvisionProgress progress = provisioner_->progress();
    if (progress.bytes_wanted == 0 || progress.bytes == shown_bytes_) return;
    shown_bytes_ = progress.bytes;
    const double percent = 100.0 * static_cast<double>(progress.bytes) / static_cast<double>(progress.bytes_wanted);
    const int full = static_cast<int>(percent / 5);
    std::string rest;
    if (progress.bytes == progress.bytes_wanted) {
      rest = std::format(", all there; {:.1f} MB were fetched", static_cast<double>(progress.fetched) / 1e6);
    } else if (progress.seconds_left >= 0) {
      rest = std::format(", {:.1f} MB/s, {:.0f} s left", progress.bytes_per_second / 1e6, progress.seconds_left);
    }
    spdlog::info("slices [{}{}] {:.0f} % of {:.1f} MB{}", std::string(static_cast<std::size_t>(full), '#'),
                 std::string(static_cast<std::size_t>(20 - full), '.'), percent, static_cast<double>(progress.bytes_wanted) / 1e6, rest);
    announce(progress);
  }

  // ---- requests --------------------------------------------------------------------------------------------------------

  void on_program(const SessionPtr& session, const wire::FrameView& frame) {
    auto program = wire::decode_program(frame.body);
    if (!program) return violation(session, program.error().message);
    const std::uint64_t id = frame.header.request;
    if (wire::program_id(*program) != id) return violation(session, "a program's id is not the digest of its contents");
    if (session->programs.contains(id)) return;
    if (session->programs.size() >= options_.max_programs)
      return violation(session, std::format("more than {} programs", options_.max_programs));
    session->programs.emplace(id, shared(id, std::move(*program)));
  }

  /// One object for equal programs, so that requests of several links can be merged by comparing pointers.
  ProgramPtr shared(std::uint64_t id, wire::Program program) {
    if (programs_.size() > forget_programs_above) std::erase_if(programs_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const wire::Program>& known = programs_[id];
    if (ProgramPtr existing = known.lock(); existing && *existing == program) return existing;
    auto made = std::make_shared<const wire::Program>(std::move(program));
    known = made;
    return made;
  }

  void on_dispatch(const SessionPtr& session, const wire::FrameView& frame) {
    Job job{
        .session = session, .request = frame.header.request, .body = Bytes(frame.body.begin(), frame.body.end()), .arrived = Clock::now()};
    auto dispatch = wire::decode_dispatch(job.body);
    if (!dispatch) return violation(session, dispatch.error().message);
    job.dispatch = std::move(*dispatch);
    bytes_in_ += wire::frame_header_bytes + frame.body.size();
    if (draining_ && Clock::now() - drain_since_ >= options_.drain_grace) {
      return reject(job, {ErrorKind::unavailable, std::format("worker {} is draining and takes no new requests", options_.name)});
    }
    const auto program = session->programs.find(job.dispatch.program);
    if (program == session->programs.end()) {
      return reject(job,
                    {ErrorKind::not_found, std::format("unknown program {:016x}: it was not sent over this link", job.dispatch.program)});
    }
    job.program = program->second;
    if (session->queued_requests >= options_.max_queued_requests || session->queued_bytes + job.body.size() > options_.max_queued_bytes) {
      return violation(session, std::format("{} requests with {} MiB wait already", session->queued_requests, session->queued_bytes >> 20));
    }
    ++session->queued_requests;
    session->queued_bytes += job.body.size();
    last_request_ = Clock::now();
    inward_.push([this, delayed = std::make_shared<Job>(std::move(job))] {
      delayed->arrived = Clock::now();
      if (!delayed->session->over) queue_.push(std::move(*delayed));
    });
  }

  void reject(const Job& job, const Error& error) {
    ++counters_.failures;
    job.session->link->send(failure_frame(job.request, error));
  }

  /// On the compute thread: without a delay, answers leave from here and not only when the event loop comes to it.
  void answer(std::vector<Answer> answers, const ComputeCounters& done) {
    std::uint64_t bytes = 0;
    bool backlog = false;
    for (Answer& a : answers) {
      bytes += a.frame.size();
      if (options_.delay.count() != 0) continue;
      a.session->link->send(std::move(a.frame));
      backlog = backlog || a.session->link->sending();
    }
    if (backlog) driver_.hand_over();  // the next batch may follow at once
    driver_.run_exclusive([&] {
      counters_ += done;
      bytes_out_ += bytes;
      last_request_ = Clock::now();
      if (options_.delay.count() == 0) return;
      for (Answer& a : answers) {
        outward_.push([late = std::make_shared<Answer>(std::move(a))] { late->session->link->send(std::move(late->frame)); });
      }
    });
  }

  // ---- ends ------------------------------------------------------------------------------------------------------------

  void await_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error || closing_) return;
      begin_drain();
      await_signal();
    });
  }

  void begin_drain() {
    if (draining_.exchange(true)) {
      ended_ = true;
      host_->interrupt();
      return;
    }
    drain_since_ = Clock::now();
    spdlog::info("draining: taking requests for {} ms at most, then finishing what waits; a second signal ends at once",
                 options_.drain_grace.count());
    listener_.reset();
    dialer_.reset();
    redial_timer_.cancel();
    for (const SessionPtr& session : sessions_) {
      if (session->admitted && !session->over) session->link->send(wire::make_frame(wire::FrameType::drain, 0, {}));
    }
  }

  bool finished() {
    if (ended_ || !draining_) return ended_;
    bool over = false;
    driver_.run_exclusive([&] {
      const auto now = Clock::now();
      const bool quiet = now - std::max(last_request_, drain_since_) >= options_.drain_idle || now - drain_since_ >= options_.drain_grace;
      over = sessions_.empty() || (quiet && queue_.empty() && inward_.empty() && outward_.empty());
    });
    return over;
  }

  void say_goodbye() {
    driver_.run_exclusive([this] {
      for (const SessionPtr& session : sessions_) {
        session->over = true;
        session->link->close({ErrorKind::unavailable, "the worker has drained"});
      }
    });
    driver_.run_until([this] { return sessions_.empty(); }, Clock::now() + farewell);
    spdlog::info("stopped after {} requests", counters_.requests);
  }

  void schedule_report() {
    report_timer_.expires_after(report_period);
    report_timer_.async_wait([this](const boost::system::error_code& error) {
      if (error || closing_) return;
      if (counters_.requests != reported_) {
        spdlog::info("{} requests in {} batches, {} tokens, {} pairs, {:.1f} s of compute, {:.1f} MB in, {:.1f} MB out, {} failed",
                     counters_.requests, counters_.batches, counters_.tokens, counters_.pairs,
                     std::chrono::duration<double>(counters_.compute).count(), static_cast<double>(bytes_in_) / 1e6,
                     static_cast<double>(bytes_out_) / 1e6, counters_.failures);
      }
      reported_ = counters_.requests;
      schedule_report();
    });
  }

  ServerOptions options_;
  std::unique_ptr<engine::ExpertHost> host_;
  std::string address_;  ///< that is listened on

  // Everything below is touched only on the driving side, save the two atomics.
  ComputeCounters counters_;
  std::uint64_t bytes_in_ = 0, bytes_out_ = 0, reported_ = 0;
  std::vector<SessionPtr> sessions_;
  JobQueue queue_;
  std::unordered_map<std::uint64_t, std::weak_ptr<const wire::Program>> programs_;
  std::string last_failure_;
  Clock::time_point last_request_{}, drain_since_{};
  bool closing_ = false, was_draining_ = false;
  bool layers_wait_ = false;                   ///< the provisioner has something
  std::vector<wire::LayerHolding> announced_;  ///< what was provisioned and is held
  std::uint64_t shown_bytes_ = 0;
  std::atomic<bool> draining_{false}, ended_{false};

  // Last, so that no handler runs once the members above go.
  net::Driver driver_;
  DelayLine inward_, outward_;
  boost::asio::signal_set signals_{driver_.context(), SIGTERM, SIGINT};
  boost::asio::steady_timer report_timer_{driver_.context()}, redial_timer_{driver_.context()}, provision_timer_{driver_.context()};
  std::unique_ptr<net::SessionListener> listener_;
  std::unique_ptr<net::SessionDialer> dialer_;
  std::unique_ptr<Provisioner> provisioner_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::open(std::unique_ptr<engine::ExpertHost> host, ServerOptions options) {
  auto server = std::make_unique<ExpertServer>(std::move(host), std::move(options));
  if (auto started = server->start(); !started) return pass(started);
  return server;
}

}  // namespace linkcpp::worker
