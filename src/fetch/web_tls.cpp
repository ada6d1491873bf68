// TLS to public web servers.
#include "net/web_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "fetch/stream.h"

namespace linkcpp::fetch {
namespace {

class WebStream final : public Stream {
 public:
  WebStream(std::unique_ptr<Socket> socket, net::WebTls ssl) : socket_(std::move(socket)), ssl_(std::move(ssl)) {}

  Result<> handshake(const std::string& host, Milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    for (;;) {
      ERR_clear_error();
      const int rc = SSL_connect(ssl_.get());
      if (rc == 1) return {};
      const int why = SSL_get_error(ssl_.get(), rc);
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) return std::unexpected(net::web_tls_refusal(ssl_.get(), host));
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
        return fail(ErrorKind::unavailable, "the TLS connection broke: {}", net::web_tls_reason());
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
        return fail(ErrorKind::unavailable, "the TLS connection broke: {}", net::web_tls_reason());
      if (auto ready = socket_->wait(why == SSL_ERROR_WANT_WRITE, limit); !ready) return ready;
    }
    return {};
  }
  [[nodiscard]] Socket& socket() override { return *socket_; }

 private:
  std::unique_ptr<Socket> socket_;
  net::WebTls ssl_;
};

}  // namespace

Result<std::unique_ptr<Stream>> web_stream(std::unique_ptr<Socket> socket, const std::string& host, Milliseconds limit) {
  auto ssl = net::make_web_tls(host);
  if (!ssl) return pass(ssl);
  SSL_set_fd(ssl->get(), socket->fd());
  auto stream = std::make_unique<WebStream>(std::move(socket), std::move(*ssl));
  if (auto done = stream->handshake(host, limit); !done) return pass(done);
  return stream;
}

}  // namespace linkcpp::fetch
