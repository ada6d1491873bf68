// Residency: which routed experts a backbone keeps in its own memory. Pure policy: it is told what routers select and proposes what to
// fetch and what to let go, under one budget of bytes for all layers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dispatch/placement.h"
#include "dispatch/usage.h"

namespace linkcpp::dispatch {

struct ResidencyKnobs {
  UsageKnobs usage;
  /// An expert replaces another if it is expected to be used more often by this share of the other's rate, ...
  double hysteresis = 0.1;
  /// ... and by this many uses a token: rates that are estimated from few uses differ by chance.
  double min_gain = 0.002;
  /// What a layer that needs nobody is worth, in uses of one expert: it saves the round trip. More than zero draws the budget to layers
  /// that are nearly complete.
  double trip_value = 0;
  std::uint64_t max_coming = UINT64_MAX;  ///< bytes on their way at a time
};

enum class SliceState : std::uint8_t { absent, coming, resident };

struct ExpertSlice {
  std::uint16_t layer = 0;
  std::uint16_t expert = 0;
  bool operator==(const ExpertSlice&) const = default;
};

/// First every eviction, then every admission: in that order the budget holds at each step.
struct Moves {
  std::vector<ExpertSlice> evict;  ///< gone as far as the policy is concerned: compute no more pairs with them, free their slots
  std::vector<ExpertSlice> admit;  ///< to be fetched, the most wanted first; answer each with arrived() or failed()
  [[nodiscard]] bool empty() const { return evict.empty() && admit.empty(); }
};

/// Deterministic: the same calls give the same moves. Not thread-safe.
/// Cost: note() passes over one layer's experts, next_moves() over all of them; no other call depends on their number.
class Residency {
 public:
  /// `layers` in ascending order. Nothing is resident at first.
  Residency(std::vector<LayerSize> layers, std::uint64_t budget, ResidencyKnobs knobs = {});

  /// A router's choice: `selected` has the expert numbers of all `n_tokens` tokens of a pass, in any order. A layer counts once a pass:
  /// what is computed again under the same number is no new evidence. Unknown layers and experts are ignored.
  void note(std::uint64_t pass, std::uint16_t layer, std::uint32_t n_tokens, std::span<const std::int32_t> selected);

  [[nodiscard]] SliceState state(std::uint16_t layer, std::uint32_t expert) const;
  [[nodiscard]] bool resident(std::uint16_t layer, std::uint32_t expert) const { return state(layer, expert) == SliceState::resident; }
  /// Bytes of resident and coming experts; never more than the budget, save after it was lowered and before the next next_moves().
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t coming_bytes() const { return coming_bytes_; }
  [[nodiscard]] std::uint64_t budget() const { return budget_; }
  void set_budget(std::uint64_t bytes) { budget_ = bytes; }

  /// What to do now, admitting at most `max_bytes`. Evictions take effect at once, admissions with arrived().
  Moves next_moves(std::uint64_t max_bytes);
  /// A coming expert can be computed from now on. False, and nothing changes, if it is not coming.
  bool arrived(std::uint16_t layer, std::uint32_t expert);
  /// A coming expert will not come, or a resident one was lost: it is absent.
  void failed(std::uint16_t layer, std::uint32_t expert);

  /// Uses a token that are expected of an expert, as next_moves() judges it.
  [[nodiscard]] double expected_uses(std::uint16_t layer, std::uint32_t expert) const;

 private:
  struct Layer {
    LayerSize size;
    std::size_t first = 0;  ///< of its experts in state_ and value_
    LayerUsage usage;
    std::optional<std::uint64_t> last_pass;
  };
  /// An expert that may move.
  struct Candidate {
    double density;  ///< value a byte
    double value;
    std::uint64_t bytes;
    std::size_t at;  ///< in state_
    std::uint32_t layer;
  };

  /// Of one expert.
  struct Place {
    std::size_t at;  ///< in state_
    std::uint64_t bytes;
    std::uint32_t layer;  ///< in layers_
  };

  [[nodiscard]] std::size_t find(std::uint16_t layer) const;
  [[nodiscard]] std::optional<Place> find(std::uint16_t layer, std::uint32_t expert) const;
  void value_all();
  void value_layer(const Layer& layer);
  void shrink(Moves& moves);
  void collect();
  bool worth(const Candidate& newcomer, std::span<const Candidate> leaving) const;
  void evict(const Candidate& candidate, Moves& moves);
  void admit(const Candidate& candidate, Moves& moves);
  [[nodiscard]] ExpertSlice name_of(const Candidate& candidate) const;

  ResidencyKnobs knobs_;
  std::vector<Layer> layers_;
  std::vector<SliceState> state_;  ///< of all experts, layer by layer
  std::vector<float> value_;       ///< as of the latest next_moves()
  std::vector<Candidate> wanted_, spare_;
  std::uint64_t budget_ = 0, bytes_ = 0, coming_bytes_ = 0;
};

}  // namespace linkcpp::dispatch
