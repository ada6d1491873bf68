#include "net/quic_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "net/tls_identity.h"

namespace linkcpp::net {
namespace {

constexpr std::string_view alpn = "\x09linkcpp/2";
constexpr long max_sessions = 4096;        // that a server remembers
constexpr long session_lifetime_s = 3600;  // of a ticket
constexpr std::size_t max_kept = 4;        // tickets of one address
constexpr std::size_t max_kept_addresses = 1024;

int user_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

QuicTlsUser* user_of(const SSL* ssl) { return static_cast<QuicTlsUser*>(SSL_get_ex_data(ssl, user_index())); }

/// Replaces OpenSSL's chain verification. That the peer holds the private key is proved by TLS itself.
int verify(X509_STORE_CTX* store, void*) {
  const auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  QuicTlsUser* user = user_of(ssl);
  const bool accepted = user != nullptr && user->check_key(ed25519_key(X509_STORE_CTX_get0_cert(store)));
  X509_STORE_CTX_set_error(store, accepted ? X509_V_OK : X509_V_ERR_CERT_REJECTED);
  return accepted ? 1 : 0;
}

int select_protocol(SSL*, const unsigned char** out, unsigned char* length, const unsigned char* in, unsigned n, void*) {
  const auto* ours = reinterpret_cast<const unsigned char*>(alpn.data());
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, length, ours, static_cast<unsigned>(alpn.size()), in, n) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

int on_ticket(SSL* ssl, SSL_SESSION* session) {
  QuicTlsUser* user = user_of(ssl);
  if (user == nullptr) return 0;
  user->got_ticket(std::shared_ptr<SSL_SESSION>(session, SSL_SESSION_free));
  return 1;  // it is ours now
}

Result<std::shared_ptr<SSL_CTX>> make_context(const Credentials& credentials) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (!context) return tls_broken("start TLS for QUIC");
  if (auto configured = configure_tls(context.get(), credentials.identity); !configured) return pass(configured);
  SSL_CTX_set_cert_verify_callback(context.get(), verify, nullptr);
  return context;
}

}  // namespace

void QuicTlsUser::attach(SSL* ssl, QuicTlsUser* user) { SSL_set_ex_data(ssl, user_index(), user); }

Result<std::shared_ptr<QuicTls>> QuicTls::create(const Credentials& credentials) {
  std::shared_ptr<QuicTls> result(new QuicTls);
  result->expected_peer_ = credentials.expected_peer;
  auto client = make_context(credentials);
  if (!client) return pass(client);
  auto server = make_context(credentials);
  if (!server) return pass(server);
  result->client_ = std::move(*client);
  result->server_ = std::move(*server);

  SSL_CTX_set_session_cache_mode(result->client_.get(), SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(result->client_.get(), on_ticket);

  // SSL_OP_NO_TICKET, which is set, means tickets whose state stays here; OpenSSL then uses each once (RFC 8446, 8.1).
  SSL_CTX* context = result->server_.get();
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_SERVER);
  SSL_CTX_sess_set_cache_size(context, max_sessions);
  SSL_CTX_set_timeout(context, session_lifetime_s);
  const auto* id = reinterpret_cast<const unsigned char*>(alpn.data());
  if (SSL_CTX_set_session_id_context(context, id, static_cast<unsigned>(alpn.size())) != 1 ||
      SSL_CTX_set_max_early_data(context, UINT32_MAX) != 1) {  // QUIC's own limits count, RFC 9001, 4.6.1
    return tls_broken("set up resumption");
  }
  SSL_CTX_set_alpn_select_cb(context, select_protocol, nullptr);
  return result;
}

Result<SslPtr> QuicTls::server() {
  ERR_clear_error();
  SslPtr ssl(SSL_new(server_.get()), SSL_free);
  if (!ssl) return tls_broken("start a QUIC connection");
  SSL_set_accept_state(ssl.get());
  return ssl;
}

Result<SslPtr> QuicTls::client(const Resumption* resume) {
  ERR_clear_error();
  SslPtr ssl(SSL_new(client_.get()), SSL_free);
  if (!ssl ||
      SSL_set_alpn_protos(ssl.get(), reinterpret_cast<const unsigned char*>(alpn.data()), static_cast<unsigned>(alpn.size())) != 0) {
    return tls_broken("start a QUIC connection");
  }
  SSL_set_connect_state(ssl.get());
  if (resume != nullptr && resume->session) SSL_set_session(ssl.get(), resume->session.get());
  return ssl;
}

void QuicTls::allow_early_data(SSL* ssl) {
  const SSL_SESSION* session = SSL_get_session(ssl);
  const bool server = SSL_is_server(ssl) == 1;
  if (server || (session != nullptr && SSL_SESSION_get_max_early_data(session) > 0)) SSL_set_quic_tls_early_data_enabled(ssl, 1);
}

std::optional<Resumption> QuicTls::take(const std::string& address) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(address);
  if (found == kept_.end() || found->second.empty()) return std::nullopt;
  Resumption newest = std::move(found->second.back());
  found->second.pop_back();
  return newest;
}

void QuicTls::keep(const std::string& address, Resumption resumption) {
  const std::lock_guard lock(mutex_);
  if (kept_.size() >= max_kept_addresses && !kept_.contains(address)) kept_.erase(kept_.begin());
  auto& list = kept_[address];
  if (list.size() >= max_kept) list.erase(list.begin());
  list.push_back(std::move(resumption));
}

}  // namespace linkcpp::net
