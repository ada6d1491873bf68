#include "net/web_tls_pipe.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <climits>

#include "net/pipe_io.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

constexpr std::size_t ciphertext_chunk = 64u << 10;
/// Plaintext that is encrypted before it is written.
constexpr std::size_t plaintext_chunk = 64u << 10;

BIO* input_of(SSL* ssl) { return SSL_get_rbio(ssl); }
BIO* output_of(SSL* ssl) { return SSL_get_wbio(ssl); }

std::unexpected<Error> tls_broke() { return fail(ErrorKind::unavailable, "the TLS connection broke: {}", web_tls_reason()); }

}  // namespace

WebTlsPipe::WebTlsPipe(std::unique_ptr<Pipe> below, WebTls ssl)
    : LayeredPipe(std::move(below)), ssl_(std::move(ssl)), input_(ciphertext_chunk) {
  BIO* const in = BIO_new(BIO_s_mem());
  BIO_set_mem_eof_return(in, -1);  // empty means: later
  SSL_set_bio(ssl_.get(), in, BIO_new(BIO_s_mem()));
  SSL_set_read_ahead(ssl_.get(), 0);  // the bytes are in memory already
}

asio::awaitable<Result<>> WebTlsPipe::handshake(const std::string& host) {
  for (;;) {
    ERR_clear_error();
    const int rc = SSL_do_handshake(ssl_.get());
    std::optional<Error> refused;
    if (rc != 1 && SSL_get_error(ssl_.get(), rc) != SSL_ERROR_WANT_READ) refused = web_tls_refusal(ssl_.get(), host);
    for (;;) {  // after an error: the alert that tells the server
      const auto gone = flush();
      if (!gone && !refused) co_return std::unexpected(gone.error());
      if (!gone || *gone) break;
      if (auto ready = co_await writable(*below_); !ready) co_return ready;
    }
    if (refused) co_return std::unexpected(std::move(*refused));
    if (rc == 1) co_return Result<>();
    const auto got = co_await net::read_some(*below_, input_);
    if (!got) co_return std::unexpected(got.error());
    if (*got == 0) co_return fail(ErrorKind::unavailable, "{} closed the connection during its TLS handshake", host);
    BIO_write(input_of(ssl_.get()), input_.data(), static_cast<int>(*got));
  }
}

/// Under the lock. As many bytes as there are, up to the size of `into`.
Result<std::size_t> WebTlsPipe::decrypt(std::span<std::byte> into, bool& ended) {
  std::size_t total = 0;
  while (total < into.size()) {
    ERR_clear_error();
    std::size_t n = 0;
    const int rc = SSL_read_ex(ssl_.get(), into.data() + total, into.size() - total, &n);
    if (rc == 1) {
      total += n;
      continue;
    }
    const int why = SSL_get_error(ssl_.get(), rc);
    if (why == SSL_ERROR_WANT_READ) break;
    ended = why == SSL_ERROR_ZERO_RETURN;
    if (ended || total > 0) break;  // an error is met again
    return tls_broke();
  }
  return total;
}

void WebTlsPipe::read_some(std::span<std::byte> into, OnRead then) {
  Result<std::size_t> got;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    got = decrypt(into, ended);
    (void)flush();  // answers of the TLS layer itself; an error shows in the reading
  }
  if (got && *got == 0 && !ended) {
    return below_->read_some(input_, [this, into, then = std::move(then)](const Result<std::size_t>& came) mutable {
      on_ciphertext(into, std::move(then), came);
    });
  }
  asio::post(strand(), [then = std::move(then), got = std::move(got)]() mutable { then(std::move(got)); });
}

void WebTlsPipe::on_ciphertext(std::span<std::byte> into, OnRead then, const Result<std::size_t>& got) {
  if (!got || *got == 0) return then(got);
  Result<std::size_t> plain;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    BIO_write(input_of(ssl_.get()), input_.data(), static_cast<int>(*got));
    plain = decrypt(into, ended);
  }
  if (plain && *plain == 0 && !ended) return read_some(into, std::move(then));
  then(std::move(plain));
}

/// Under the lock. True if no ciphertext waits.
Result<bool> WebTlsPipe::flush() {
  for (;;) {
    if (output_.empty()) {
      char* data = nullptr;
      const long n = BIO_get_mem_data(output_of(ssl_.get()), &data);
      if (n <= 0) return true;
      const auto* bytes = reinterpret_cast<const std::byte*>(data);
      output_.assign(bytes, bytes + n);
      BIO_reset(output_of(ssl_.get()));
    }
    const auto gone = write_output();
    if (!gone || !*gone) return gone;
  }
}

Result<bool> WebTlsPipe::try_write(ByteSpan& bytes) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    const auto gone = flush();
    if (!gone || !*gone || bytes.empty()) return gone;
    ERR_clear_error();
    std::size_t n = 0;
    if (SSL_write_ex(ssl_.get(), bytes.data(), std::min(bytes.size(), plaintext_chunk), &n) != 1) return tls_broke();
    bytes = bytes.subspan(n);
  }
}

void WebTlsPipe::shutdown_send() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    (void)flush();
  }
  below_->shutdown_send();
}

void WebTlsPipe::close() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(closing_, true) && SSL_is_init_finished(ssl_.get()) == 1) {
      ERR_clear_error();
      SSL_shutdown(ssl_.get());
      (void)flush();
    }
  }
  below_->close();
}

}  // namespace linkcpp::net
