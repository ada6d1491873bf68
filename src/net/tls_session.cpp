#include "net/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <cassert>
#include <climits>
#include <string>

#include "net/tls_identity.h"

namespace linkcpp::net {
namespace {

constexpr std::uint8_t tls_handshake_record = 22;

}  // namespace

/// OpenSSL's callbacks.
struct TlsHooks {
  static TlsSession* session(BIO* bio) { return static_cast<TlsSession*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* data, std::size_t n, std::size_t* written) {
    const auto* from = reinterpret_cast<const std::byte*>(data);
    Bytes& out = session(bio)->output_;
    out.insert(out.end(), from, from + n);
    *written = n;
    return 1;
  }

  static int read(BIO* bio, char* data, std::size_t n, std::size_t* got) {
    ByteSpan& in = session(bio)->input_;
    BIO_clear_retry_flags(bio);
    *got = std::min(n, in.size());
    if (*got == 0) {
      BIO_set_retry_read(bio);
      return 0;
    }
    std::memcpy(data, in.data(), *got);
    in = in.subspan(*got);
    return 1;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static BIO_METHOD* method() {
    struct Deleter {
      void operator()(BIO_METHOD* m) const { BIO_meth_free(m); }
    };
    static const std::unique_ptr<BIO_METHOD, Deleter> method = [] {
      std::unique_ptr<BIO_METHOD, Deleter> m(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "linkcpp buffers"));
      if (m) {
        BIO_meth_set_write_ex(m.get(), write);
        BIO_meth_set_read_ex(m.get(), read);
        BIO_meth_set_ctrl(m.get(), control);
        BIO_meth_set_create(m.get(), [](BIO* bio) {
          BIO_set_init(bio, 1);
          return 1;
        });
      }
      return m;
    }();
    return method.get();
  }

  /// Replaces OpenSSL's chain verification. That the peer holds the private key is proved by TLS itself.
  static int verify(X509_STORE_CTX* store, void*) {
    const auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* self = static_cast<TlsSession*>(SSL_get_app_data(ssl));
    const X509* certificate = X509_STORE_CTX_get0_cert(store);
    const auto key = ed25519_key(certificate);
    self->peer_ = key.value_or(PeerKey{});
    if (!key) {
      self->bad_certificate_ = true;
    } else if (self->context_->expected_peer() && *self->context_->expected_peer() != self->peer_) {
      self->wrong_peer_ = true;
    } else {
      X509_STORE_CTX_set_error(store, X509_V_OK);
      return 1;
    }
    X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
    return 0;
  }
};

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const Identity& identity, const std::optional<PeerKey>& expected_peer) {
  ERR_clear_error();
  std::shared_ptr<TlsContext> result(new TlsContext);
  result->expected_peer_ = expected_peer;
  result->context_ = std::shared_ptr<SSL_CTX>(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  SSL_CTX* context = result->context_.get();
  if (context == nullptr) return tls_broken("start TLS");
  if (auto configured = configure_tls(context, identity); !configured) return pass(configured);
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_cert_verify_callback(context, TlsHooks::verify, nullptr);
  return result;
}

Result<std::unique_ptr<TlsSession>> TlsSession::create(std::shared_ptr<const TlsContext> context, TlsSide side) {
  ERR_clear_error();
  std::unique_ptr<TlsSession> session(new TlsSession);
  session->context_ = std::move(context);
  session->ssl_ = {SSL_new(session->context_->get()), SSL_free};
  SSL* ssl = session->ssl_.get();
  BIO* bio = TlsHooks::method() == nullptr ? nullptr : BIO_new(TlsHooks::method());
  if (ssl == nullptr || bio == nullptr) {
    BIO_free(bio);
    return tls_broken("start a TLS connection");
  }
  BIO_set_data(bio, session.get());
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, session.get());
  side == TlsSide::server ? SSL_set_accept_state(ssl) : SSL_set_connect_state(ssl);
  return session;
}

TlsSession::~TlsSession() = default;

void TlsSession::feed(ByteSpan ciphertext) {
  assert(input_.empty());
  input_ = ciphertext;
}

Result<bool> TlsSession::handshake() {
  if (!started_ && !input_.empty()) {
    started_ = true;
    if (std::to_integer<std::uint8_t>(input_[0]) != tls_handshake_record) {
      return fail(ErrorKind::invalid_input, "the peer does not speak TLS: is it a linkcpp node, and is the port right?");
    }
  }
  ERR_clear_error();
  const int rc = SSL_do_handshake(ssl_.get());
  if (rc == 1) return true;
  if (SSL_get_error(ssl_.get(), rc) == SSL_ERROR_WANT_READ) return false;
  return std::unexpected(failure("TLS handshake"));
}

Error TlsSession::failure(const char* during) {
  if (wrong_peer_) {
    ERR_clear_error();
    return wrong_peer_error(peer_, *context_->expected_peer());
  }
  if (bad_certificate_) {
    ERR_clear_error();
    return bad_certificate_error();
  }
  const int code = ERR_GET_REASON(ERR_peek_last_error());
  if (code == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE) {
    ERR_clear_error();
    return key_rejected_error();
  }
  if (code == SSL_R_UNSUPPORTED_PROTOCOL || code == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION) {
    ERR_clear_error();
    return {ErrorKind::incompatible, "the peer does not offer TLS 1.3: it is not a linkcpp node"};
  }
  return {ErrorKind::invalid_input, std::format("{} failed: {}", during, openssl_reason())};
}

Result<std::size_t> TlsSession::read(std::span<std::byte> into) {
  if (closed_) return 0;
  ERR_clear_error();
  std::size_t n = 0;
  const int rc = SSL_read_ex(ssl_.get(), into.data(), into.size(), &n);
  if (rc == 1) return n;
  switch (SSL_get_error(ssl_.get(), rc)) {
    case SSL_ERROR_WANT_READ:
      return 0;
    case SSL_ERROR_ZERO_RETURN:
      closed_ = true;
      return 0;
    default:
      return std::unexpected(failure("decryption"));
  }
}

Result<> TlsSession::write(ByteSpan plaintext) {
  while (!plaintext.empty()) {
    ERR_clear_error();
    std::size_t n = 0;
    if (SSL_write_ex(ssl_.get(), plaintext.data(), plaintext.size(), &n) != 1) return std::unexpected(failure("encryption"));
    plaintext = plaintext.subspan(n);
  }
  return {};
}

void TlsSession::shutdown() {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

Result<TlsSession::ExportedKey> TlsSession::export_key(std::string_view label) const { return net::export_key(ssl_.get(), label); }

}  // namespace linkcpp::net
