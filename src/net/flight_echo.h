// Sends the datagrams of small messages twice where the path loses some. Pure: no sockets, no clock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace linkcpp::net {

enum class EchoMode : std::uint8_t {
  off,
  adaptive,  ///< while losses were seen lately
  always,    ///< for measurements
};

/// When a copy of each datagram of a small flight is worth its bytes.
///
/// A lost datagram costs a whole round trip, and a message of twelve datagrams is hit twelve times as often as one. QUIC drops copies by
/// their packet number (RFC 9000, 12.3), so a datagram may simply be sent again, a little later, so that one burst of loss does not take
/// both. That is done while losses were seen lately, for small flights only, and never for each flight: every sixteenth travels alone, so
/// that losses stay visible when the copies hide them.
class FlightEcho {
 public:
  struct Knobs {
    EchoMode mode = EchoMode::adaptive;
    std::size_t max_bytes = 20u << 10;         ///< larger flights travel alone
    std::chrono::milliseconds memory{60'000};  ///< a loss is remembered for so long
    std::chrono::microseconds spacing{3'000};  ///< between a datagram and its copy
  };
  explicit FlightEcho(Knobs knobs) : knobs_(knobs) {}

  /// What QUIC counts: packets that it has declared lost so far.
  void losses(std::uint64_t total, std::chrono::nanoseconds now);
  /// Whether to send this flight again, and after which pause.
  std::optional<std::chrono::microseconds> flight(std::size_t bytes, std::chrono::nanoseconds now);
  [[nodiscard]] std::uint64_t echoed_bytes() const { return echoed_bytes_; }

 private:
  Knobs knobs_;
  std::uint64_t losses_ = 0, flights_ = 0, echoed_bytes_ = 0;
  std::optional<std::chrono::nanoseconds> last_loss_;
};

}  // namespace linkcpp::net
