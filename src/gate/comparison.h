// What two runs of one model over the same tokens have in common: the figures by which a lossy setting is judged.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace linkcpp::gate {

/// One row of logits, n_vocab long.
using Row = std::span<const float>;
/// The token that truly follows a row, where that is not known.
inline constexpr std::int32_t no_target = -1;

/// Index of the largest element, the first one of several.
std::size_t argmax(Row row);

/// Figures over all rows. The reference is plain llama.cpp.
struct Figures {
  std::uint64_t rows = 0;
  std::uint64_t different_rows = 0;          ///< rows of which any bit differs
  double max_abs_diff = 0;                   ///< of logits; infinite if one is NaN
  double mean_kld = 0, max_kld = 0;          ///< KL divergence of the next-token distributions from the reference, in nats
  double mean_cosine = 1, worst_cosine = 1;  ///< of whole rows of logits
  double argmax_agreement = 1;               ///< share of rows with the same most likely token
  double perplexity_ratio = 1;               ///< judged / reference, over rows whose next token is known
  [[nodiscard]] bool identical() const { return different_rows == 0; }
};

/// Takes rows pair by pair, so that only one pair is in memory. Not thread-safe.
class Comparison {
 public:
  /// `where` names the row in reports. Both rows have the same length.
  void add(std::string_view where, Row reference, Row judged, std::int32_t target);

  [[nodiscard]] Figures figures() const;
  /// Figures, and where the extremes and the first difference are.
  [[nodiscard]] nlohmann::json to_json() const;

 private:
  void note_difference(std::string_view where, Row a, Row b);
  void note_likelihood(std::string_view where, Row a, Row b, std::int32_t target);
  void note_angle(std::string_view where, Row a, Row b);

  std::uint64_t rows_ = 0, different_rows_ = 0, same_argmax_ = 0, targets_ = 0;
  double max_diff_ = 0, kld_sum_ = 0, max_kld_ = 0, cosine_sum_ = 0, worst_cosine_ = 1, nll_a_ = 0, nll_b_ = 0;
  std::string max_kld_at_, worst_cosine_at_;
  nlohmann::json first_;
};

}  // namespace linkcpp::gate
