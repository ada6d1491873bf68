#include "gate/verdict.h"

#include <array>
#include <cmath>
#include <format>
#include <limits>

namespace linkcpp::gate {
namespace {

/// A number with its name in JSON.
template <class T>
struct Field {
  const char* name;
  double T::* member;
};
constexpr std::array figure_fields{Field{"max_abs_diff", &Figures::max_abs_diff},
                                   Field{"mean_kld", &Figures::mean_kld},
                                   Field{"max_kld", &Figures::max_kld},
                                   Field{"mean_cosine", &Figures::mean_cosine},
                                   Field{"worst_cosine", &Figures::worst_cosine},
                                   Field{"argmax_agreement", &Figures::argmax_agreement},
                                   Field{"perplexity_ratio", &Figures::perplexity_ratio}};
constexpr std::array threshold_fields{Field{"argmax_agreement", &Thresholds::argmax_agreement},
                                      Field{"mean_cosine", &Thresholds::mean_cosine}, Field{"mean_kld", &Thresholds::mean_kld},
                                      Field{"perplexity_ratio", &Thresholds::perplexity_ratio}};

/// JSON has no infinity: null stands for it.
nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

Result<double> number_of(const nlohmann::json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  if (!json.is_object() || found == json.end()) return fail(ErrorKind::invalid_input, "'{}' is missing", name);
  if (found->is_null()) return std::numeric_limits<double>::infinity();
  if (!found->is_number()) return fail(ErrorKind::invalid_input, "'{}' is not a number", name);
  return found->get<double>();
}

Result<std::uint64_t> count_of(const nlohmann::json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  if (!json.is_object() || found == json.end() || !found->is_number_unsigned())
    return fail(ErrorKind::invalid_input, "'{}' is missing or not a count", name);
  return found->get<std::uint64_t>();
}

template <class T, std::size_t N>
Result<T> read_fields(const nlohmann::json& json, const std::array<Field<T>, N>& fields) {
  T result;
  for (const auto& field : fields) {
    auto value = number_of(json, field.name);
    if (!value) return pass(value);
    result.*field.member = *value;
  }
  return result;
}

}  // namespace

std::string misses(const Figures& figures, const Thresholds& thresholds) {
  std::string text;
  const auto demand = [&text](bool kept, const std::string& sentence) {
    if (!kept) text += (text.empty() ? "" : ", ") + sentence;
  };
  // Written so that NaN misses.
  demand(figures.rows > 0, "nothing was compared");
  demand(figures.argmax_agreement >= thresholds.argmax_agreement,
         std::format("same top token in {:.3f} %, at least {:.3f} % wanted", 100 * figures.argmax_agreement,
                     100 * thresholds.argmax_agreement));
  demand(figures.mean_cosine >= thresholds.mean_cosine,
         std::format("mean cosine {:.6f}, at least {:.6f} wanted", figures.mean_cosine, thresholds.mean_cosine));
  demand(figures.mean_kld <= thresholds.mean_kld,
         std::format("mean KLD {:.2e}, at most {:.2e} wanted", figures.mean_kld, thresholds.mean_kld));
  demand(figures.perplexity_ratio <= thresholds.perplexity_ratio,
         std::format("perplexity ratio {:.5f}, at most {:.5f} wanted", figures.perplexity_ratio, thresholds.perplexity_ratio));
  return text;
}

std::string to_string(const Setting& setting) { return std::format("{} {}", wire::to_string(setting.mode), wire::to_string(setting.type)); }

nlohmann::json to_json(const Figures& figures) {
  nlohmann::json json{{"rows", figures.rows}, {"different_rows", figures.different_rows}};
  for (const auto& field : figure_fields) json[field.name] = number(figures.*field.member);
  return json;
}

nlohmann::json to_json(const Thresholds& thresholds) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& field : threshold_fields) json[field.name] = number(thresholds.*field.member);
  return json;
}

Result<Figures> figures_from_json(const nlohmann::json& json) {
  auto figures = read_fields(json, figure_fields);
  if (!figures) return figures;
  auto rows = count_of(json, "rows"), different = count_of(json, "different_rows");
  if (!rows) return pass(rows);
  if (!different) return pass(different);
  figures->rows = *rows;
  figures->different_rows = *different;
  return figures;
}

Result<Thresholds> thresholds_from_json(const nlohmann::json& json) { return read_fields(json, threshold_fields); }

}  // namespace linkcpp::gate
