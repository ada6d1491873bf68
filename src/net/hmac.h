// HMAC-SHA256 (RFC 2104).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"

namespace linkcpp::net {

using Hmac = std::array<std::uint8_t, 32>;

/// None if OpenSSL cannot compute it, which only a broken installation explains.
std::optional<Hmac> hmac_sha256(std::span<const std::uint8_t> key, ByteSpan message);

}  // namespace linkcpp::net
