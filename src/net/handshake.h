// From a pipe to an authenticated connection.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <memory>

#include "base/error.h"
#include "net/attempt.h"
#include "net/auth.h"
#include "net/connection.h"
#include "net/frame_buffer.h"
#include "net/tls_session.h"
#include "net/transport.h"

namespace linkcpp::net {

/// Makes an authenticated connection over the pipe of an attempt. Everything runs on the attempt's strand.
///
/// TLS 1.3 first. Then the worker proves the secret, and the backbone checks that before it parses anything else and answers with its own
/// proof, or with `refuse` and the reason. Which side dialled does not matter.
class Handshake {
 public:
  Handshake(std::shared_ptr<Attempt> attempt, std::shared_ptr<const TlsContext> tls, std::shared_ptr<const Credentials> credentials,
            LinkKnobs knobs);

  /// The attempt has a pipe. Errors say what the other side did wrong. The object must live until it is done.
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

  std::shared_ptr<Attempt> attempt_;
  std::shared_ptr<const TlsContext> tls_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  std::unique_ptr<TlsSession> session_;
  std::array<std::byte, 16384> ciphertext_;
  FrameBuffer received_;
};

}  // namespace linkcpp::net
