#include "net/link_words.h"

#include <algorithm>

namespace linkcpp::net {
namespace {

/// Round trips of silence after which a peer is gone, beside the floor.
constexpr int silence_round_trips = 3;

}  // namespace

std::chrono::nanoseconds silence_limit(const LinkKnobs& knobs, std::chrono::nanoseconds round_trip) {
  if (round_trip.count() == 0) return knobs.silence_limit;
  return std::min<std::chrono::nanoseconds>(knobs.silence_limit, silence_round_trips * round_trip + knobs.silence_floor);
}

Error silent_peer(const std::string& endpoint, std::chrono::nanoseconds silence) {
  return {ErrorKind::timeout, std::format("the peer {} has been silent for {} ms; is it down, or the network?", endpoint,
                                          std::chrono::duration_cast<std::chrono::milliseconds>(silence).count())};
}

Error stuck_peer(const std::string& endpoint, const LinkKnobs& knobs) {
  return {ErrorKind::unavailable,
          std::format("the peer {} does not take what is sent to it: more than {} MiB are queued", endpoint, knobs.max_queued_bytes >> 20)};
}

Error closed_by_peer(const std::string& endpoint, bool in_frame) {
  return {ErrorKind::unavailable,
          std::format("the peer {} closed the connection{}", endpoint, in_frame ? " in the middle of a frame" : "")};
}

Error violation(const std::string& endpoint, ErrorKind kind, std::string_view what) {
  return {kind, std::format("protocol violation by {}: {}", endpoint, what)};
}

Error second_proof(const std::string& endpoint) {
  return violation(endpoint, ErrorKind::invalid_input, "a second proof of the join token");
}

}  // namespace linkcpp::net
