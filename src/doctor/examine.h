// Looks at everything that `linkcpp doctor` is asked about.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "doctor/examination.h"
#include "net/transport.h"
#include "serve/address.h"

namespace linkcpp::doctor {

struct Questions {
  std::optional<net::Credentials> credentials;  ///< of a worker with a token, or of a backbone; without, only what needs none
  std::vector<std::string> token;               ///< addresses of the join token
  std::vector<std::string> workers;             ///< addresses that a backbone dials
  std::vector<std::string> relays;
  std::vector<std::string> stun;  ///< "host:port"
  std::optional<serve::HostPort> backbone;
  bool backbone_named = false;  ///< else it may be absent
  bool ask_router = true;
  std::chrono::milliseconds limit{5000};  ///< for each question
};

/// Asks all at once and returns when all have answered or the limit has passed. Fails with `invalid_input` on an address that is none.
Result<Examination> examine(const Questions& questions);

}  // namespace linkcpp::doctor
