#include "net/web_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace linkcpp::net {

std::string web_tls_reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  return text == nullptr ? "the peer closed the connection" : text;
}

Error web_tls_refusal(SSL* ssl, const std::string& host) {
  const long verdict = SSL_get_verify_result(ssl);
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    return {ErrorKind::unauthorized, std::format("the certificate of {} is not trusted: {}; SSL_CERT_FILE names other authorities", host,
                                                 X509_verify_cert_error_string(verdict))};
  }
  return {ErrorKind::unavailable, std::format("the TLS handshake with {} failed: {}", host, web_tls_reason())};
}

Result<WebTls> make_web_tls(const std::string& host, const std::string& ca_file) {
  ERR_clear_error();
  const auto broken = [] { return fail(ErrorKind::internal, "OpenSSL cannot start TLS: {}", web_tls_reason()); };
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (!context) return broken();
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), 128u << 10);
  if (ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(context.get());  // honours SSL_CERT_FILE and SSL_CERT_DIR
  } else if (SSL_CTX_load_verify_file(context.get(), ca_file.c_str()) != 1) {
    return fail(ErrorKind::invalid_input, "cannot read trusted authorities from {}: {}; it must be a PEM file", ca_file, web_tls_reason());
  }
  WebTls ssl(SSL_new(context.get()), SSL_free);
  if (!ssl) return broken();
  SSL_set_mode(ssl.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_set_connect_state(ssl.get());
  X509_VERIFY_PARAM* rules = SSL_get0_param(ssl.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str()) != 1) {  // no numeric address: a name
    X509_VERIFY_PARAM_set_hostflags(rules, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (X509_VERIFY_PARAM_set1_host(rules, host.c_str(), host.size()) != 1)
      return fail(ErrorKind::invalid_input, "'{}' is not a host name", host);
    SSL_set_tlsext_host_name(ssl.get(), host.c_str());
  }
  ERR_clear_error();
  return ssl;
}

}  // namespace linkcpp::net
