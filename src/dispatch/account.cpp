#include "dispatch/account.h"

namespace linkcpp::dispatch {

Tally& Tally::operator+=(const Tally& other) {
  steps += other.steps;
  tokens += other.tokens;
  pairs += other.pairs;
  bytes_out += other.bytes_out;
  bytes_in += other.bytes_in;
  payload_out += other.payload_out;
  payload_in += other.payload_in;
  resent_pairs += other.resent_pairs;
  failed_steps += other.failed_steps;
  wait += other.wait;
  flight += other.flight;
  compute += other.compute;
  queued += other.queued;
  return *this;
}

}  // namespace linkcpp::dispatch
