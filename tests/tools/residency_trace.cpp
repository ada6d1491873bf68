// residency_trace: replays a router's trace, one token a pass, and says how often selected experts were in memory: with the policy of
// dispatch/residency, with others, and with some that see the future.
//
//   router_trace --model F --text A,B --out TRACE
//   residency_trace --trace TRACE --budget 0.1,0.25,0.5 --rate 2
//
// Experts move between passes only. Prints one JSON object a policy and budget, one a line.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "dispatch/residency.h"
#include "support/router_trace.h"

namespace {

using linkcpp::dispatch::LayerSize;
using linkcpp::dispatch::Residency;
using linkcpp::dispatch::ResidencyKnobs;
using linkcpp::test::RouterTrace;

constexpr std::uint32_t never = UINT32_MAX;

/// The trace with a number for each expert of each layer.
struct Requests {
  explicit Requests(const RouterTrace& from) : trace(from), n_tokens(from.n_tokens()), n_layers(from.layers.size()) {
    for (const auto& layer : trace.layers) {
      if (layer.slice_bytes != trace.layers[0].slice_bytes)
        throw std::runtime_error("layers with slices of different sizes are not compared");
      first.push_back(n_items);
      n_items += layer.n_expert;
    }
    per_token = n_layers * trace.top_k;
    for (std::size_t t = 0; t < n_tokens; ++t) {
      for (std::size_t l = 0; l < n_layers; ++l) {
        for (const std::uint16_t e : trace.at(t, l)) items.push_back(static_cast<std::uint32_t>(first[l] + e));
      }
    }
  }
  [[nodiscard]] std::span<const std::uint32_t> at(std::size_t token) const {
    return std::span(items).subspan(token * per_token, per_token);
  }

  const RouterTrace& trace;
  std::size_t n_tokens, n_layers, n_items = 0, per_token = 0;
  std::vector<std::size_t> first;  ///< number of a layer's expert 0
  std::vector<std::uint32_t> items;
};

/// What is in memory during a pass, and what a policy makes of the pass afterwards.
class Policy {
 public:
  virtual ~Policy() = default;
  [[nodiscard]] virtual bool has(std::uint32_t item) const = 0;
  /// Returns how many experts are fetched; at most `allowed`.
  virtual std::size_t after(std::size_t token, std::size_t allowed) = 0;
};

struct Score {
  std::uint64_t hits = 0, pairs = 0, complete = 0, layers = 0, moved = 0;
  Score& operator+=(const Score& other) {
    hits += other.hits;
    pairs += other.pairs;
    complete += other.complete;
    layers += other.layers;
    moved += other.moved;
    return *this;
  }
};

struct Outcome {
  Score all;
  std::vector<Score> domains;
};

Outcome replay(const Requests& requests, Policy& policy, double rate) {
  Outcome outcome;
  std::size_t token = 0;
  double credit = 0;
  for (const auto& domain : requests.trace.domains) {
    Score score;
    for (std::uint32_t i = 0; i < domain.n_tokens; ++i, ++token) {
      const auto items = requests.at(token);
      for (std::size_t l = 0; l < requests.n_layers; ++l) {
        const auto mine = items.subspan(l * requests.trace.top_k, requests.trace.top_k);
        const auto hits = static_cast<std::uint64_t>(std::ranges::count_if(mine, [&](std::uint32_t item) { return policy.has(item); }));
        score.hits += hits;
        score.complete += hits == mine.size();
      }
      score.pairs += items.size();
      score.layers += requests.n_layers;
      credit = std::min(credit + rate, std::max(rate, 8.0));  // what was not used does not pile up
      const auto allowed = credit > 1e9 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(credit);
      const std::size_t moved = policy.after(token, allowed);
      credit -= static_cast<double>(moved);
      score.moved += moved;
    }
    outcome.domains.push_back(score);
    outcome.all += score;
  }
  return outcome;
}

// ---- policies ----------------------------------------------------------------------------------------------------------

class Adaptive final : public Policy {
 public:
  Adaptive(const Requests& requests, std::size_t budget, const ResidencyKnobs& knobs, std::size_t delay)
      : requests_(requests), slice_(requests.trace.layers[0].slice_bytes), policy_(sizes(requests), budget * slice_, knobs), delay_(delay) {
    for (std::size_t l = 0; l < requests.n_layers; ++l) layer_of_.insert(layer_of_.end(), requests.trace.layers[l].n_expert, l);
  }
  [[nodiscard]] bool has(std::uint32_t item) const override {
    const std::size_t l = layer_of_[item];
    return policy_.resident(requests_.trace.layers[l].key, static_cast<std::uint32_t>(item - requests_.first[l]));
  }
  std::size_t after(std::size_t token, std::size_t allowed) override {
    std::vector<std::int32_t> ids(requests_.trace.top_k);
    for (std::size_t l = 0; l < requests_.n_layers; ++l) {
      std::ranges::copy(requests_.trace.at(token, l), ids.begin());
      policy_.note(token, requests_.trace.layers[l].key, 1, ids);
    }
    const auto moves = policy_.next_moves(allowed > UINT64_MAX / slice_ ? UINT64_MAX : allowed * slice_);
    for (const auto& slice : moves.admit) coming_.push_back({token + delay_, slice});
    while (!coming_.empty() && coming_.front().first <= token) {
      policy_.arrived(coming_.front().second.layer, coming_.front().second.expert);
      coming_.pop_front();
    }
    return moves.admit.size();
  }

