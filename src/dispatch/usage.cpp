#include "dispatch/usage.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace linkcpp::dispatch {

LayerUsage::LayerUsage(std::uint32_t n_expert, const UsageKnobs& knobs)
    : knobs_(knobs), n_(n_expert), means_(n_horizons * n_), rate_(n_), weights_(knobs.weights), past_means_(means_), since_(n_) {}

void LayerUsage::note(std::uint32_t n_tokens, std::span<const std::int32_t> selected) {
  const double evidence = std::min<double>(n_tokens, knobs_.max_evidence);
  std::ranges::fill(rate_, 0.0f);
  const float use = 1.0f / static_cast<float>(n_tokens);
  for (const std::int32_t e : selected) {
    if (e >= 0 && static_cast<std::size_t>(e) < n_) rate_[static_cast<std::size_t>(e)] += use;
  }
  evidence_ += evidence;
  for (std::size_t h = 0; h < n_horizons; ++h) {
    // A plain mean until there is enough for the horizon: a start from zero would hide what little is known.
    const double decayed = 1 - std::exp2(-evidence / knobs_.half_lives[h]);
    const auto share = static_cast<float>(std::max(decayed, evidence / evidence_));
    float* to = mean(h).data();
    for (std::size_t e = 0; e < n_; ++e) to[e] += share * (rate_[e] - to[e]);
  }
  if (knobs_.outlook <= 0) return;
  for (std::size_t e = 0; e < n_; ++e) since_[e] += static_cast<float>(evidence) * rate_[e];
  since_evidence_ += evidence;
  if (since_evidence_ >= knobs_.outlook) learn();
}

/// Least squares over all experts: the past means, weighted, against the rates since.
void LayerUsage::learn() {
  const float scale = 1 / static_cast<float>(since_evidence_);
  for (std::size_t h = 0; h < n_horizons; ++h) {
    const float* mine = past_means_.data() + h * n_;
    for (std::size_t g = h; g < n_horizons; ++g) {
      const float* other = past_means_.data() + g * n_;
      float sum = 0;
      for (std::size_t e = 0; e < n_; ++e) sum += mine[e] * other[e];
      moments_[h][g] = moments_[g][h] = moments_[h][g] * knobs_.memory + static_cast<double>(sum);
    }
    float sum = 0;
    for (std::size_t e = 0; e < n_; ++e) sum += mine[e] * since_[e] * scale;
    outcome_[h] = outcome_[h] * knobs_.memory + static_cast<double>(sum);
  }
  fit();
  past_means_ = means_;
  std::ranges::fill(since_, 0.0f);
  since_evidence_ = 0;
}

/// Solves (moments + r) w = outcome + r * prior by Gauss-Jordan; the matrix is positive definite. Negative weights become zero: an
/// expert is not wanted less because it was used.
void LayerUsage::fit() {
  double trace = 0;
  for (std::size_t h = 0; h < n_horizons; ++h) trace += moments_[h][h];
  const double r = knobs_.prior * trace / n_horizons + 1e-9;
  auto a = moments_;
  HorizonWeights w = outcome_;
  for (std::size_t h = 0; h < n_horizons; ++h) {
    a[h][h] += r;
    w[h] += r * knobs_.weights[h];
  }
  for (std::size_t h = 0; h < n_horizons; ++h) {
    for (std::size_t g = 0; g < n_horizons; ++g) {
      if (g == h) continue;
      const double factor = a[g][h] / a[h][h];
      for (std::size_t k = h; k < n_horizons; ++k) a[g][k] -= factor * a[h][k];
      w[g] -= factor * w[h];
    }
  }
  for (std::size_t h = 0; h < n_horizons; ++h) weights_[h] = std::max(0.0, w[h] / a[h][h]);
}

void LayerUsage::predict(std::span<float> to) const {
  std::ranges::fill(to, 0.0f);
  for (std::size_t h = 0; h < n_horizons; ++h) {
    const auto weight = static_cast<float>(weights_[h]);
    const float* from = mean(h).data();
    for (std::size_t e = 0; e < n_; ++e) to[e] += weight * from[e];
  }
}

double LayerUsage::predict(std::uint32_t expert) const {
  double sum = 0;
  for (std::size_t h = 0; h < n_horizons; ++h) sum += weights_[h] * static_cast<double>(mean(h)[expert]);
  return sum;
}

}  // namespace linkcpp::dispatch
