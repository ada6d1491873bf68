#include "relay/tickets.h"

#include <openssl/rand.h>

namespace linkcpp::relay {
namespace {

constexpr int remembered_lifetimes = 4;

}  // namespace

Result<TicketBook::Pair> TicketBook::issue(Clock::time_point now) {
  Pair pair{.connection = ++last_connection_};
  for (net::RelayTicket* ticket : {&pair.caller, &pair.called}) {
    if (RAND_bytes(ticket->data(), static_cast<int>(ticket->size())) != 1)
      return fail(ErrorKind::internal, "the system gives no random numbers");
    tickets_[*ticket] = {.connection = pair.connection, .caller = ticket == &pair.caller, .used = false, .expires = now + lifetime_};
    in_order_.emplace_back(now + remembered_lifetimes * lifetime_, *ticket);
  }
  return pair;
}

TicketBook::Redeemed TicketBook::redeem(const net::RelayTicket& ticket, Clock::time_point now) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return {.answer = net::RelayAnswer::unknown_ticket};
  Ticket& known = found->second;
  if (known.used) return {.answer = net::RelayAnswer::used_ticket};
  if (now >= known.expires) return {.answer = net::RelayAnswer::expired_ticket};
  known.used = true;
  return {.answer = net::RelayAnswer::joined, .connection = known.connection, .caller = known.caller, .expires = known.expires};
}

void TicketBook::forget_old(Clock::time_point now) {
  for (; !in_order_.empty() && in_order_.front().first <= now; in_order_.pop_front()) tickets_.erase(in_order_.front().second);
}

}  // namespace linkcpp::relay
