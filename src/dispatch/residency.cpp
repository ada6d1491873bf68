#include "dispatch/residency.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace linkcpp::dispatch {

Residency::Residency(std::vector<LayerSize> layers, std::uint64_t budget, ResidencyKnobs knobs) : knobs_(knobs), budget_(budget) {
  std::size_t first = 0;
  for (const LayerSize& size : layers) {
    layers_.push_back({.size = size, .first = first, .usage = LayerUsage(size.n_expert, knobs_.usage), .last_pass = {}});
    first += size.n_expert;
  }
  state_.assign(first, SliceState::absent);
  value_.assign(first, 0.0f);
}

/// Its place in layers_; n if there is no such layer.
std::size_t Residency::find(std::uint16_t layer) const {
  const auto at = std::ranges::lower_bound(layers_, layer, {}, [](const Layer& l) { return l.size.layer; });
  return at == layers_.end() || at->size.layer != layer ? layers_.size() : static_cast<std::size_t>(at - layers_.begin());
}

std::optional<Residency::Place> Residency::find(std::uint16_t layer, std::uint32_t expert) const {
  const std::size_t l = find(layer);
  if (l == layers_.size() || expert >= layers_[l].size.n_expert) return {};
  return Place{layers_[l].first + expert, layers_[l].size.slice_bytes, static_cast<std::uint32_t>(l)};
}

void Residency::note(std::uint64_t pass, std::uint16_t layer, std::uint32_t n_tokens, std::span<const std::int32_t> selected) {
  const std::size_t at = find(layer);
  if (at == layers_.size() || n_tokens == 0 || layers_[at].last_pass == pass) return;
  layers_[at].last_pass = pass;
  layers_[at].usage.note(n_tokens, selected);
}

SliceState Residency::state(std::uint16_t layer, std::uint32_t expert) const {
  const auto place = find(layer, expert);
  return place ? state_[place->at] : SliceState::absent;
}

double Residency::expected_uses(std::uint16_t layer, std::uint32_t expert) const {
  const auto place = find(layer, expert);
  return place ? layers_[place->layer].usage.predict(expert) : 0;
}

// ---- values ------------------------------------------------------------------------------------------------------------

void Residency::value_all() {
  for (const Layer& layer : layers_) value_layer(layer);
}

/// With a value of trips: let a share h of a layer's k uses a token be local, so that all are with a probability of about h^k. One more
/// use a token adds h^(k-1) to that.
void Residency::value_layer(const Layer& layer) {
  const std::span<float> values = std::span(value_).subspan(layer.first, layer.size.n_expert);
  layer.usage.predict(values);
  if (knobs_.trip_value <= 0) return;
  double all = 0, local = 0;
  for (std::size_t e = 0; e < values.size(); ++e) {
    all += static_cast<double>(values[e]);
    if (state_[layer.first + e] != SliceState::absent) local += static_cast<double>(values[e]);
  }
  if (all <= 0) return;
  const auto factor = static_cast<float>(1 + knobs_.trip_value * std::pow(local / all, std::max(all - 1, 0.0)));
  for (float& value : values) value *= factor;
}

// ---- moves -------------------------------------------------------------------------------------------------------------

Moves Residency::next_moves(std::uint64_t max_bytes) {
  Moves moves;
  value_all();
  collect();
  shrink(moves);
  std::size_t next_spare = moves.evict.size();
  for (const Candidate& newcomer : wanted_) {
    if (newcomer.bytes > max_bytes || coming_bytes_ + newcomer.bytes > knobs_.max_coming || newcomer.bytes > budget_) continue;
    std::size_t end = next_spare;
    std::uint64_t room = budget_ - bytes_;
    while (room < newcomer.bytes && end < spare_.size()) room += spare_[end++].bytes;
    if (room < newcomer.bytes) continue;
    // Newcomers come by falling density: if this one is not worth it, only a smaller one may be.
    const auto leaving = std::span(spare_).subspan(next_spare, end - next_spare);
    if (!worth(newcomer, leaving)) continue;
    for (const Candidate& candidate : leaving) evict(candidate, moves);
    next_spare = end;
    admit(newcomer, moves);
    max_bytes -= newcomer.bytes;
  }
  return moves;
}

