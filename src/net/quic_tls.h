// The TLS inside QUIC: contexts for both sides, tickets that serve once, and what a client remembers to resume.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/transport.h"

struct ssl_ctx_st;
struct ssl_st;
struct ssl_session_st;

namespace linkcpp::net {

using SslPtr = std::shared_ptr<ssl_st>;

/// What a client keeps from an earlier connection. A ticket serves once: take() removes it.
struct Resumption {
  std::shared_ptr<ssl_session_st> session;  ///< with the peer's certificate in it
  std::vector<std::uint8_t> params;         ///< the peer's transport parameters, as ngtcp2 encodes them for 0-RTT
  std::vector<std::uint8_t> token;          ///< proves the own address, so that the peer may answer at length at once
};

/// TLS of one node for all its QUIC connections. Threading: any thread.
///
/// Both sides show Ed25519 certificates, as over TCP. A server gives tickets only to peers that have proved the join token, keeps their
/// state itself (OpenSSL's stateful tickets) and forgets it when one is used: a replayed first flight finds no ticket, so that its early
/// data is dropped unread (RFC 8446, 8.1) and it continues as a stranger's handshake. Restarting forgets all.
class QuicTls {
 public:
  static Result<std::shared_ptr<QuicTls>> create(const Credentials& credentials);
  QuicTls(const QuicTls&) = delete;
  QuicTls& operator=(const QuicTls&) = delete;

  /// A connection's SSL object, not yet tied to ngtcp2. `resume`: for clients.
  Result<SslPtr> server();
  Result<SslPtr> client(const Resumption* resume);
  /// Once ngtcp2 has tied it to QUIC; OpenSSL refuses before that.
  static void allow_early_data(ssl_st* ssl);

  [[nodiscard]] const std::optional<PeerKey>& expected_peer() const { return expected_peer_; }

  /// The newest ticket for a peer, by the address that was dialled; taken out, since it serves once.
  std::optional<Resumption> take(const std::string& address);
  void keep(const std::string& address, Resumption resumption);

 private:
  QuicTls() = default;
  std::shared_ptr<ssl_ctx_st> client_, server_;
  std::optional<PeerKey> expected_peer_;
  std::mutex mutex_;
  std::map<std::string, std::vector<Resumption>> kept_;  ///< a few for each address
};

/// What the hooks of QuicTls call. Reached through the SSL object's application data, which ngtcp2 wants to be its own struct; so the
/// connection is found by OpenSSL's extra data.
class QuicTlsUser {
 public:
  virtual ~QuicTlsUser() = default;
  /// The peer's certificate. False refuses it.
  virtual bool check_key(const std::optional<PeerKey>& key) = 0;
  /// A client got a ticket.
  virtual void got_ticket(std::shared_ptr<ssl_session_st> session) = 0;
  static void attach(ssl_st* ssl, QuicTlsUser* user);
};

}  // namespace linkcpp::net
