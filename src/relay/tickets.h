// One-time tickets: which data connections belong together. Pure: the caller brings the time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/error.h"
#include "net/relay_messages.h"
#include "relay/bucket.h"

namespace linkcpp::relay {

/// Two tickets, one for each side of a connection; each serves once, within its time.
class TicketBook {
 public:
  explicit TicketBook(std::chrono::milliseconds lifetime) : lifetime_(lifetime) {}

  struct Pair {
    std::uint64_t connection = 0;
    net::RelayTicket caller{}, called{};
  };
  /// Fails with `internal` if the system gives no random numbers.
  Result<Pair> issue(Clock::time_point now);

  struct Redeemed {
    net::RelayAnswer answer = net::RelayAnswer::unknown_ticket;
    std::uint64_t connection = 0;  ///< if the answer is `joined`
    bool caller = false;
    Clock::time_point expires{};  ///< until when the other side may come
  };
  Redeemed redeem(const net::RelayTicket& ticket, Clock::time_point now);
  /// Forgets what is long over. Used and expired tickets are remembered for a few lifetimes, so that they can be told from inventions.
  void forget_old(Clock::time_point now);
  [[nodiscard]] std::size_t size() const { return tickets_.size(); }

 private:
  struct Ticket {
    std::uint64_t connection;
    bool caller, used;
    Clock::time_point expires;
  };
  const std::chrono::milliseconds lifetime_;
  std::uint64_t last_connection_ = 0;
  std::map<net::RelayTicket, Ticket> tickets_;
  std::deque<std::pair<Clock::time_point, net::RelayTicket>> in_order_;
};

}  // namespace linkcpp::relay
