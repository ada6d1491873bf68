// A router that can be asked to let others in: what it can do, whatever its protocol. Its calls block; net/port_mapper.h makes them on a
// thread of its own.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/error.h"

namespace linkcpp::net {

enum class PortProtocol : std::uint8_t { udp, tcp };
/// "UDP", "TCP".
const char* port_protocol_name(PortProtocol protocol);

struct PortWish {
  PortProtocol protocol = PortProtocol::udp;
  std::uint16_t port = 0;  ///< here; wanted outside as well
  std::chrono::seconds lease{3600};
};

struct PortGrant {
  std::uint16_t port = 0;         ///< outside; not always the one that was wished for
  std::chrono::seconds lease{0};  ///< 0: until somebody takes it away
};

/// Not thread-safe. Every call ends within some seconds, sooner when stop is requested if the protocol allows it.
class Router {
 public:
  virtual ~Router() = default;
  /// "NAT-PMP", "UPnP".
  [[nodiscard]] virtual std::string_view protocol() const = 0;
  /// Where it is, for people.
  [[nodiscard]] virtual std::string where() const = 0;
  /// The address that it has outside.
  virtual Result<boost::asio::ip::address> outside() = 0;
  /// Lets a port in, or goes on doing so. Fails with `unauthorized` if it does not want to.
  virtual Result<PortGrant> open(const PortWish& wish) = 0;
  /// Ends that. Best effort.
  virtual void close(const PortWish& wish, const PortGrant& grant) = 0;
};

/// Looks for a router. `not_found`, in words, if there is none that understands the protocol; `unavailable` if it was stopped.
using FindRouter = std::function<Result<std::unique_ptr<Router>>(const std::stop_token& stop, std::chrono::milliseconds patience)>;

/// NAT-PMP (RFC 6886), which routers with PCP (RFC 6887) understand as a rule. Asks the default gateway, or `gateway`.
Result<std::unique_ptr<Router>> find_natpmp_router(const std::stop_token& stop, std::chrono::milliseconds patience);
Result<std::unique_ptr<Router>> find_natpmp_router(const std::stop_token& stop, std::chrono::milliseconds patience,
                                                   const boost::asio::ip::address_v4& gateway);
/// UPnP, by multicast.
Result<std::unique_ptr<Router>> find_upnp_router(const std::stop_token& stop, std::chrono::milliseconds patience);
/// The one, then the other. The error has both reasons.
Result<std::unique_ptr<Router>> find_any_router(const std::stop_token& stop, std::chrono::milliseconds patience);

}  // namespace linkcpp::net