 private:
  static std::vector<LayerSize> sizes(const Requests& requests) {
    std::vector<LayerSize> sizes;
    for (const auto& layer : requests.trace.layers) sizes.push_back({layer.key, layer.n_expert, layer.slice_bytes});
    return sizes;
  }
  const Requests& requests_;
  std::uint64_t slice_;
  Residency policy_;
  std::size_t delay_;
  std::vector<std::size_t> layer_of_;
  std::deque<std::pair<std::size_t, linkcpp::dispatch::ExpertSlice>> coming_;
};

/// Least recently used. What is missed comes in, as far as the rate allows: beginning with another layer after each token.
class Lru final : public Policy {
 public:
  Lru(const Requests& requests, std::size_t budget) : requests_(requests), budget_(budget), used_(requests.n_items) {}
  [[nodiscard]] bool has(std::uint32_t item) const override { return used_[item] != 0; }
  std::size_t after(std::size_t token, std::size_t allowed) override {
    const auto items = requests_.at(token);
    for (const std::uint32_t item : items) {
      if (has(item)) touch(item);
    }
    std::size_t moved = 0;
    const std::size_t start = token % requests_.n_layers * requests_.trace.top_k;
    for (std::size_t i = 0; i < items.size() && moved < allowed && moved < budget_; ++i) {
      const std::uint32_t item = items[(start + i) % items.size()];
      if (has(item)) continue;
      if (order_.size() == budget_) {
        used_[order_.begin()->second] = 0;
        order_.erase(order_.begin());
      }
      touch(item);
      ++moved;
    }
    return moved;
  }

 private:
  void touch(std::uint32_t item) {
    if (used_[item] != 0) order_.erase({used_[item], item});
    used_[item] = ++now_;
    order_.insert({now_, item});
  }
  const Requests& requests_;
  std::size_t budget_;
  std::uint64_t now_ = 0;
  std::vector<std::uint64_t> used_;  ///< 0: not in memory
  std::set<std::pair<std::uint64_t, std::uint32_t>> order_;
};

class Static final : public Policy {
 public:
  /// The most used of tokens [0, n_tokens).
  Static(const Requests& requests, std::size_t budget, std::size_t n_tokens) : has_(requests.n_items) {
    std::vector<std::uint64_t> count(requests.n_items);
    for (std::size_t t = 0; t < n_tokens; ++t) {
      for (const std::uint32_t item : requests.at(t)) ++count[item];
    }
    std::vector<std::uint32_t> order(requests.n_items);
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) { return count[a] > count[b]; });
    for (std::size_t i = 0; i < budget; ++i) has_[order[i]] = true;
  }
  [[nodiscard]] bool has(std::uint32_t item) const override { return has_[item]; }
  std::size_t after(std::size_t, std::size_t) override { return 0; }

 private:
  std::vector<bool> has_;
};

