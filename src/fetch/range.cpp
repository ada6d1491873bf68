#include "fetch/range.h"

#include <algorithm>
#include <charconv>

namespace linkcpp::fetch {
namespace {

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

RangeVerdict parse_range(std::string_view header, std::uint64_t size, ByteRange& range) {
  range = {0, size};
  constexpr std::string_view unit = "bytes=";
  if (!header.starts_with(unit)) return RangeVerdict::whole;
  header.remove_prefix(unit.size());
  const std::size_t dash = header.find('-');
  if (dash == std::string_view::npos) return RangeVerdict::whole;
  const auto first = number(header.substr(0, dash)), last = number(header.substr(dash + 1));
  if (dash == 0) {  // the last so many
    if (!last) return RangeVerdict::whole;
    if (*last == 0 || size == 0) return RangeVerdict::unsatisfiable;
    range.bytes = std::min(*last, size);
    range.offset = size - range.bytes;
    return RangeVerdict::part;
  }
  if (!first || (!last && dash + 1 != header.size()) || (last && *last < *first)) return RangeVerdict::whole;
  if (*first >= size) return RangeVerdict::unsatisfiable;
  range.offset = *first;
  range.bytes = (last ? std::min(*last, size - 1) : size - 1) - *first + 1;
  return RangeVerdict::part;
}

}  // namespace linkcpp::fetch
