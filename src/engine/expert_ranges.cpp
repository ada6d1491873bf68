// The little language of --experts.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "engine/expert_host.h"

namespace linkcpp::engine {
namespace {

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "3" or "3-7".
std::optional<std::pair<std::uint32_t, std::uint32_t>> span_of(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = number(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
  if (!first || !last) return std::nullopt;
  return std::pair(*first, *last);
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

/// Cuts the next part off `text`, up to `separator`.
std::string_view next_part(std::string_view& text, char separator) {
  const auto at = text.find(separator);
  const auto part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return trimmed(part);
}

class Parser {
 public:
  explicit Parser(std::uint32_t n_expert) : n_expert_(n_expert) {}

  /// "all", "0-3,8-11", "2/3", or one of them behind "L0-3:".
  Result<> group(std::string_view text) {
    ExpertRange layers;
    if (text.starts_with('L') || text.starts_with('l')) {
      const auto colon = text.find(':');
      const auto span = span_of(text.substr(1, colon == std::string_view::npos ? colon : colon - 1));
      if (colon == std::string_view::npos || !span) return bad(text, "write layers as L4: or L0-3: in front of the experts");
      if (span->first > span->second || span->second >= chunk_experts_bit) return bad(text, "its layers run backwards or are too many");
      layers.first_layer = static_cast<LayerKey>(span->first);
      layers.last_layer = static_cast<LayerKey>(span->second);
      text = trimmed(text.substr(colon + 1));
    }
    bool more = true;
    while (more) {
      more = text.find(',') != std::string_view::npos;
      if (auto parsed = item(next_part(text, ','), layers); !parsed) return parsed;
    }
    return {};
  }

  std::vector<ExpertRange> ranges;

 private:
  Result<> item(std::string_view text, ExpertRange range) {
    if (text == "all") {
      ranges.push_back(range);
      return {};
    }
    if (const auto slash = text.find('/'); slash != std::string_view::npos) return fraction(text, slash, range);
    const auto span = span_of(text);
    if (!span) return bad(text, "write all, 5, 0-11 or 2/3");
    if (span->first > span->second) return bad(text, "it runs backwards");
    if (span->second >= n_expert_) return bad(text, std::format("the model's experts are 0 to {}", n_expert_ - 1));
    range.first = span->first;
    range.last = span->second;
    ranges.push_back(range);
    return {};
  }

  Result<> fraction(std::string_view text, std::size_t slash, ExpertRange range) {
    const auto part = number(text.substr(0, slash)), parts = number(text.substr(slash + 1));
    if (!part || !parts || *part < 1 || *part > *parts) return bad(text, "write the second of three parts as 2/3");
    if (*parts > n_expert_) return bad(text, std::format("the model has only {} experts to divide", n_expert_));
    range.first = static_cast<std::uint32_t>(std::uint64_t{*part - 1} * n_expert_ / *parts);
    range.last = static_cast<std::uint32_t>(std::uint64_t{*part} * n_expert_ / *parts - 1);
    ranges.push_back(range);
    return {};
  }

  static std::unexpected<Error> bad(std::string_view text, std::string_view advice) {
    return fail(ErrorKind::invalid_input, "cannot read '{}' as a set of experts: {}", text, advice);
  }

  std::uint32_t n_expert_;
};

}  // namespace

bool selects(const std::vector<ExpertRange>& ranges, LayerKey key, std::uint32_t expert) {
  const LayerKey block = key & static_cast<LayerKey>(~chunk_experts_bit);
  return std::ranges::any_of(ranges, [&](const ExpertRange& r) {
    return block >= r.first_layer && block <= r.last_layer && expert >= r.first && expert <= r.last;
  });
}

Result<std::vector<ExpertRange>> parse_expert_ranges(const std::string& text, std::uint32_t n_expert) {
  if (n_expert == 0) return fail(ErrorKind::invalid_input, "the model has no experts to choose from");
  Parser parser(n_expert);
  std::string_view rest = text;
  bool more = true;
  while (more) {
    more = rest.find(';') != std::string_view::npos;
    if (auto parsed = parser.group(next_part(rest, ';')); !parsed) return pass(parsed);
  }
  return std::move(parser.ranges);
}

}  // namespace linkcpp::engine