/// As many whole layers as fit.
class WholeLayers final : public Policy {
 public:
  WholeLayers(const Requests& requests, std::size_t budget) : end_(0) {
    for (const auto& layer : requests.trace.layers) {
      if (end_ + layer.n_expert <= budget) end_ += layer.n_expert;
    }
  }
  [[nodiscard]] bool has(std::uint32_t item) const override { return item < end_; }
  std::size_t after(std::size_t, std::size_t) override { return 0; }

 private:
  std::size_t end_;
};

/// Belady's: every missed expert comes in at once if it is used again sooner than the one that is used last, which goes. No policy that
/// fetches on demand can hit more often.
class Belady final : public Policy {
 public:
  Belady(const Requests& requests, std::size_t budget)
      : requests_(requests), budget_(budget), next_(requests.items.size()), until_(requests.n_items) {
    std::vector<std::uint32_t> next(requests.n_items, never);
    for (std::size_t t = requests.n_tokens; t-- > 0;) {
      const std::size_t begin = t * requests.per_token, end = begin + requests.per_token;
      for (std::size_t i = begin; i < end; ++i) next_[i] = next[requests.items[i]];
      for (std::size_t i = begin; i < end; ++i) next[requests.items[i]] = static_cast<std::uint32_t>(t);
    }
  }
  [[nodiscard]] bool has(std::uint32_t item) const override { return until_[item] != 0; }
  std::size_t after(std::size_t token, std::size_t) override {
    std::size_t moved = 0;
    const auto items = requests_.at(token);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::uint32_t item = items[i], next = next_[token * requests_.per_token + i];
      const bool had = has(item);
      if (had) order_.erase({until_[item], item});
      until_[item] = 0;
      if (order_.size() == budget_) {
        const auto last = std::prev(order_.end());
        if (last->first <= next) continue;
        until_[last->second] = 0;
        order_.erase(last);
      }
      until_[item] = next;
      order_.insert({next, item});
      moved += !had;
    }
    return moved;
  }

 private:
  const Requests& requests_;
  std::size_t budget_;
  std::vector<std::uint32_t> next_;   ///< token of the next use, for each request
  std::vector<std::uint32_t> until_;  ///< of items in memory: token of the next use; 0: not in memory (nothing is used next at token 0)
  std::set<std::pair<std::uint32_t, std::uint32_t>> order_;
};

/// Sees the future, but may move no more than the rate: swaps by uses to come, each counting half after `half_life` tokens.
class Foresight final : public Policy {
 public:
  Foresight(const Requests& requests, std::size_t budget, double half_life)
      : budget_(budget), has_(requests.n_items), n_items_(requests.n_items), uses_(requests.n_tokens * requests.n_items) {
    const auto kept = static_cast<float>(std::exp2(-1 / half_life));
    for (std::size_t t = requests.n_tokens - 1; t-- > 0;) {
      float* now = uses_.data() + t * n_items_;
      for (std::size_t i = 0; i < n_items_; ++i) now[i] = now[n_items_ + i] * kept;
      for (const std::uint32_t item : requests.at(t + 1)) now[item] += 1;
    }
  }
  [[nodiscard]] bool has(std::uint32_t item) const override { return has_[item]; }
  std::size_t after(std::size_t token, std::size_t allowed) override {
    const float* uses = uses_.data() + token * n_items_;
    std::size_t moved = 0;
    while (moved < allowed) {
      std::size_t best = n_items_, worst = n_items_;
      for (std::size_t i = 0; i < n_items_; ++i) {
        if (!has_[i] && (best == n_items_ || uses[i] > uses[best])) best = i;
        if (has_[i] && (worst == n_items_ || uses[i] < uses[worst])) worst = i;
      }
      if (best == n_items_ || (n_ == budget_ && uses[best] <= uses[worst])) break;
      if (n_ == budget_) {
        has_[worst] = false;
        --n_;
      }
      has_[best] = true;
      ++n_;
      ++moved;
    }
    return moved;
  }

 private:
  std::size_t budget_, n_ = 0;
  std::vector<bool> has_;
  std::size_t n_items_;
  std::vector<float> uses_;
};

// ---- the program -------------------------------------------------------------------------------------------------------

struct Options {
  std::string trace;
  std::vector<double> budgets{0.1, 0.25, 0.5};
  std::vector<std::string> policies{"adaptive",  "lru",          "lru-unlimited", "belady",
                                    "foresight", "static-first", "static-all",    "whole-layers"};
  double rate = 2;
  std::size_t delay = 0;
  ResidencyKnobs knobs;
};

