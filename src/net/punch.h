// Hole punching: finds addresses at which two nodes reach each other directly, by sending to all candidates at once. Pure.
#pragma once

#include <array>
#include <boost/asio/ip/udp.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::net {

/// Shared by the two ends of a session, sent over it. Probes are authenticated with it, so that nobody else can name an address.
using PunchKey = std::array<std::uint8_t, 32>;

/// One datagram of hole punching. 48 bytes, question and answer alike, so that no spoofed sender gets more than was sent.
///
/// `0x10 'L' 'K' 'P' 1`, kind, role of the sender, 0; u64 name of the key (the start of its SHA-256 hash); u64 nonce; u64 echo; HMAC-SHA256
/// of all that, cut to 16 bytes. An answer repeats the nonce of the question as its echo.
struct Probe {
  enum class Kind : std::uint8_t { question = 1, answer = 2 };
  Kind kind = Kind::question;
  bool from_dialer = false;  ///< a node does not believe its own probes when they come back
  std::uint64_t nonce = 0, echo = 0;
  bool operator==(const Probe&) const = default;
};
inline constexpr std::size_t probe_bytes = 48;

Bytes encode_probe(const Probe& probe, const PunchKey& key);
/// The name of the key that a probe claims, none if the datagram is no probe: says which key to check it with.
std::optional<std::uint64_t> probe_key_name(ByteSpan datagram);
std::uint64_t punch_key_name(const PunchKey& key);
/// None if it is not authentic.
std::optional<Probe> decode_probe(ByteSpan datagram, const PunchKey& key);

/// One side's attempt to reach the other. Time is an argument; not thread-safe.
///
/// Both sides ask all candidates of the other, first densely, then ever more rarely, until the deadline. A router that only lets in answers
/// sees our question leave before (or after, then the next one counts) the peer's arrives. Where a question comes from is a candidate too:
/// behind a symmetric NAT the peer's port is not the one that it was told.
class Puncher {
 public:
  using Endpoint = boost::asio::ip::udp::endpoint;
  using Time = std::chrono::nanoseconds;
  struct Knobs {
    std::chrono::milliseconds first_pause{30};  ///< between questions to one candidate; grows by half each time
    std::chrono::milliseconds longest_pause{1000};
    std::chrono::milliseconds deadline{5000};
    std::size_t max_candidates = 24;
  };
  struct Send {
    Endpoint to;
    Bytes datagram;
  };
  /// An address at which the peer answered.
  struct Found {
    Endpoint at;
    std::chrono::nanoseconds round_trip;
  };

  Puncher(PunchKey key, bool dialer, std::uint64_t seed, Time now, Knobs knobs);
  Puncher(PunchKey key, bool dialer, std::uint64_t seed, Time now) : Puncher(key, dialer, seed, now, Knobs()) {}
  /// Where the peer might be, as it says. More may come later.
  void add(const Endpoint& at, Time now) { candidate(at, now); }
  /// A datagram whose key name is ours. False if it is not authentic.
  bool received(ByteSpan datagram, const Endpoint& from, Time now);
  /// What to send by now.
  std::vector<Send> due(Time now);
  [[nodiscard]] Time next() const;
  /// Addresses that answered, each once, in the order of their answers.
  std::vector<Found> found();
  [[nodiscard]] bool over(Time now) const { return now >= begun_ + knobs_.deadline; }
  [[nodiscard]] std::size_t asked() const { return candidates_.size(); }

 private:
  struct Candidate {
    Endpoint at;
    Time next{};
    Time pause{};
    bool answered = false;
    std::map<std::uint64_t, Time> questions;  ///< nonce and when
  };
  Candidate* candidate(const Endpoint& at, Time now);
  std::uint64_t nonce();

  PunchKey key_;
  bool dialer_;
  std::uint64_t state_;
  Time begun_;
  Knobs knobs_;
  std::vector<Candidate> candidates_;
  std::vector<Send> answers_;
  std::vector<Found> found_;
};

}  // namespace linkcpp::net
