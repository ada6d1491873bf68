// What `linkcpp doctor` found out. Only data: examine.h gathers it, advice.h judges it, show.h prints it.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/nat_kind.h"

namespace linkcpp::doctor {

using Nanoseconds = std::chrono::nanoseconds;
inline double milliseconds(Nanoseconds time) { return std::chrono::duration<double, std::milli>(time).count(); }

/// One transport to an address, tried with this node's real identity.
struct Way {
  std::string address;                    ///< "quic://192.0.2.1:7101"
  std::string transport;                  ///< "tcp", "quic", "ws", "wss", "relay"
  std::optional<Nanoseconds> connected;   ///< TCP's handshake took so long; none: it did not succeed, or this is QUIC
  std::optional<Nanoseconds> round_trip;  ///< of the authenticated link
  std::optional<Error> error;             ///< why there is no link
  [[nodiscard]] bool works() const { return !error; }
};

/// An address of the join token, or of a worker.
struct Destination {
  std::string address;
  bool any_transport = false;  ///< written without a scheme: a dialer chooses between TCP and QUIC
  bool global = true;          ///< not a private address, as far as its host is a number
  std::vector<Way> ways;
};

struct RelayFinding {
  std::string address;
  std::optional<Nanoseconds> connected;   ///< TCP's handshake
  bool asked_in = false;                  ///< whether it was asked to let this node in, which needs a token or a backbone's home
  std::optional<Nanoseconds> round_trip;  ///< of the control connection
  std::optional<Error> error;             ///< why this node is not in, or why it is not reachable
};

/// What servers said over one family of addresses.
struct FamilyFinding {
  bool v6 = false;
  net::NatVerdict nat;
  std::vector<net::StunSight> sights;
};

/// A router that opens ports when asked.
struct RouterFinding {
  std::string protocol, where;
  std::optional<boost::asio::ip::address> outside;
  std::string error;  ///< why there is none
};

/// How a worker is connected, as its backbone says.
struct WorkerFinding {
  struct Path {
    std::string kind, endpoint;
    double rtt_ms = 0;
    bool preferred = false;
  };
  std::string name, state, transport, endpoint, reason;
  double rtt_ms = 0;  ///< 0: not known
  std::vector<Path> paths;
  std::string why;  ///< that path and no other
};

struct SwarmFinding {
  std::string url;
  bool asked_for = false;  ///< the operator named it: it must be there
  std::optional<Error> error;
  std::vector<WorkerFinding> workers;
  std::string missing;  ///< experts that nobody holds
};

struct Examination {
  std::vector<std::string> own_addresses;
  std::vector<FamilyFinding> families;
  std::optional<RouterFinding> router;  ///< none: not asked
  std::string backbone;                 ///< the token's backbone, short
  std::vector<Destination> token;       ///< one that works is enough
  std::vector<Destination> workers;     ///< all must work
  std::vector<RelayFinding> relays;     ///< those that were named must work
  std::optional<SwarmFinding> swarm;    ///< none: not asked, or nobody there
};

}  // namespace linkcpp::doctor
