// Passing bytes on from one pipe to another, as they arrive.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>

#include "base/error.h"
#include "net/pipe.h"
#include "relay/bucket.h"

namespace linkcpp::relay {

/// One direction of a link.
struct Flow {
  net::Pipe& from;
  net::Pipe& to;
  Bucket& rate;             ///< of the sender, in bytes; shared by all its links
  std::uint64_t& all;       ///< bytes of everybody, counted along
  Clock::time_point moved;  ///< when something last passed
  std::uint64_t bytes = 0;
};

/// Until `from` ends, which is passed on; or until either breaks, which is an error. What is under way is at most a few hundred KiB: if
/// `to` does not take it, nothing more is read. Between two TCP connections the bytes stay in the kernel (splice). On the pipes' strand,
/// which both share. The process must ignore SIGPIPE: splice() knows no other way to be spared it.
boost::asio::awaitable<Result<>> pass_on(Flow& flow);

}  // namespace linkcpp::relay
