// The admin endpoint: a small HTTP server that shows the swarm's state, for people, scripts and `linkcpp bench`.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "serve/address.h"

namespace linkcpp::serve {

struct AdminKnobs {
  std::size_t max_connections = 32;  ///< further ones are closed at once
  std::size_t max_header_bytes = 8192;
  std::size_t max_body_bytes = 1024;             ///< nobody needs to send one
  std::chrono::milliseconds idle_limit{30'000};  ///< for a whole request to arrive, and for its answer to leave
};

/// Answers GET and HEAD /v1/swarm with the JSON that `snapshot` makes; other paths 404, other methods 405. Read-only and without
/// authentication: bind it to loopback. Runs on the io_context's thread, which also calls `snapshot`.
class AdminServer {
 public:
  using Snapshot = std::function<nlohmann::json()>;
  static Result<std::unique_ptr<AdminServer>> open(boost::asio::io_context& context, const HostPort& address, Snapshot snapshot,
                                                   AdminKnobs knobs = {});
  virtual ~AdminServer() = default;
  /// The bound address, with the real port.
  [[nodiscard]] virtual HostPort address() const = 0;
};

}  // namespace linkcpp::serve
