// Where a peer is: "host:port", and addresses that name a transport as well.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "net/identity.h"

namespace linkcpp::net {

struct Endpoint {
  std::string host;  ///< without brackets; a name or a numeric address
  std::uint16_t port = 0;
  /// "host:port", with brackets around an IPv6 address.
  [[nodiscard]] std::string text() const;
  bool operator==(const Endpoint&) const = default;
};

/// Fails with `invalid_input`, naming the text and the form that is expected.
Result<Endpoint> parse_endpoint(std::string_view text);

/// How a peer is reached.
enum class Scheme : std::uint8_t {
  tcp,    ///< our TLS directly over TCP
  ws,     ///< ... in WebSocket messages, so that it passes through web proxies
  wss,    ///< ... and those in a web server's TLS
  quic,   ///< QUIC over UDP
  relay,  ///< through a relay that both sides reach
};
/// "tcp", "ws", ...
std::string_view scheme_name(Scheme scheme);

/// An address of a node:
///
///     host:port, tcp://host:port
///     ws://host[:80][/path], wss://host[:443][/path]
///     quic://host:port
///     relay://[RELAYKEY@]host:port[/KEY]     KEY: the node's; RELAYKEY: the only key that the relay may have
///     relay+ws://[RELAYKEY@]host[:80][/path][/KEY], relay+wss://...     a relay behind a web proxy
struct Address {
  Scheme scheme = Scheme::tcp;
  Endpoint endpoint;                 ///< of the node, its proxy or its relay
  Scheme carrier = Scheme::tcp;      ///< what connections to it are made of: tcp, ws or wss, also for relay
  std::string path = "/";            ///< of a WebSocket: path and query, as they go into the request
  std::optional<PeerKey> key;        ///< relay: the node to reach
  std::optional<PeerKey> relay_key;  ///< relay: whom the relay must prove to be
  /// As parse_address() reads it; tcp without its scheme.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] bool in_websocket() const { return carrier == Scheme::ws || carrier == Scheme::wss; }
  /// "host" or "host:port" for a Host header.
  [[nodiscard]] std::string authority() const;
  bool operator==(const Address&) const = default;
};

/// Fails with `invalid_input`, naming the text and what is wrong with it.
Result<Address> parse_address(std::string_view text);

}  // namespace linkcpp::net
