#include "dispatch/split.h"

#include <algorithm>
#include <numeric>

namespace linkcpp::dispatch {
namespace {

constexpr std::size_t nobody = SIZE_MAX;

/// One selected expert: how many pairs it has, and who gets it.
struct Demand {
  std::uint16_t expert = 0;
  std::uint32_t n_pairs = 0;
  std::uint32_t n_holders = 0;
  std::size_t owner = nobody;
};

class Splitter {
 public:
  Splitter(std::span<const Pair> pairs, std::span<const Candidate> candidates, double gain)
      : pairs_(pairs), candidates_(candidates), gain_(gain), load_(candidates.size(), 0) {}

  SplitResult run() {
    count();
    // Experts with one holder decide who is touched anyway; large demands before small ones make the rest easier to balance.
    std::vector<std::size_t> order(demands_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [this](std::size_t a, std::size_t b) {
      const Demand &x = demands_[a], &y = demands_[b];
      const bool x_forced = x.n_holders == 1, y_forced = y.n_holders == 1;
      if (x_forced != y_forced) return x_forced;
      return x.n_pairs != y.n_pairs ? x.n_pairs > y.n_pairs : x.expert < y.expert;
    });
    for (const std::size_t d : order) place(demands_[d]);
    return shares();
  }

 private:
  bool holds(std::size_t c, std::uint16_t expert) const { return candidates_[c].holding->has(expert); }

  double completion(std::size_t c, std::uint32_t more) const {
    return candidates_[c].rtt_ns + candidates_[c].per_pair_ns * static_cast<double>(load_[c] + more);
  }

  void count() {
    std::uint16_t highest = 0;
    for (const Pair& pair : pairs_) highest = std::max(highest, pair.expert);
    slot_.assign(std::size_t{highest} + 1, nobody);
    for (const Pair& pair : pairs_) {
      std::size_t& slot = slot_[pair.expert];
      if (slot == nobody) {
        slot = demands_.size();
        demands_.push_back({.expert = pair.expert});
        for (std::size_t c = 0; c < candidates_.size(); ++c) demands_.back().n_holders += holds(c, pair.expert) ? 1 : 0;
      }
      ++demands_[slot].n_pairs;
    }
  }

  /// Pairs of experts without an owner that this candidate could take: who covers most keeps the star small.
  std::uint32_t coverage(std::size_t c) const {
    std::uint32_t n = 0;
    for (const Demand& d : demands_) n += d.owner == nobody && holds(c, d.expert) ? d.n_pairs : 0;
    return n;
  }

  void place(Demand& d) {
    std::size_t touched = nobody, fresh = nobody;
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (!holds(c, d.expert)) continue;
      if (load_[c] > 0) {
        if (touched == nobody || completion(c, d.n_pairs) < completion(touched, d.n_pairs)) touched = c;
      } else if (fresh == nobody || better_fresh(c, fresh, d.n_pairs, any_touched())) {
        fresh = c;
      }
    }
    std::size_t owner = touched == nobody ? fresh : touched;
    if (touched != nobody && fresh != nobody) {
      const double with_touched = std::max(longest_, completion(touched, d.n_pairs));
      const double with_fresh = std::max(longest_, completion(fresh, d.n_pairs));
      if (with_fresh < with_touched * (1 - gain_)) owner = fresh;
    }
    if (owner == nobody) return;
    d.owner = owner;
    load_[owner] += d.n_pairs;
    longest_ = std::max(longest_, completion(owner, 0));
  }

  bool any_touched() const {
    return longest_ > 0 || std::ranges::any_of(load_, [](std::uint32_t n) { return n > 0; });
  }

  /// Among untouched candidates: the nearest where a star exists already, else who covers most.
  bool better_fresh(std::size_t a, std::size_t b, std::uint32_t more, bool star_exists) const {
    if (!star_exists) {
      const std::uint32_t x = coverage(a), y = coverage(b);
      if (x != y) return x > y;
    }
    return completion(a, more) < completion(b, more);
  }

  SplitResult shares() {
    SplitResult result;
    std::vector<std::size_t> at(candidates_.size(), nobody);
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (load_[c] == 0) continue;
      at[c] = result.shares.size();
      result.shares.emplace_back(candidates_[c].id, std::vector<Pair>{});
      result.shares.back().second.reserve(load_[c]);
    }
    for (const Pair& pair : pairs_) {
      const std::size_t owner = demands_[slot_[pair.expert]].owner;
      (owner == nobody ? result.uncovered : result.shares[at[owner]].second).push_back(pair);
    }
    return result;
  }

  std::span<const Pair> pairs_;
  std::span<const Candidate> candidates_;
  double gain_;
  std::vector<Demand> demands_;
  std::vector<std::size_t> slot_;    ///< demand of an expert
  std::vector<std::uint32_t> load_;  ///< pairs given to a candidate
  double longest_ = 0;               ///< predicted completion of the step so far
};

}  // namespace

SplitResult split_pairs(std::span<const Pair> pairs, std::span<const Candidate> candidates, double gain) {
  return Splitter(pairs, candidates, gain).run();
}

}  // namespace linkcpp::dispatch
