// The dispatcher: which worker computes which pair, what to do when one is lost or late. Pure: no sockets, clocks, threads.
// It is driven by events and answers with actions, so the plugin, the tests and the simulation run the same code.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "wire/messages.h"

namespace linkcpp::dispatch {

/// Time since any fixed origin.
using Time = std::chrono::nanoseconds;
using WorkerId = std::uint32_t;
using StepId = std::uint64_t;
using RequestId = std::uint64_t;

/// One selected expert of one token. `index` identifies the pair in the step (row of the raw result): token * top_k + slot,
/// below the number of the step's pairs.
struct Pair {
  std::uint32_t token = 0;
  std::uint32_t index = 0;
  std::uint16_t expert = 0;
};

/// What is known of a worker when it joins.
struct WorkerInfo {
  std::string name;
  std::vector<wire::LayerHolding> holdings;
  std::uint32_t row_types = 1;
  Time rtt{0};  ///< measured when the link was made; 0 if unknown
};

struct Knobs {
  Time step_deadline = std::chrono::seconds(10);          ///< a step that is not complete by then fails
  Time resend_floor = std::chrono::milliseconds(250);     ///< never re-dispatch a late request to a replica sooner than this
  double resend_factor = 4.0;                             ///< late: this many times the predicted completion
  std::uint32_t max_attempts = 8;                         ///< sends of one pair before the step fails
  double extra_worker_gain = 0.1;                         ///< touch another worker only if that shortens the step by this share
  Time assumed_per_pair = std::chrono::microseconds(20);  ///< compute of one pair, until a worker has answered once
};

/// Action: send these pairs of the step to a worker. Pairs are sorted by token, then index.
struct Send {
  StepId step = 0;
  RequestId request = 0;
  WorkerId worker = 0;
  std::vector<Pair> pairs;
};
/// Action: a step has ended.
struct Finished {
  StepId step = 0;
  std::optional<Error> error;  ///< none: every pair was answered. Otherwise the text names layer, missing experts, reason and remedy.
};
struct Actions {
  std::vector<Send> sends;
  std::vector<Finished> finished;
};

/// Verdict on an answer: use it, or drop it because another answer came first or the step is gone.
enum class AnswerUse { use, stale };

/// Which experts no live worker holds.
struct Gap {
  std::uint16_t layer = 0;
  std::vector<std::uint16_t> experts;
};
std::string describe(const std::vector<Gap>& gaps);
/// What a worker holds, in the same words; empty if nothing.
std::string describe(std::span<const wire::LayerHolding> holdings);

class Dispatcher {
 public:
  explicit Dispatcher(Knobs knobs = {});
  ~Dispatcher();
  Dispatcher(Dispatcher&&) noexcept;
  Dispatcher& operator=(Dispatcher&&) noexcept;

  /// A worker joined. Steps that waited for its experts are sent at once.
  WorkerId add_worker(WorkerInfo info, Time now, Actions& out);
  /// A worker holds other experts than before. Steps that waited for them are sent at once; what it was asked for is still awaited.
  void update_worker(WorkerId worker, std::vector<wire::LayerHolding> holdings, Time now, Actions& out);
  /// A worker was lost: its outstanding pairs go to replicas, or wait for one to join until the step's deadline.
  void remove_worker(WorkerId worker, const std::string& reason, Time now, Actions& out);
  /// A worker drains: it gets nothing new; what it has is awaited.
  void drain_worker(WorkerId worker, Time now);

  /// Begins a step: splits the pairs over workers (few workers, low predicted completion). `layer` names the holdings.
  StepId begin(std::uint16_t layer, std::span<const Pair> pairs, Time now, Actions& out);
  /// An answer arrived. With `use`, the caller takes the rows of pairs_of(request) before anything else is called.
  AnswerUse on_answer(RequestId request, Time now, Time compute, Time queued, Actions& out);
  /// The worker refused this one request (unknown program, out of memory…): its pairs go elsewhere, or the step fails with the reason.
  void on_failed(RequestId request, const std::string& reason, Time now, Actions& out);
  /// Time passed: late requests are re-dispatched, expired steps fail.
  void on_tick(Time now, Actions& out);
  /// Earliest time at which on_tick has something to do; none if never.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  /// Gives up a step (the caller was aborted).
  void cancel(StepId step);

  /// Pairs of a request that is outstanding or was just answered with `use`.
  [[nodiscard]] std::span<const Pair> pairs_of(RequestId request) const;
  /// Steps and requests in the books; 0 when nothing is under way. For tests: nothing may leak.
  [[nodiscard]] std::size_t outstanding() const;
  /// Experts of these layers that no live worker holds. `layers`: (layer, n_expert).
  [[nodiscard]] std::vector<Gap> gaps(std::span<const std::pair<std::uint16_t, std::uint16_t>> layers) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace linkcpp::dispatch
