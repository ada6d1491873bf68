// What the findings mean, in sentences, and what to do. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/examination.h"

namespace linkcpp::doctor {

enum class Level : std::uint8_t {
  good,    ///< works
  hint,    ///< works, but could be better, or is worth knowing
  broken,  ///< something that is needed does not work
};
/// "good", "hint", "broken".
const char* level_name(Level level);

struct Advice {
  Level level = Level::good;
  std::string text;
};

/// The most important first. Nothing broken: everything that was asked about works.
std::vector<Advice> advise(const Examination& findings);
[[nodiscard]] bool something_broken(const std::vector<Advice>& advice);

/// Which of the token's addresses a worker here would use, over what, and why.
struct Choice {
  std::string address, transport, why;
};
/// None if none works. `far` is the handshake time from which a dialer prefers QUIC (LinkKnobs::quic_above).
std::optional<Choice> chosen_way(const std::vector<Destination>& token, Nanoseconds far);

/// What this node can expect with peers behind each kind of NAT, a line each; empty if its own kind is not known.
std::vector<std::string> expectations(const Examination& findings);

}  // namespace linkcpp::doctor
