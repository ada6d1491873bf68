// What two ends of a session tell each other so that they can find a direct path: where each might be reached by UDP. Pure.
#pragma once

#include <boost/asio/ip/udp.hpp>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "net/punch.h"

namespace linkcpp::net {

/// How a node knows that it might be reached at an address.
enum class CandidateKind : std::uint8_t {
  host = 0,       ///< an interface of its own
  reflexive = 1,  ///< so others see it: behind a NAT
  mapped = 2,     ///< a port that its router was asked to keep open
};
/// "host", "reflexive", "mapped".
const char* candidate_kind_name(CandidateKind kind);

struct Candidate {
  boost::asio::ip::udp::endpoint at;
  CandidateKind kind = CandidateKind::host;
  bool operator==(const Candidate&) const = default;
};

/// The dialling side makes the key; the other side's offers repeat it. Offers with a key that is known add candidates.
struct PathOffer {
  static constexpr std::size_t max_candidates = 16;
  PunchKey key{};
  std::vector<Candidate> candidates;
  bool operator==(const PathOffer&) const = default;
};

/// u8 1, the key, u8 count, then each candidate as u8 kind, u8 family (4 or 6), address in network order, u16 port. More candidates than
/// allowed are not written.
Bytes encode_offer(const PathOffer& offer);
/// `invalid_input` with what is wrong. Addresses that nobody can be at (multicast, unspecified, port 0) are left out.
Result<PathOffer> decode_offer(ByteSpan body);

/// Own addresses on a port: every interface that is up, loopback only if there is no other. Link-local IPv6 is left out: it means nothing
/// elsewhere.
std::vector<Candidate> host_candidates(std::uint16_t port, bool v6);

}  // namespace linkcpp::net
