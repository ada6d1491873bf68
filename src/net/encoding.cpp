#include "net/encoding.h"

namespace linkcpp::net {
namespace {

constexpr std::string_view base32_alphabet = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::string_view base64_alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

std::string to_digits(ByteSpan bytes, std::string_view alphabet, unsigned bits) {
  std::string text;
  text.reserve((bytes.size() * 8 + bits - 1) / bits);
  const unsigned mask = (1U << bits) - 1;
  unsigned pending = 0, held = 0;
  for (const std::byte byte : bytes) {
    pending = (pending << 8 | std::to_integer<unsigned>(byte)) & 0xFFFF;
    for (held += 8; held >= bits; held -= bits) text += alphabet[pending >> (held - bits) & mask];
  }
  if (held > 0) text += alphabet[pending << (bits - held) & mask];
  return text;
}

}  // namespace

std::string base32(ByteSpan bytes) { return to_digits(bytes, base32_alphabet, 5); }
std::string base64url(ByteSpan bytes) { return to_digits(bytes, base64_alphabet, 6); }

std::optional<Bytes> from_base64url(std::string_view text) {
  Bytes bytes;
  bytes.reserve(text.size() * 6 / 8);
  unsigned pending = 0, held = 0;
  for (const char c : text) {
    const std::size_t digit = base64_alphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    pending = (pending << 6 | static_cast<unsigned>(digit)) & 0xFFFF;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<std::byte>(pending >> held & 0xFF));
  }
  if (held >= 6 || (pending & ((1U << held) - 1)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace linkcpp::net