std::unique_ptr<Policy> make(const std::string& name, const Requests& requests, std::size_t budget, const Options& options) {
  if (name == "adaptive") return std::make_unique<Adaptive>(requests, budget, options.knobs, options.delay);
  if (name == "lru" || name == "lru-unlimited") return std::make_unique<Lru>(requests, budget);
  if (name == "belady") return std::make_unique<Belady>(requests, budget);
  if (name == "static-first") return std::make_unique<Static>(requests, budget, requests.trace.domains.at(0).n_tokens);
  if (name == "static-all") return std::make_unique<Static>(requests, budget, requests.n_tokens);
  if (name == "whole-layers") return std::make_unique<WholeLayers>(requests, budget);
  throw std::runtime_error("there is no policy '" + name + "'");
}

Outcome outcome_of(const std::string& name, const Requests& requests, std::size_t budget, const Options& options) {
  if (name != "foresight") {
    const auto policy = make(name, requests, budget, options);
    return replay(requests, *policy, name == "lru-unlimited" ? std::numeric_limits<double>::infinity() : options.rate);
  }
  Outcome best;
  for (const double half_life : {8.0, 32.0, 128.0, 512.0}) {
    Foresight policy(requests, budget, half_life);
    Outcome outcome = replay(requests, policy, options.rate);
    if (outcome.all.hits > best.all.hits) best = std::move(outcome);
  }
  return best;
}

double share(std::uint64_t part, std::uint64_t of) { return of == 0 ? 0 : static_cast<double>(part) / static_cast<double>(of); }

void run(const Options& options) {
  const RouterTrace trace = linkcpp::test::read_trace(options.trace);
  const Requests requests(trace);
  for (const double part : options.budgets) {
    const auto budget = static_cast<std::size_t>(std::lround(part * static_cast<double>(requests.n_items)));
    for (const std::string& name : options.policies) {
      const auto start = std::chrono::steady_clock::now();
      const Outcome outcome = outcome_of(name, requests, budget, options);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      nlohmann::json domains = nlohmann::json::object();
      for (std::size_t d = 0; d < outcome.domains.size(); ++d)
        domains[trace.domains[d].name] = share(outcome.domains[d].hits, outcome.domains[d].pairs);
      const nlohmann::json line{{"policy", name},
                                {"budget", part},
                                {"experts", budget},
                                {"hit_rate", share(outcome.all.hits, outcome.all.pairs)},
                                {"complete_layers", share(outcome.all.complete, outcome.all.layers)},
                                {"moves_a_token", share(outcome.all.moved, requests.n_tokens)},
                                {"bytes_a_token", share(outcome.all.moved * trace.layers[0].slice_bytes, requests.n_tokens)},
                                {"us_a_token", took.count() / static_cast<double>(requests.n_tokens)},
                                {"domains", domains}};
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Replays a router's trace through policies that choose which experts are in memory."};
  Options options;
  ResidencyKnobs& knobs = options.knobs;
  app.add_option("--trace", options.trace, "What router_trace recorded")->required()->check(CLI::ExistingFile);
  app.add_option("--budget", options.budgets, "Shares of all experts")->delimiter(',')->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--policy", options.policies, "Policies to replay")->delimiter(',')->capture_default_str();
  app.add_option("--rate", options.rate, "Experts fetched a token, at most")->capture_default_str();
  app.add_option("--delay", options.delay, "Tokens that a fetched expert is on its way (adaptive only)")->capture_default_str();
  app.add_option("--half-lives", knobs.usage.half_lives)->delimiter(',')->capture_default_str();
  app.add_option("--weights", knobs.usage.weights)->delimiter(',')->capture_default_str();
  app.add_option("--outlook", knobs.usage.outlook)->capture_default_str();
  app.add_option("--memory", knobs.usage.memory)->capture_default_str();
  app.add_option("--prior", knobs.usage.prior)->capture_default_str();
  app.add_option("--hysteresis", knobs.hysteresis)->capture_default_str();
  app.add_option("--min-gain", knobs.min_gain)->capture_default_str();
  app.add_option("--trip-value", knobs.trip_value)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "residency_trace: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
