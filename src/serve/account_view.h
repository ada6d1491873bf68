// The account for people and for JSON: what a layer, a token and a worker cost.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace linkcpp::serve {

/// What happened between two snapshots of the account (as in the "account" event; `before` may be empty). Counters are subtracted,
/// round-trip times are those of `after`. A counter that went back (the engine was restarted) counts from zero.
nlohmann::json account_difference(const nlohmann::json& before, const nlohmann::json& after);

/// The account of `difference` divided down:
/// {"layers": [{"layer", "steps", "tokens", "bytes_out_per_token", "bytes_back_per_token", "wait_us_per_token", "flight_us_per_token",
///              "compute_us_per_token"}],
///  "workers": [{"name", "requests", "tokens", "pairs", "bytes_out", "bytes_back", "bytes_out_per_token", "bytes_back_per_token",
///               "compute_us_per_request", "queued_us_per_request", "rtt_us"}],
///  "total": {"passes", "steps", "bytes_out", "bytes_back", "payload_share", "resent_pairs", "failed_steps", "wait_us", "compute_us"}}
/// A layer's tokens are those that went through it; its bytes are summed over all touched workers. A worker's tokens are the rows
/// that were sent to it. Times are those of the backbone's clock, but for compute and queue, which workers report.
nlohmann::json summarize_account(const nlohmann::json& difference);

/// Two tables of the summary, a line a layer and a line a worker.
std::string account_tables(const nlohmann::json& summary);

}  // namespace linkcpp::serve
