// What links over any transport say when they end, and how long a peer may be silent.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/error.h"
#include "net/transport.h"

namespace linkcpp::net {

/// How long a pinged peer may be silent: by its own round trips, if they are known (not 0).
std::chrono::nanoseconds silence_limit(const LinkKnobs& knobs, std::chrono::nanoseconds round_trip);

Error silent_peer(const std::string& endpoint, std::chrono::nanoseconds silence);
/// More waits than a link holds.
Error stuck_peer(const std::string& endpoint, const LinkKnobs& knobs);
Error closed_by_peer(const std::string& endpoint, bool in_frame);
Error violation(const std::string& endpoint, ErrorKind kind, std::string_view what);
Error second_proof(const std::string& endpoint);

}  // namespace linkcpp::net
