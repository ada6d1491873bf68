// TLS 1.3 between two byte buffers: no sockets, no waiting, so that the link decides when and how much to send.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"
#include "net/identity.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // OpenSSL's SSL

namespace linkcpp::net {

/// What all TLS connections of a listener or dialer share. Immutable after creation, so usable from any thread.
///
/// TLS 1.3 only, Ed25519 certificates on both sides, no tickets, no resumption, no early data. Instead of a chain of trust the peer's
/// key itself is checked: against `expected_peer` if that is given, else any Ed25519 key passes (the join token's proof decides).
class TlsContext {
 public:
  static Result<std::shared_ptr<const TlsContext>> create(const Identity& identity, const std::optional<PeerKey>& expected_peer);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  [[nodiscard]] ssl_ctx_st* get() const { return context_.get(); }
  [[nodiscard]] const std::optional<PeerKey>& expected_peer() const { return expected_peer_; }

 private:
  TlsContext() = default;
  std::shared_ptr<ssl_ctx_st> context_;
  std::optional<PeerKey> expected_peer_;
};

enum class TlsSide { client, server };

/// One TLS connection. Not thread-safe. Everything that must go to the peer is appended to output(), also after an error (an alert).
class TlsSession {
 public:
  using ExportedKey = std::array<std::uint8_t, 32>;

  static Result<std::unique_ptr<TlsSession>> create(std::shared_ptr<const TlsContext> context, TlsSide side);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// Hands over received bytes. They are not copied: they must stay until handshake() asks for more or read() returns 0.
  void feed(ByteSpan ciphertext);
  /// Continues the handshake: true when it is complete, false when it needs more from the peer.
  Result<bool> handshake();
  /// Decrypts the next bytes into `into`. 0: more ciphertext is needed, or the peer is finished (see closed()).
  Result<std::size_t> read(std::span<std::byte> into);
  /// Encrypts all of `plaintext` into output().
  Result<> write(ByteSpan plaintext);
  /// Encrypts the farewell.
  void shutdown();

  [[nodiscard]] Bytes& output() { return output_; }
  /// The peer has said farewell.
  [[nodiscard]] bool closed() const { return closed_; }
  /// The peer's key; valid after the handshake.
  [[nodiscard]] const PeerKey& peer() const { return peer_; }
  /// Keying material of this very connection (RFC 8446, 7.5).
  Result<ExportedKey> export_key(std::string_view label) const;

 private:
  friend struct TlsHooks;
  TlsSession() = default;
  Error failure(const char* during);

  std::shared_ptr<const TlsContext> context_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_{nullptr, nullptr};
  ByteSpan input_;
  Bytes output_;
  PeerKey peer_;
  bool wrong_peer_ = false, bad_certificate_ = false, closed_ = false;
  bool started_ = false;
};

}  // namespace linkcpp::net
