// TLS to public web servers.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstdlib>

#include "fetch/stream.h"

namespace linkcpp::fetch {
namespace {

using Ssl = std::unique_ptr<SSL, void (*)(SSL*)>;

std::string tls_reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  return text == nullptr ? "the peer closed the connection" : text;
}

class WebStream final : public Stream {
 public:
  WebStream(std::unique_ptr<Socket> socket, Ssl ssl) : socket_(std::move(socket)), ssl_(std::move(ssl)) {}

  Result<> handshake(const std::string& host, Milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    for (;;) {
      ERR_clear_error();
      const int rc = SSL_connect(ssl_.get());
      if (rc == 1) return {};
      const int why = SSL_get_error(ssl_.get(), rc);
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) return refused(host);
      const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
      if (left.count() <= 0) return fail(ErrorKind::timeout, "the TLS handshake with {} took more than {} ms", host, limit.count());
      if (auto ready = socket_->wait(why == SSL_ERROR_WANT_WRITE, left); !ready) return ready;
    }
  }

  Result<std::size_t> read(std::span<std::byte> into, Milliseconds limit) override {
    std::size_t total = 0;
    for (;;) {
      ERR_clear_error();
      std::size_t n = 0;
      const int rc = SSL_read_ex(ssl_.get(), into.data() + total, into.size() - total, &n);
      if (rc == 1) {
        total += n;
        // What has arrived already is taken along: records are only 16 KiB.
        if (total < into.size() && SSL_has_pending(ssl_.get()) == 1) continue;
        return total;
      }
      const int why = SSL_get_error(ssl_.get(), rc);
      if (total > 0) return total;
      if (why == SSL_ERROR_ZERO_RETURN) return 0;
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
        return fail(ErrorKind::unavailable, "the TLS connection broke: {}", tls_reason());
      if (auto ready = socket_->wait(why == SSL_ERROR_WANT_WRITE, limit); !ready) return pass(ready);
    }
  }

  Result<> write(ByteSpan bytes, Milliseconds limit) override {
    while (!bytes.empty()) {
      ERR_clear_error();
      std::size_t n = 0;
      const int rc = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n);
      if (rc == 1) {
        bytes = bytes.subspan(n);
        continue;
      }
      const int why = SSL_get_error(ssl_.get(), rc);
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
        return fail(ErrorKind::unavailable, "the TLS connection broke: {}", tls_reason());
      if (auto ready = socket_->wait(why == SSL_ERROR_WANT_WRITE, limit); !ready) return ready;
    }
    return {};
  }
  [[nodiscard]] Socket& socket() override { return *socket_; }

 private:
  Result<> refused(const std::string& host) {
    const long verdict = SSL_get_verify_result(ssl_.get());
    if (verdict != X509_V_OK) {
      ERR_clear_error();
      return fail(ErrorKind::unauthorized, "the certificate of {} is not trusted: {}; SSL_CERT_FILE names other authorities", host,
                  X509_verify_cert_error_string(verdict));
    }
    return fail(ErrorKind::unavailable, "the TLS handshake with {} failed: {}", host, tls_reason());
  }

  std::unique_ptr<Socket> socket_;
  Ssl ssl_;
};

/// Made for each connection: connections are few and live long, and no global is needed.
Result<Ssl> client_of(const std::string& host, int fd) {
  ERR_clear_error();
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (!context) return fail(ErrorKind::internal, "OpenSSL cannot start TLS: {}", tls_reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), 128u << 10);
  SSL_CTX_set_default_verify_paths(context.get());  // honours SSL_CERT_FILE and SSL_CERT_DIR
  Ssl ssl(SSL_new(context.get()), SSL_free);
  if (!ssl) return fail(ErrorKind::internal, "OpenSSL cannot start TLS: {}", tls_reason());
  SSL_set_fd(ssl.get(), fd);
  SSL_set_mode(ssl.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
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

}  // namespace

Result<std::unique_ptr<Stream>> web_stream(std::unique_ptr<Socket> socket, const std::string& host, Milliseconds limit) {
  auto ssl = client_of(host, socket->fd());
  if (!ssl) return pass(ssl);
  auto stream = std::make_unique<WebStream>(std::move(socket), std::move(*ssl));
  if (auto done = stream->handshake(host, limit); !done) return pass(done);
  return stream;
}

}  // namespace linkcpp::fetch
