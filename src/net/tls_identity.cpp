#include "net/tls_identity.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_AES
#define HWCAP_AES (1 << 3)
#endif
#endif

namespace linkcpp::net {
namespace {

constexpr std::size_t max_peer_certificate = 8192;

bool has_aes_instructions() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("aes") != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  return false;
#endif
}

}  // namespace

std::string openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

std::unexpected<Error> tls_broken(const char* what) {
  return fail(ErrorKind::internal, "OpenSSL cannot {}: {}; is its installation complete?", what, openssl_reason());
}

Result<> configure_tls(SSL_CTX* context, const Identity& identity) {
  const char* suites = has_aes_instructions() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                              : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
  const bool set = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 && SSL_CTX_set_ciphersuites(context, suites) == 1 &&
                   SSL_CTX_set1_sigalgs_list(context, "ed25519") == 1 && SSL_CTX_set1_client_sigalgs_list(context, "ed25519") == 1 &&
                   SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_use_certificate(context, identity.certificate()) == 1 &&
                   SSL_CTX_use_PrivateKey(context, identity.private_key()) == 1;
  if (!set) return tls_broken("set up TLS 1.3");
  // A client without AES instructions that puts ChaCha first gets it.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                   SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(context, 0);
  SSL_CTX_set_recv_max_early_data(context, 0);
  SSL_CTX_set_max_cert_list(context, max_peer_certificate);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

std::optional<PeerKey> ed25519_key(const X509* certificate) {
  EVP_PKEY* key = certificate == nullptr ? nullptr : X509_get0_pubkey(certificate);
  PeerKey result;
  std::size_t length = result.bytes.size();
  if (key == nullptr || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519 || EVP_PKEY_get_raw_public_key(key, result.bytes.data(), &length) != 1 ||
      length != result.bytes.size()) {
    return std::nullopt;
  }
  return result;
}

Result<std::array<std::uint8_t, 32>> export_key(SSL* ssl, std::string_view label) {
  ERR_clear_error();
  std::array<std::uint8_t, 32> key{};
  if (SSL_export_keying_material(ssl, key.data(), key.size(), label.data(), label.size(), nullptr, 0, 0) != 1) {
    return tls_broken("export keying material");
  }
  return key;
}

Error wrong_peer_error(const PeerKey& found, const PeerKey& expected) {
  return {ErrorKind::unauthorized, std::format("the peer is not the backbone that the join token names: its key is {}, expected {}; ask "
                                               "the backbone's operator for `linkcpp token`",
                                               short_name(found), short_name(expected))};
}

Error bad_certificate_error() { return {ErrorKind::unauthorized, "the peer's certificate holds no Ed25519 key: it is not a linkcpp node"}; }

Error key_rejected_error() { return {ErrorKind::unauthorized, "the peer rejected this node's key: its join token names another backbone"}; }

}  // namespace linkcpp::net
