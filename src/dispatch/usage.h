// How often the experts of one layer will be used: predicted from how often they were used lately.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace linkcpp::dispatch {

inline constexpr std::size_t n_horizons = 3;
using HorizonWeights = std::array<double, n_horizons>;

struct UsageKnobs {
  /// Tokens after which a use counts half, for each running mean.
  std::array<double, n_horizons> half_lives{8, 64, 1024};
  /// How much each mean says about the future before anything was learnt.
  HorizonWeights weights{0.1, 0.4, 0.5};
  /// Tokens ahead that predictions are judged by: about as long as an expert stays that was worth fetching. 0: nothing is learnt.
  double outlook = 32;
  double memory = 0.97;  ///< of what was learnt, kept from one outlook to the next
  double prior = 0.02;   ///< how much the weights above count beside what was learnt
  /// A pass of more tokens than this counts as so many: a long prompt is one text, not thousands of decisions.
  double max_evidence = 64;
};

/// Rates are uses a token. Running means over three horizons, and a linear prediction from them whose weights are fitted, by least squares
/// with forgetting, to what came after.
class LayerUsage {
 public:
  LayerUsage(std::uint32_t n_expert, const UsageKnobs& knobs);

  /// The experts selected for all tokens of a pass. Numbers that do not exist are ignored. n_tokens is positive.
  void note(std::uint32_t n_tokens, std::span<const std::int32_t> selected);
  /// Expected uses a token of every expert; `to` has n_expert elements.
  void predict(std::span<float> to) const;
  [[nodiscard]] double predict(std::uint32_t expert) const;

 private:
  [[nodiscard]] std::span<float> mean(std::size_t horizon) { return std::span(means_).subspan(horizon * n_, n_); }
  [[nodiscard]] std::span<const float> mean(std::size_t horizon) const { return std::span(means_).subspan(horizon * n_, n_); }
  void learn();
  void fit();

  UsageKnobs knobs_;
  std::size_t n_;
  double evidence_ = 0;       ///< tokens seen, as they count
  std::vector<float> means_;  ///< by horizon, then expert
  std::vector<float> rate_;   ///< of the pass that is noted
  HorizonWeights weights_;
  // What is being learnt: means as they were an outlook ago, and what happened since.
  std::vector<float> past_means_, since_;
  double since_evidence_ = 0;
  std::array<std::array<double, n_horizons>, n_horizons> moments_{};  ///< means by means
  HorizonWeights outcome_{};                                          ///< means by what came after
};

}  // namespace linkcpp::dispatch
