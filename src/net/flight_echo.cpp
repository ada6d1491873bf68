#include "net/flight_echo.h"

namespace linkcpp::net {
namespace {

constexpr std::uint64_t probe_every = 16;
/// Acknowledgements and pings are not worth a copy.
constexpr std::size_t least_bytes = 200;

}  // namespace

void FlightEcho::losses(std::uint64_t total, std::chrono::nanoseconds now) {
  if (total > losses_) last_loss_ = now;
  losses_ = total;
}

std::optional<std::chrono::microseconds> FlightEcho::flight(std::size_t bytes, std::chrono::nanoseconds now) {
  if (knobs_.mode == EchoMode::off || bytes < least_bytes || bytes > knobs_.max_bytes) return std::nullopt;
  if (knobs_.mode == EchoMode::adaptive) {
    if (!last_loss_ || now - *last_loss_ > knobs_.memory) return std::nullopt;
    if (++flights_ % probe_every == 0) return std::nullopt;
  }
  echoed_bytes_ += bytes;
  return knobs_.spacing;
}

}  // namespace linkcpp::net
