// A network address translator of any of the known kinds. Pure: time is an argument.
//
// Mapping and filtering as RFC 4787 and RFC 5382 name them:
//
//   kind                 mapping                      who may answer
//   full cone            one port an inner endpoint   anybody
//   address-restricted   the same                     addresses that were sent to
//   port-restricted      the same                     endpoints that were sent to
//   symmetric            one port a destination       endpoints that were sent to
#pragma once

#include <map>
#include <random>
#include <set>
#include <span>

#include "line.h"
#include "packet.h"

namespace linkcpp::lab {

enum class NatKind : std::uint8_t { full_cone, address_restricted, port_restricted, symmetric };

struct NatShape {
  NatKind kind = NatKind::port_restricted;
  Address outside = 0;  ///< the address that others see
  Time udp_timeout = std::chrono::seconds(120);
  Time tcp_timeout = std::chrono::hours(2);
  Time closed_timeout = std::chrono::seconds(10);  ///< of a TCP mapping after FIN or RST
  bool keeps_port = true;                          ///< takes the inner port number outside if it is free (not for symmetric ones)
  bool hairpin = false;                            ///< inner nodes may reach each other by outer endpoints
  bool firewall6 = true;                           ///< of IPv6, which passes unchanged, only answers come in
};

/// Not thread-safe.
class Nat {
 public:
  Nat(NatShape shape, std::uint64_t seed) : shape_(shape), random_(seed) {}
  /// Rewrites a packet that leaves. False: it is dropped.
  bool outbound(std::span<std::byte> packet, Time now);
  /// Rewrites a packet that comes to the outside address. False: nobody inside waits for it.
  bool inbound(std::span<std::byte> packet, Time now);
  [[nodiscard]] const NatShape& shape() const { return shape_; }
  /// The line got another address: nothing that was mapped before can be reached any more.
  void renumber(Address outside);
  [[nodiscard]] std::size_t mappings() const { return by_port_.size(); }
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  struct Key {
    Protocol protocol;
    Endpoint inner, destination;  ///< the destination only counts for symmetric ones
    auto operator<=>(const Key&) const = default;
  };
  struct Mapping {
    Key key;
    std::uint16_t port = 0;
    std::set<Endpoint> sent_to;
    Time expires{};
  };
  using Port = std::pair<Protocol, std::uint16_t>;
  Mapping* mapping(const Flow& flow, Time now);
  std::optional<std::uint16_t> free_port(Protocol protocol, std::uint16_t wish, Time now);
  [[nodiscard]] bool lets_in(const Mapping& mapping, Endpoint from) const;
  void keep(Mapping& mapping, ByteSpan packet, Time now) const;
  void forget(const Port& port);

  NatShape shape_;
  std::mt19937_64 random_;
  std::map<Key, Port> by_key_;
  std::map<Port, Mapping> by_port_;
  std::uint64_t refused_ = 0;
};

}  // namespace linkcpp::lab
