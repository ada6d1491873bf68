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

std::optional<Bytes> from_digits(std::string_view text, std::string_view alphabet, unsigned bits) {
  Bytes bytes;
  bytes.reserve(text.size() * bits / 8);
  unsigned pending = 0, held = 0;
  for (const char c : text) {
    const std::size_t digit = alphabet.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    pending = (pending << bits | static_cast<unsigned>(digit)) & 0xFFFF;
    held += bits;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<std::byte>(pending >> held & 0xFF));
  }
  if (held >= bits || (pending & ((1U << held) - 1)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace

std::string base32(ByteSpan bytes) { return to_digits(bytes, base32_alphabet, 5); }
std::string base64url(ByteSpan bytes) { return to_digits(bytes, base64_alphabet, 6); }

std::optional<Bytes> from_base32(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return from_digits(lower, base32_alphabet, 5);
}

std::optional<Bytes> from_base64url(std::string_view text) { return from_digits(text, base64_alphabet, 6); }

}  // namespace linkcpp::net
