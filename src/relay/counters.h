// What a relay has done so far.
#pragma once

#include <cstdint>
#include <string>

namespace linkcpp::relay {

struct Counters {
  std::uint64_t connections = 0;   ///< accepted TCP connections
  std::uint64_t web_requests = 0;  ///< of these, HTTP that asked for no WebSocket
  std::uint64_t handshakes_failed = 0;
  std::uint64_t nodes_refused = 0;  ///< not allowed, wrong token, too many
  std::uint64_t floods = 0;         ///< control connections that said too much, and addresses that connected too often
  std::uint64_t introductions = 0;
  std::uint64_t connects_failed = 0;
  std::uint64_t tickets_unknown = 0, tickets_expired = 0, tickets_replayed = 0, peers_missing = 0;
  std::uint64_t links = 0;  ///< joined so far
  std::uint64_t bytes = 0;  ///< passed on
  std::uint64_t stun_answers = 0, stun_ignored = 0;
  // Now.
  std::uint64_t nodes_now = 0, swarms_now = 0, links_now = 0;
};

/// In the text format of Prometheus.
std::string prometheus_text(const Counters& counters);
/// One JSON object in one line.
std::string json_text(const Counters& counters);

}  // namespace linkcpp::relay
