// The status channel: what happens in the swarm, as one JSON object a line, for `linkcpp serve`.
#pragma once

#include <nlohmann/json.hpp>

#include "dispatch/account.h"

namespace linkcpp::swarm {

/// A tally as JSON; times in whole microseconds.
nlohmann::json to_json(const dispatch::Tally& tally);
nlohmann::json to_json(const dispatch::MatmulCount& count);

/// Writes events to a file descriptor that it does not own. A reader that does not keep up loses events but never blocks the
/// engine; one that went away is forgotten. Threading: callers are mutually exclusive (the driving side).
class StatusChannel {
 public:
  explicit StatusChannel(int fd);
  void emit(const nlohmann::json& event);

 private:
  int fd_;
  bool is_socket_ = false;
  std::string unsent_;  ///< rest of a line that was written in part
};

}  // namespace linkcpp::swarm
