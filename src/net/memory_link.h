// Two ends of a link in memory: no sockets, no TLS. For the tests and simulations of modules that speak over links.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <string>
#include <utility>

#include "net/link.h"

namespace linkcpp::net {

struct MemoryLinkOptions {
  std::chrono::nanoseconds delay_to_first{0};                              ///< one way, second end to first
  std::chrono::nanoseconds delay_to_second{0};                             ///< one way, first end to second
  PeerKey first_key{}, second_key{};                                       ///< each end's peer() is the other's key
  std::string first_name = "memory:first", second_name = "memory:second";  ///< each end's endpoint() is the other's name
};

/// Makes a pair of ends; their handlers run in the given contexts, which may be one and the same. Frames keep their order and are delayed
/// by timers of the receiver's context. A close arrives at the other end as `unavailable` behind the frames that were sent before it.
/// Dropping the last LinkPtr of an end closes it, like a real one. Frames are checked like received ones: a malformed frame closes the
/// link. There is no keep-warm; stats() gives the sum of the delays as round trip.
std::pair<LinkPtr, LinkPtr> make_memory_links(boost::asio::io_context& first, boost::asio::io_context& second,
                                              const MemoryLinkOptions& options = {});

}  // namespace linkcpp::net
