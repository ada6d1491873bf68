// What is known of a running swarm, gathered from the plugin's status events.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace linkcpp::serve {

using Json = nlohmann::json;

/// Parses one line of the status channel: an object with a string "event". Fails with `invalid_input`.
Result<Json> parse_event(std::string_view line);

/// The swarm as `GET /v1/swarm` shows it. Applying an event never fails: fields of a wrong type are ignored.
class SwarmStatus {
 public:
  struct Worker {
    std::string name, key, endpoint, transport, device, experts;
    std::uint64_t held = 0;
    std::string state;           ///< "joined", "draining" or "left"
    std::string reason;          ///< of leaving
    bool out_of_touch = false;   ///< its session has no connection just now
    Json paths = Json::array();  ///< that carry its session: {"kind", "peer", "rtt_ms", …}
    std::string why;             ///< it is reached by these
  };

  void apply(const Json& event);
  /// The engine was started anew: its workers have to join again.
  void restarted();

  [[nodiscard]] bool complete() const { return complete_; }
  [[nodiscard]] bool engine_ready() const { return ready_; }
  [[nodiscard]] const std::string& missing() const { return missing_; }
  [[nodiscard]] const std::string& listen_address() const { return listening_; }
  [[nodiscard]] const std::map<std::string, Worker>& workers() const { return workers_; }
  [[nodiscard]] std::size_t live_workers() const;
  [[nodiscard]] const Json& account() const { return account_; }
  [[nodiscard]] const std::string& last_error() const { return last_error_; }

  /// {"workers": […], "coverage": {"complete", "missing"}, "account": {…}, "listen": "…", "last_error": "…"}
  [[nodiscard]] Json to_json() const;

 private:
  bool complete_ = false;
  bool ready_ = false;
  std::string missing_, listening_, last_error_;
  std::map<std::string, Worker> workers_;
  Json account_ = Json::object();
};

/// One sentence for people about an event; empty for events that are not worth a line (the account).
std::string describe_event(const Json& event);

/// The string under a key, or empty.
std::string text_of(const Json& object, const char* key);
/// The number under a key, or 0.
double number_of(const Json& object, const char* key);

}  // namespace linkcpp::serve
