#include "net/path_offer.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <memory>
#include <span>

#include "net/udp_socket.h"

namespace linkcpp::net {
namespace {

namespace ip = boost::asio::ip;
constexpr std::uint8_t version = 1;

bool can_be_reached(const ip::udp::endpoint& at) {
  return at.port() != 0 && !at.address().is_unspecified() && !at.address().is_multicast() &&
         !(at.address().is_v4() && at.address().to_v4() == ip::address_v4::broadcast());
}

}  // namespace

const char* candidate_kind_name(CandidateKind kind) {
  switch (kind) {
    case CandidateKind::host:
      return "host";
    case CandidateKind::reflexive:
      return "reflexive";
    case CandidateKind::mapped:
      return "mapped";
  }
  return "?";
}

Bytes encode_offer(const PathOffer& offer) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(version);
  out.raw(std::as_bytes(std::span(offer.key)));
  const std::size_t n = std::min(offer.candidates.size(), PathOffer::max_candidates);
  out.put(static_cast<std::uint8_t>(n));
  for (const Candidate& candidate : std::span(offer.candidates).first(n)) {
    const auto address = candidate.at.address();
    out.put(static_cast<std::uint8_t>(candidate.kind));
    out.put(static_cast<std::uint8_t>(address.is_v6() ? 6 : 4));
    if (address.is_v6()) {
      const auto raw = address.to_v6().to_bytes();
      out.raw(std::as_bytes(std::span(raw)));
    } else {
      const auto raw = address.to_v4().to_bytes();
      out.raw(std::as_bytes(std::span(raw)));
    }
    out.put(candidate.at.port());
  }
  return bytes;
}

Result<PathOffer> decode_offer(ByteSpan body) {
  ByteReader in(body);
  PathOffer offer;
  if (in.get<std::uint8_t>() != version) return fail(ErrorKind::incompatible, "a path offer of another version");
  in.fill(offer.key);
  const std::size_t n = in.get<std::uint8_t>();
  if (n > PathOffer::max_candidates) {
    return fail(ErrorKind::invalid_input, "a path offer with {} candidates, allowed are {}", n, PathOffer::max_candidates);
  }
  for (std::size_t i = 0; i < n && in.ok(); ++i) {
    const auto kind = in.get<std::uint8_t>();
    const auto family = in.get<std::uint8_t>();
    ip::address address;
    if (family == 4) {
      ip::address_v4::bytes_type raw{};
      in.fill(raw);
      address = ip::address_v4(raw);
    } else if (family == 6) {
      ip::address_v6::bytes_type raw{};
      in.fill(raw);
      address = ip::address_v6(raw);
    } else {
      return fail(ErrorKind::invalid_input, "a path offer with an address of family {}", family);
    }
    const ip::udp::endpoint at(address, in.get<std::uint16_t>());
    if (kind > static_cast<std::uint8_t>(CandidateKind::mapped)) return fail(ErrorKind::invalid_input, "a candidate of kind {}", kind);
    if (in.ok() && can_be_reached(at)) offer.candidates.push_back({at, static_cast<CandidateKind>(kind)});
  }
  if (!in.finished()) return fail(ErrorKind::invalid_input, "a path offer of {} bytes that is cut off or too long", body.size());
  return offer;
}

std::vector<Candidate> host_candidates(std::uint16_t port, bool v6) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<Candidate> found, loopback;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && (family != AF_INET6 || !v6)) continue;
    auto at = endpoint_of(one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    at.port(port);
    if (at.address().is_v6() && at.address().to_v6().is_link_local()) continue;
    (at.address().is_loopback() ? loopback : found).push_back({at, CandidateKind::host});
  }
  return found.empty() ? loopback : found;
}

}  // namespace linkcpp::net
