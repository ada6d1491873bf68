#include "serve/text.h"

#include <algorithm>
#include <format>

namespace linkcpp::serve {

std::string printable(std::string_view text) {
  std::string result(text);
  for (auto& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  return result;
}

std::string human_bytes(double bytes) {
  if (bytes < 1000) return std::format("{:.0f} B", bytes);
  if (bytes < 1e6) return std::format("{:.1f} KB", bytes / 1e3);
  if (bytes < 1e9) return std::format("{:.1f} MB", bytes / 1e6);
  return std::format("{:.2f} GB", bytes / 1e9);
}

std::string human_time_us(double microseconds) {
  if (microseconds < 1000) return std::format("{:.0f} us", microseconds);
  if (microseconds < 1e6) return std::format("{:.2f} ms", microseconds / 1e3);
  return std::format("{:.1f} s", microseconds / 1e6);
}

std::string shell_quote(std::string_view argument) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+";
  if (!argument.empty() && argument.find_first_not_of(plain) == std::string_view::npos) return std::string(argument);
  std::string result = "'";
  for (char c : argument) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c;
    }
  }
  return result + "'";
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string result;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      result += i == 0 ? std::format("{:<{}}", row[i], widths[i]) : std::format("  {:>{}}", row[i], widths[i]);
    }
    result += '\n';
  }
  return result;
}

}  // namespace linkcpp::serve