/// After the budget was lowered.
void Residency::shrink(Moves& moves) {
  for (std::size_t i = 0; bytes_ > budget_ && i < spare_.size(); ++i) evict(spare_[i], moves);
}

/// Fills wanted_ with absent experts that are worth more a byte than the least resident one (all that are worth something, where there
/// is room), and spare_ with resident ones that are worth less a byte than the most wanted. Both lists are short in the steady state.
void Residency::collect() {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  bool has_room = false;
  for (const Layer& layer : layers_) {
    float lowest = std::numeric_limits<float>::infinity(), highest = 0;
    for (std::size_t i = layer.first; i < layer.first + layer.size.n_expert; ++i) {
      if (state_[i] == SliceState::resident) lowest = std::min(lowest, value_[i]);
      if (state_[i] == SliceState::absent) highest = std::max(highest, value_[i]);
    }
    const auto size = static_cast<double>(layer.size.slice_bytes);
    least = std::min(least, static_cast<double>(lowest) / size);
    most = std::max(most, static_cast<double>(highest) / size);
    has_room |= bytes_ + layer.size.slice_bytes <= budget_;
  }
  if (has_room) least = 0;
  if (bytes_ > budget_) most = std::numeric_limits<double>::infinity();
  wanted_.clear();
  spare_.clear();
  for (std::uint32_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const std::uint64_t bytes = layer.size.slice_bytes;
    for (std::size_t i = layer.first; i < layer.first + layer.size.n_expert; ++i) {
      const double value = static_cast<double>(value_[i]), density = value / static_cast<double>(bytes);
      if (state_[i] == SliceState::absent && density > least) wanted_.push_back({density, value, bytes, i, l});
      if (state_[i] == SliceState::resident && density < most) spare_.push_back({density, value, bytes, i, l});
    }
  }
  // By place where equal, so that the order is the same everywhere.
  std::ranges::sort(wanted_,
                    [](const Candidate& a, const Candidate& b) { return a.density != b.density ? a.density > b.density : a.at < b.at; });
  std::ranges::sort(spare_,
                    [](const Candidate& a, const Candidate& b) { return a.density != b.density ? a.density < b.density : a.at < b.at; });
}

bool Residency::worth(const Candidate& newcomer, std::span<const Candidate> leaving) const {
  if (leaving.empty()) return true;
  double lost = 0;
  for (const Candidate& candidate : leaving) lost += candidate.value;
  return newcomer.value > lost * (1 + knobs_.hysteresis) + knobs_.min_gain;
}

ExpertSlice Residency::name_of(const Candidate& candidate) const {
  const Layer& layer = layers_[candidate.layer];
  return {layer.size.layer, static_cast<std::uint16_t>(candidate.at - layer.first)};
}

void Residency::evict(const Candidate& candidate, Moves& moves) {
  state_[candidate.at] = SliceState::absent;
  bytes_ -= candidate.bytes;
  moves.evict.push_back(name_of(candidate));
}

void Residency::admit(const Candidate& candidate, Moves& moves) {
  state_[candidate.at] = SliceState::coming;
  bytes_ += candidate.bytes;
  coming_bytes_ += candidate.bytes;
  moves.admit.push_back(name_of(candidate));
}

bool Residency::arrived(std::uint16_t layer, std::uint32_t expert) {
  const auto place = find(layer, expert);
  if (!place || state_[place->at] != SliceState::coming) return false;
  state_[place->at] = SliceState::resident;
  coming_bytes_ -= place->bytes;
  return true;
}

void Residency::failed(std::uint16_t layer, std::uint32_t expert) {
  const auto place = find(layer, expert);
  if (!place || state_[place->at] == SliceState::absent) return;
  if (state_[place->at] == SliceState::coming) coming_bytes_ -= place->bytes;
  bytes_ -= place->bytes;
  state_[place->at] = SliceState::absent;
}

}  // namespace linkcpp::dispatch
