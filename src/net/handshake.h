// From a connected socket to an authenticated connection.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "net/auth.h"
#include "net/connection.h"
#include "net/socket.h"
#include "net/tls_link.h"
#include "net/tls_session.h"
#include "net/transport.h"

namespace linkcpp::net {

/// One attempt to get an authenticated connection, from either side. Everything runs on the socket's strand.
///
/// TLS 1.3 first. Then the worker proves the secret, and the backbone checks that before it parses anything else and answers with its own
/// proof, or with `refuse` and the reason. Which side dialled does not matter.
class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  Handshake(Socket socket, std::shared_ptr<const TlsContext> tls, std::shared_ptr<const Credentials> credentials, LinkKnobs knobs);

  /// The socket, to be connected before run().
  [[nodiscard]] Socket& socket() { return socket_; }
  void set_endpoint(std::string endpoint) { endpoint_ = std::move(endpoint); }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

  /// Begins the deadline for everything: connect, TLS and proof.
  void start_deadline();
  /// Why the attempt was cut short, if it was.
  [[nodiscard]] const std::optional<Error>& aborted() const { return aborted_; }
  /// Ends the attempt with this error. On the strand.
  void abort(Error reason);

  /// The socket must be connected. Errors say what the other side did wrong.
  boost::asio::awaitable<Result<std::shared_ptr<Connection>>> run(TlsSide side);

 private:
  boost::asio::awaitable<Result<>> authenticate(TlsSide side);
  boost::asio::awaitable<Result<>> do_tls(TlsSide side);
  boost::asio::awaitable<Result<>> prove(Role role);
  boost::asio::awaitable<Result<>> check(Role peer_role);
  boost::asio::awaitable<Result<wire::FrameView>> read_frame();
  boost::asio::awaitable<Result<>> read_ciphertext();
  boost::asio::awaitable<Result<>> flush();
  boost::asio::awaitable<void> refuse(const Error& reason);
  std::unexpected<Error> broken(const boost::system::error_code& error) const;

  Socket socket_;
  std::shared_ptr<const TlsContext> tls_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  boost::asio::steady_timer deadline_;
  std::string endpoint_;
  const char* stage_ = "the TCP connection";
  std::optional<Error> aborted_;
  std::unique_ptr<TlsSession> session_;
  std::array<std::byte, 16384> ciphertext_;
  FrameBuffer received_;
};

}  // namespace linkcpp::net
