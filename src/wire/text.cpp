#include "wire/text.h"

#include <cstdint>

namespace linkcpp::wire {
namespace {

/// Bytes of the well-formed character that a non-empty text begins with (RFC 3629: no overlong forms, no surrogates); 0 if there is none.
std::size_t character_bytes(std::string_view text) {
  const auto at = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = at(0);
  if (first < 0x80) return 1;
  const std::size_t n = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (n == 0 || text.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  const std::uint8_t second = at(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second >= 0xA0;
  const bool beyond = first == 0xF4 && second >= 0x90;
  return overlong || surrogate || beyond ? 0 : n;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<std::uint8_t>(character[0]);
  return first < 0x20 || first == 0x7F || (first == 0xC2 && static_cast<std::uint8_t>(character[1]) < 0xA0);
}

}  // namespace

bool is_plain_text(std::string_view text) {
  while (!text.empty()) {
    const std::size_t n = character_bytes(text);
    if (n == 0 || is_control(text.substr(0, n))) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::string plain_text(std::string_view text, std::size_t max_bytes) {
  std::string plain;
  while (!text.empty()) {
    const std::size_t n = character_bytes(text);
    const std::string_view character = n == 0 || is_control(text.substr(0, n)) ? "?" : text.substr(0, n);
    if (plain.size() + character.size() > max_bytes) break;
    plain += character;
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return plain;
}

}  // namespace linkcpp::wire
