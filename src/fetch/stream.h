// A TCP connection that is read and written by one thread, in the clear or under TLS, with deadlines, and that any thread can break off.
//
// Plain sockets with poll() and not Asio's synchronous streams: those have no deadlines.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "net/tls_session.h"

namespace linkcpp::fetch {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// A TCP socket. Threading: shut() from any thread while the socket lives, all else from one.
class Socket {
 public:
  explicit Socket(int fd);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  /// Some bytes; 0 at the end. `timeout` if none came for `limit`.
  Result<std::size_t> read(std::span<std::byte> into, Milliseconds limit);
  /// All bytes; `timeout` if none were taken for `limit`.
  Result<> write(ByteSpan bytes, Milliseconds limit);
  /// Reading and writing end at once.
  void shut() noexcept;
  [[nodiscard]] int fd() const { return fd_; }
  /// Waits for readability (or writability); `timeout`.
  Result<> wait(bool writable, Milliseconds limit) const;

 private:
  int fd_;
};

/// Connects to "host", port; tries each of its addresses. `cancelled` is looked at meanwhile.
Result<std::unique_ptr<Socket>> connect_to(const std::string& host, std::uint16_t port, Milliseconds limit,
                                           const std::atomic<bool>& cancelled);

/// What carries HTTP.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Result<std::size_t> read(std::span<std::byte> into, Milliseconds limit) = 0;
  virtual Result<> write(ByteSpan bytes, Milliseconds limit) = 0;
  virtual void farewell() {}
  [[nodiscard]] virtual Socket& socket() = 0;
};

std::unique_ptr<Stream> plain_stream(std::unique_ptr<Socket> socket);

/// TLS between nodes (net/tls_session.h), after its handshake.
class NodeStream final : public Stream {
 public:
  static Result<std::unique_ptr<NodeStream>> handshake(Socket& socket, std::shared_ptr<const net::TlsContext> context, net::TlsSide side,
                                                       Milliseconds limit);
  Result<std::size_t> read(std::span<std::byte> into, Milliseconds limit) override;
  Result<> write(ByteSpan bytes, Milliseconds limit) override;
  void farewell() override;
  [[nodiscard]] Socket& socket() override { return socket_; }
  [[nodiscard]] net::TlsSession& session() { return *session_; }
  /// Keeps the socket's owner alive.
  void own(std::unique_ptr<Socket> socket) { owned_ = std::move(socket); }

 private:
  NodeStream(Socket& socket, std::unique_ptr<net::TlsSession> session);
  Result<> flush(Milliseconds limit);
  std::unique_ptr<Socket> owned_;
  Socket& socket_;
  std::unique_ptr<net::TlsSession> session_;
  Bytes ciphertext_;
  bool fed_ = false;  ///< the session still has ciphertext of ours
};

/// TLS to a public server: verified against the system's authorities and its host name.
Result<std::unique_ptr<Stream>> web_stream(std::unique_ptr<Socket> socket, const std::string& host, Milliseconds limit);

}  // namespace linkcpp::fetch
