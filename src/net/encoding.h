// Base32 and base64url (RFC 4648), without padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace linkcpp::net {

/// Lower-case base32.
std::string base32(ByteSpan bytes);
std::string base64url(ByteSpan bytes);
/// None if a character is outside the alphabet (upper case is taken too) or the last group cannot be.
std::optional<Bytes> from_base32(std::string_view text);
/// None if a character is outside the alphabet or the last group cannot be. Unused low bits of the last character must be zero.
std::optional<Bytes> from_base64url(std::string_view text);

}  // namespace linkcpp::net
