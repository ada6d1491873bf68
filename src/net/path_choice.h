// Which of a session's paths carries its frames. Pure: what was measured in, a choice out.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

namespace linkcpp::net {

struct PathKnobs {
  double better_share = 0.1;                                         ///< another path must be quicker by this share …
  std::chrono::nanoseconds better_by{std::chrono::milliseconds(2)};  ///< … and by this much
  std::chrono::nanoseconds silence{std::chrono::seconds(1)};         ///< a path is silent after this and …
  int silence_round_trips = 3;                                       ///< … so many round trips without a byte …
  std::size_t assumed_rate = std::size_t{1} << 20;  ///< … and the time that what is under way takes at so many bytes a second
};

/// One path as it is now.
struct PathView {
  std::uint32_t id = 0;
  bool relayed = false;             ///< through a third machine
  bool answered = false;            ///< the peer has taken it into the session
  bool silent = false;              ///< path_is_silent()
  std::chrono::nanoseconds rtt{0};  ///< smoothed round trip; 0: not measured yet
};

/// The path to use; 0 if there is none. `present` (0: none) is kept unless another is clearly better, so that two equals do not alternate:
/// first paths that are heard, then direct ones, then those with a clearly shorter round trip.
std::uint32_t choose_path(std::span<const PathView> paths, std::uint32_t present, const PathKnobs& knobs);

/// Whether a path from which nothing came for `quiet` should be left. `under_way`: bytes sent over it that are not acknowledged; on a slow
/// path the peer's answers wait behind them. Paths ping when they are idle, so that a sound one is never quiet for long.
bool path_is_silent(std::chrono::nanoseconds quiet, std::chrono::nanoseconds rtt, std::size_t under_way, const PathKnobs& knobs);

/// Whether links of this kind (Link::kind) go through a third machine.
bool is_relayed(std::string_view kind);

}  // namespace linkcpp::net
