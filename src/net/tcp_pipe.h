// A TCP connection as a pipe.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "net/pipe.h"
#include "net/socket.h"

namespace linkcpp::net {

/// Writes on the calling thread.
class TcpPipe final : public Pipe {
 public:
  /// The socket is connected; `endpoint` names its far end, `kind` is a literal.
  TcpPipe(Socket socket, std::string endpoint, std::string_view kind = "tcp");

  void read_some(std::span<std::byte> into, OnRead then) override;
  Result<bool> try_write(ByteSpan& bytes) override;
  void wait_writable(OnWritable then) override;
  void shutdown_send() override;
  void close() override;
  void cancel() override;
  [[nodiscard]] const Strand& strand() const override { return strand_; }
  [[nodiscard]] bool unread() const override;
  [[nodiscard]] std::uint64_t written() const override { return written_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t acknowledged() const override;
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::string_view kind() const override { return kind_; }
  [[nodiscard]] Socket& socket() { return socket_; }

 private:
  const Strand strand_;
  Socket socket_;
  const std::string endpoint_;
  const std::string_view kind_;
  std::atomic<std::uint64_t> written_{0};
};

}  // namespace linkcpp::net
