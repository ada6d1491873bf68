// Making links: over TCP, WebSocket or QUIC, always with TLS 1.3, mutual Ed25519 authentication and the join token's proof.
//
// Listeners and dialers call back on threads that drive the io_context. When their destructor returns, no callback runs or will run (unless
// it was called from inside one), so do not destroy them while holding a lock that a callback takes. They must go before the io_context;
// sockets close as soon as the context runs again.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "net/flight_echo.h"
#include "net/identity.h"
#include "net/link.h"
#include "net/token.h"

namespace linkcpp::net {

class QuicEndpoint;

/// Every tunable of the transport.
struct LinkKnobs {
  std::chrono::milliseconds handshake_deadline{10'000};  ///< TCP connect to authenticated link
  std::chrono::milliseconds keep_warm{100};              ///< ping when nothing was sent for this long
  std::chrono::milliseconds silence_limit{5'000};        ///< nothing heard for this long while pinging: the peer is gone
  std::chrono::milliseconds silence_floor{1'000};        ///< ... and already after this and three round trips, once they are known
  std::chrono::milliseconds backoff_min{100};            ///< first pause before dialling again; doubles, with jitter
  std::chrono::milliseconds backoff_max{5'000};
  std::size_t max_handshakes = 64;                  ///< unauthenticated connections at once; the slowest must go when more wait
  std::size_t max_queued_bytes = 512u << 20;        ///< queued to send on one link before it is closed as stuck
  std::string congestion_control = "cubic";         ///< best effort, where the kernel permits it
  std::string quic_congestion_control = "bbr";      ///< cubic, bbr or reno; measured: docs/measurements.md, wan-exchange
  std::chrono::milliseconds quic_initial_rtt{250};  ///< assumed before the first measurement: paces the repeats of lost handshakes
  EchoMode quic_echo = EchoMode::adaptive;          ///< sends small flights twice where datagrams get lost
  bool quic_resume = true;                          ///< as a client, sends with the first packet where a ticket allows it (0-RTT)
  std::size_t quic_retry_above = 16;                ///< unauthenticated QUIC connections; from then on strangers prove their address first
  std::chrono::milliseconds quic_above{5};  ///< addresses without a scheme: peers whose TCP handshake took so long are tried by QUIC first
  bool quic_listen = true;                  ///< a listener also takes QUIC, on the UDP port of the same number
  bool websocket_mask = true;               ///< as the RFC demands; false: a key of zeros, which peers must take as well (for measuring)
  std::string web_ca_file = {};             ///< PEM file of the authorities that wss:// trusts instead of the system's
  std::chrono::milliseconds relay_ping{5'000};  ///< between pings to relays: keeps a NAT's mapping open
};

/// What each side proves. The backbone side accepts any key that proves the secret; the worker side accepts only `expected_peer`.
struct Credentials {
  Identity identity;
  Secret secret;
  std::optional<PeerKey> expected_peer;  ///< set on workers, from the token
  bool is_backbone = false;
};

/// Those of a backbone: key and swarm secret out of its home folder, both made on first use.
Result<Credentials> backbone_credentials(const std::filesystem::path& home);

/// Accepts links. Destroying it stops accepting; links that exist live on.
class Listener {
 public:
  using OnLink = std::function<void(LinkPtr)>;
  using OnRefused = std::function<void(const std::string& endpoint, const Error&)>;
  virtual ~Listener() = default;
  /// The bound address, "host:port" with the real port.
  [[nodiscard]] virtual std::string address() const = 0;
  /// Its UDP side, none if it takes no QUIC.
  [[nodiscard]] virtual std::shared_ptr<QuicEndpoint> quic() const = 0;

  /// Binds `address` ("host:port"; port 0 picks one; "[::]:7101" for IPv6). The error names the address and the reason.
  /// Or "relay://host:port": is reachable through a relay, which may come and go; then `on_refused` also hears of trouble with it.
  static Result<std::unique_ptr<Listener>> open(boost::asio::io_context& context, const std::string& address, Credentials credentials,
                                                LinkKnobs knobs, OnLink on_link, OnRefused on_refused);
};

/// Dials a peer again and again until destroyed: hands out a link, waits until that closes, dials again with backoff.
class Dialer {
 public:
  using OnLink = std::function<void(LinkPtr)>;
  /// Every failed attempt, with the reason. `fatal` errors (wrong key, refused token) also keep retrying, at backoff_max.
  using OnFailure = std::function<void(const Error&)>;
  virtual ~Dialer() = default;
  static std::unique_ptr<Dialer> start(boost::asio::io_context& context, std::vector<std::string> addresses, Credentials credentials,
                                       LinkKnobs knobs, OnLink on_link, OnFailure on_failure);
};

/// Congestion control in force on new sockets of this machine after the best-effort setting, for reports.
std::string congestion_control_in_force(const LinkKnobs& knobs);

}  // namespace linkcpp::net
