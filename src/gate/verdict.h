// Whether a setting's figures are good enough, and why not.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "gate/comparison.h"
#include "wire/messages.h"

namespace linkcpp::gate {

/// Limits that figures must keep. docs/accuracy.md argues the defaults.
struct Thresholds {
  double argmax_agreement = 0.995;  ///< at least
  double mean_cosine = 0.998;       ///< at least
  double mean_kld = 0.01;           ///< at most, nats
  double perplexity_ratio = 1.01;   ///< at most
};

/// Empty if the figures pass, else a sentence that names each limit that they miss, with the figure.
std::string misses(const Figures& figures, const Thresholds& thresholds);

/// One way to send rows.
struct Setting {
  wire::CombineMode mode = wire::CombineMode::raw;
  wire::RowType type = wire::RowType::f32;
  auto operator<=>(const Setting&) const = default;
};
/// "sum f16"
std::string to_string(const Setting& setting);
/// Whether a setting gives plain llama.cpp's bits by construction (raw f32).
constexpr bool is_exact(const Setting& setting) { return setting.mode == wire::CombineMode::raw && setting.type == wire::RowType::f32; }

nlohmann::json to_json(const Figures& figures);
nlohmann::json to_json(const Thresholds& thresholds);
/// Fail with the name of what is missing or not a number.
Result<Figures> figures_from_json(const nlohmann::json& json);
Result<Thresholds> thresholds_from_json(const nlohmann::json& json);

}  // namespace linkcpp::gate
