// The proof of the join token's secret, bound to one TLS connection and one key.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/error.h"
#include "net/tls_session.h"
#include "net/token.h"

namespace linkcpp::net {

inline constexpr std::string_view auth_exporter_label = "EXPORTER-linkcpp-auth";

/// Who makes the proof. The byte keeps a proof from being sent back to its maker.
enum class Role : std::uint8_t { worker = 'W', backbone = 'B' };

/// Body of the `auth` frame.
using Proof = std::array<std::uint8_t, 32>;

/// HMAC-SHA256(secret, "linkcpp auth v1" | role byte | exported key | public key of the prover).
Result<Proof> make_proof(const Secret& secret, Role prover, const TlsSession::ExportedKey& exported, const PeerKey& prover_key);
/// Compares in constant time.
bool check_proof(ByteSpan received, const Proof& expected);

}  // namespace linkcpp::net
