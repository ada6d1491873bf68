// A control connection between a node and a relay, on either side: our TLS over a pipe, and relay messages in it.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <memory>

#include "base/error.h"
#include "net/attempt.h"
#include "net/relay_messages.h"
#include "net/tls_session.h"

namespace linkcpp::net {

/// Everything runs on the strand of the attempt, whose pipe it uses until close().
class RelayChannel : public std::enable_shared_from_this<RelayChannel> {
 public:
  /// `received`: bytes that were read off the pipe already.
  RelayChannel(std::shared_ptr<Attempt> attempt, Bytes received = {});

  /// TLS. The attempt's deadline should run.
  boost::asio::awaitable<Result<>> handshake(std::shared_ptr<const TlsContext> tls, TlsSide side);
  /// The next message. One at a time.
  boost::asio::awaitable<Result<RelayMessage>> receive();
  /// Sends or queues. Never waits; a peer that lets too much pile up is cut off.
  void send(const RelayMessage& message);
  /// Nothing more will be sent.
  void end_sending();
  /// Ends the sending, and reads what still comes for a moment: closing over unread data would destroy the last message on its way.
  boost::asio::awaitable<void> farewell();
  void close();

  [[nodiscard]] bool has_peer() const { return authenticated_; }
  /// After the handshake.
  [[nodiscard]] const PeerKey& peer() const { return session_->peer(); }
  [[nodiscard]] Result<TlsSession::ExportedKey> exported() const { return session_->export_key(relay_exporter_label); }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  boost::asio::awaitable<Result<>> read_more();
  boost::asio::awaitable<Result<>> flush_all();
  void flush();

  std::shared_ptr<Attempt> attempt_;
  const std::string endpoint_;
  Bytes early_;
  std::unique_ptr<TlsSession> session_;
  std::array<std::byte, 4096> ciphertext_;
  RelayMessageBuffer messages_;
  std::size_t written_ = 0;  ///< of the session's output
  bool waiting_ = false;     ///< until the pipe takes more
  bool authenticated_ = false, closed_ = false;
};

}  // namespace linkcpp::net
