// What TLS over TCP and TLS inside QUIC have in common: version, suites, certificates, and how a peer's key is found.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "net/identity.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // OpenSSL's SSL
struct x509_st;     // OpenSSL's X509

namespace linkcpp::net {

/// Sets TLS 1.3 with the node's own Ed25519 certificate on both sides; the peer's is demanded, and judged by a callback that the caller
/// sets. No tickets, no early data; a caller that wants them says so afterwards.
Result<> configure_tls(ssl_ctx_st* context, const Identity& identity);

/// The raw key of an Ed25519 certificate; none for any other, or for no certificate.
std::optional<PeerKey> ed25519_key(const x509_st* certificate);

/// 32 bytes of keying material of one connection (RFC 8446, 7.5).
Result<std::array<std::uint8_t, 32>> export_key(ssl_st* ssl, std::string_view label);

/// The last entry of OpenSSL's error queue of this thread, which is emptied.
std::string openssl_reason();

/// "OpenSSL cannot …" with the reason.
std::unexpected<Error> tls_broken(const char* what);

/// Errors that both transports tell in the same words.
Error wrong_peer_error(const PeerKey& found, const PeerKey& expected);
Error bad_certificate_error();
/// The peer's alert says that it did not accept our certificate.
Error key_rejected_error();

}  // namespace linkcpp::net
