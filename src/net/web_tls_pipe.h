// A web server's TLS around a pipe, from the client's side: what wss:// adds to ws://.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <mutex>

#include "net/layered_pipe.h"
#include "net/web_tls.h"

namespace linkcpp::net {

/// Threads as for any pipe; reading and writing share the TLS state under a lock of its own.
class WebTlsPipe final : public LayeredPipe {
 public:
  WebTlsPipe(std::unique_ptr<Pipe> below, WebTls ssl);

  /// Before all else. Errors as web_tls_refusal() has them; those of the pipe below as they are.
  boost::asio::awaitable<Result<>> handshake(const std::string& host);

  void read_some(std::span<std::byte> into, OnRead then) override;
  Result<bool> try_write(ByteSpan& bytes) override;
  void shutdown_send() override;
  void close() override;
  [[nodiscard]] std::string_view kind() const override { return "tls"; }

 private:
  Result<std::size_t> decrypt(std::span<std::byte> into, bool& ended);
  Result<bool> flush();
  void on_ciphertext(std::span<std::byte> into, OnRead then, const Result<std::size_t>& got);

  mutable std::mutex mutex_;
  WebTls ssl_;
  Bytes input_;  ///< strand only
  bool closing_ = false;
};

}  // namespace linkcpp::net
