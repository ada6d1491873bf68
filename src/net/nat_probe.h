// Asks STUN servers how they see this node.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "net/nat_kind.h"
#include "net/socket.h"
#include "net/udp_socket.h"

namespace linkcpp::net {

struct NatProbeKnobs {
  std::chrono::milliseconds first_pause{200};  ///< before a question is repeated; grows by half each time
  std::chrono::milliseconds limit{3000};       ///< for everything
  std::uint16_t port = 0;                      ///< from this port; 0 picks one
};

/// What the servers said; judge_nat() says what that means.
struct NatProbeAnswers {
  std::vector<StunSight> sights;  ///< one for each server, in their order
  std::uint16_t local_port = 0;
};

/// Asks all at once, from one socket, so that differences are the NAT's. Servers of the other family than the first one's are left out.
/// Servers are relays and nodes that take QUIC (the UDP port of the same number), or anybody's STUN servers. Fails if there is no socket to
/// be had. On the strand.
boost::asio::awaitable<Result<NatProbeAnswers>> probe_nat(Strand strand, std::vector<Udp::endpoint> servers, NatProbeKnobs knobs = {});

}  // namespace linkcpp::net
