#include "gate/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace linkcpp::gate {
namespace {

/// log(sum(exp(x))), so that x - result are log-probabilities.
double log_sum_exp(Row x) {
  const double top = *std::ranges::max_element(x);
  double sum = 0;
  for (const float v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

}  // namespace

std::size_t argmax(Row row) { return static_cast<std::size_t>(std::ranges::max_element(row) - row.begin()); }

void Comparison::add(std::string_view where, Row reference, Row judged, std::int32_t target) {
  ++rows_;
  note_difference(where, reference, judged);
  note_likelihood(where, reference, judged, target);
  note_angle(where, reference, judged);
  if (argmax(reference) == argmax(judged)) ++same_argmax_;
}

void Comparison::note_difference(std::string_view where, Row a, Row b) {
  // Bits, not values: a zero of the other sign, or another NaN, would be a difference.
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return;
  ++different_rows_;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double diff = std::fabs(static_cast<double>(a[i]) - b[i]);
    max_diff_ = std::isnan(diff) ? std::numeric_limits<double>::infinity() : std::max(max_diff_, diff);
    if (first_.is_null() && std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      first_ = {{"row", where}, {"token", i}, {"a", a[i]}, {"b", b[i]}};
  }
}

void Comparison::note_likelihood(std::string_view where, Row a, Row b, std::int32_t target) {
  const double za = log_sum_exp(a), zb = log_sum_exp(b);
  double kld = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double log_p = a[i] - za;
    kld += std::exp(log_p) * (log_p - (b[i] - zb));
  }
  // Damaged logits diverge without bound. (A comparison with NaN would be false, and the damage pass unseen.)
  if (std::isnan(kld)) kld = std::numeric_limits<double>::infinity();
  kld_sum_ += kld;
  if (kld > max_kld_) {
    max_kld_ = kld;
    max_kld_at_ = where;
  }
  if (target < 0 || static_cast<std::size_t>(target) >= a.size()) return;
  ++targets_;
  nll_a_ -= a[static_cast<std::size_t>(target)] - za;
  nll_b_ -= b[static_cast<std::size_t>(target)] - zb;
}

void Comparison::note_angle(std::string_view where, Row a, Row b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  double cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : (aa == bb ? 1 : 0);
  if (std::isnan(cosine)) cosine = -1;
  cosine_sum_ += cosine;
  if (cosine < worst_cosine_) {
    worst_cosine_ = cosine;
    worst_cosine_at_ = where;
  }
}

Figures Comparison::figures() const {
  Figures result{
      .rows = rows_, .different_rows = different_rows_, .max_abs_diff = max_diff_, .max_kld = max_kld_, .worst_cosine = worst_cosine_};
  if (rows_ > 0) {
    const auto n = static_cast<double>(rows_);
    result.mean_kld = kld_sum_ / n;
    result.mean_cosine = cosine_sum_ / n;
    result.argmax_agreement = static_cast<double>(same_argmax_) / n;
  }
  if (targets_ > 0) {
    result.perplexity_ratio = std::exp((nll_b_ - nll_a_) / static_cast<double>(targets_));
    if (std::isnan(result.perplexity_ratio)) result.perplexity_ratio = std::numeric_limits<double>::infinity();
  }
  return result;
}

nlohmann::json Comparison::to_json() const {
  const Figures f = figures();
  nlohmann::json json{
      {"rows", f.rows}, {"identical", f.identical()}, {"different_rows", f.different_rows}, {"max_abs_diff", f.max_abs_diff}};
  if (rows_ > 0) {
    json["mean_kld"] = f.mean_kld;
    json["max_kld"] = f.max_kld;
    json["max_kld_at"] = max_kld_at_;
    json["mean_cosine"] = f.mean_cosine;
    json["worst_cosine"] = f.worst_cosine;
    json["worst_cosine_at"] = worst_cosine_at_;
    json["argmax_agreement"] = f.argmax_agreement;
  }
  if (targets_ > 0) {
    const auto t = static_cast<double>(targets_);
    json["perplexity_a"] = std::exp(nll_a_ / t);
    json["perplexity_b"] = std::exp(nll_b_ / t);
    json["perplexity_ratio"] = f.perplexity_ratio;
  }
  if (!first_.is_null()) json["first_difference"] = first_;
  return json;
}

}  // namespace linkcpp::gate
