// Ed25519 signatures (RFC 8032) of a node over what it vouches for.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "net/identity.h"

namespace linkcpp::net {

using Signature = std::array<std::uint8_t, 64>;

/// Fails with `internal` only.
Result<Signature> sign(const Identity& identity, ByteSpan message);
/// Whether `signature` is that of `key` over exactly this message.
bool is_signed_by(const PeerKey& key, ByteSpan message, const Signature& signature);

}  // namespace linkcpp::net
