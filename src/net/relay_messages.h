// What nodes and relays tell each other (docs/relay.md). Bytes in, structures out: no sockets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/bytes.h"
#include "base/error.h"
#include "net/identity.h"
#include "net/tls_session.h"
#include "net/token.h"

namespace linkcpp::net {

/// What proves to a relay that a node belongs to a backbone's swarm: the backbone derives it from the swarm's secret and gives it to the
/// relay, which cannot join the swarm with it.
using RelayMembership = std::array<std::uint8_t, 32>;
using RelayProof = std::array<std::uint8_t, 32>;
/// Serves once, for one side of one connection.
using RelayTicket = std::array<std::uint8_t, 32>;

inline constexpr std::string_view relay_exporter_label = "EXPORTER-linkcpp-relay";

/// HMAC-SHA256(secret, "linkcpp relay v1").
Result<RelayMembership> relay_membership(const Secret& secret);
/// HMAC-SHA256(membership, "linkcpp relay join v1" | exported | key of the node | key of the backbone).
Result<RelayProof> relay_proof(const RelayMembership& membership, const TlsSession::ExportedKey& exported, const PeerKey& node,
                               const PeerKey& backbone);

// ---- messages of control connections ---------------------------------------------------------------------------------

/// Node to relay, first: I am a backbone, and who proves this membership is mine.
struct RelayRegister {
  RelayMembership membership{};
  bool operator==(const RelayRegister&) const = default;
};
/// Node to relay, first: I belong to this backbone.
struct RelayJoin {
  PeerKey backbone;
  RelayProof proof{};
  bool operator==(const RelayJoin&) const = default;
};
/// Relay to node: the answer to either. `observed`: where the relay sees the node, for people.
struct RelayWelcome {
  std::string observed;
  bool operator==(const RelayWelcome&) const = default;
};
/// Relay to node: the last message; the connection closes.
struct RelayRefuse {
  ErrorKind kind = ErrorKind::internal;
  std::string reason;
  bool operator==(const RelayRefuse&) const = default;
};
/// Node to relay: others of the swarm may connect to me.
struct RelayListen {
  bool operator==(const RelayListen&) const = default;
};
/// Node to relay: connect me to this node. `request` is not 0.
struct RelayConnect {
  std::uint32_t request = 0;
  PeerKey to;
  bool operator==(const RelayConnect&) const = default;
};
/// Relay to node: open a data connection with this ticket. `request`: that of the connect, 0 for the node that is connected to.
struct RelayIntroduce {
  std::uint32_t request = 0;
  PeerKey peer;
  RelayTicket ticket{};
  bool operator==(const RelayIntroduce&) const = default;
};
/// Relay to node: a connect failed.
struct RelayFailed {
  std::uint32_t request = 0;
  ErrorKind kind = ErrorKind::internal;
  std::string reason;
  bool operator==(const RelayFailed&) const = default;
};
/// Either side, answered at once.
struct RelayPing {
  std::uint64_t stamp = 0;
  bool operator==(const RelayPing&) const = default;
};
struct RelayPong {
  std::uint64_t stamp = 0;
  bool operator==(const RelayPong&) const = default;
};

using RelayMessage = std::variant<RelayRegister, RelayJoin, RelayWelcome, RelayRefuse, RelayListen, RelayConnect, RelayIntroduce,
                                  RelayFailed, RelayPing, RelayPong>;

inline constexpr std::size_t relay_header_bytes = 8;
inline constexpr std::size_t max_relay_body = 1024;
inline constexpr std::size_t max_relay_reason = 512;

/// One whole message with its header. Longer texts are cut.
Bytes encode_relay_message(const RelayMessage& message);

/// Takes messages out of a stream.
class RelayMessageBuffer {
 public:
  void add(ByteSpan bytes) { held_.insert(held_.end(), bytes.begin(), bytes.end()); }
  /// The next whole message; none if it is not complete yet. `invalid_input` or `incompatible`, after which the stream is of no use.
  Result<std::optional<RelayMessage>> next();

 private:
  Bytes held_;
};

// ---- data connections ------------------------------------------------------------------------------------------------

/// Begins a data connection. No letter of HTTP, no record of TLS.
inline constexpr std::byte relay_preamble_first{0x02};
inline constexpr std::size_t relay_preamble_bytes = 40;
Bytes encode_relay_preamble(const RelayTicket& ticket);
/// `invalid_input` or `incompatible`.
Result<RelayTicket> decode_relay_preamble(std::span<const std::byte, relay_preamble_bytes> bytes);

/// The one byte with which the relay answers a preamble, when the other side has come too.
enum class RelayAnswer : std::uint8_t { joined = 0, unknown_ticket = 1, expired_ticket = 2, used_ticket = 3, peer_missing = 4, busy = 5 };
/// Why there is no connection; only for answers other than `joined`, whatever byte it is.
Error relay_answer_error(std::uint8_t answer);

}  // namespace linkcpp::net
