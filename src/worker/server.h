// The worker: admits backbones, takes their requests, computes them on one expert host, answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/expert_host.h"
#include "net/session_link.h"
#include "net/token.h"
#include "net/transport.h"
#include "worker/provisioner.h"

namespace linkcpp::worker {

struct ServerOptions {
  std::string name;
  std::vector<std::string> listen;  ///< for backbones that dial: "host:port", "relay://…"; empty: none
  std::vector<std::string> dial;    ///< addresses of the backbone; empty: only listen
  net::Identity identity;
  net::JoinToken token;
  wire::Digest model{};                       ///< whose experts the host holds; zeros if they are to be provisioned
  std::optional<ProvisionOptions> provision;  ///< experts are assigned by the backbone and fetched
  net::LinkKnobs link;
  net::SessionKnobs session;
  std::chrono::milliseconds welcome_deadline{10'000};  ///< from hello to the backbone's answer
  std::chrono::milliseconds drain_grace{2'000};  ///< after SIGTERM: how long new requests are still taken; what waits is always answered
  std::chrono::milliseconds drain_idle{200};     ///< … and how long nothing must have come for it to end sooner
  std::chrono::microseconds delay{0};            ///< added to every answer, to imitate distance
  std::size_t max_queued_requests = 1024;        ///< of one link, before it is closed
  std::size_t max_queued_bytes = std::size_t{1} << 30;
  std::size_t max_programs = 256;                        ///< of one link
  std::size_t max_batch_bytes = std::size_t{256} << 20;  ///< rows and results of requests that are merged; one alone may be larger
};

/// What a server has done so far.
struct ServerCounters {
  std::uint64_t requests = 0, tokens = 0, pairs = 0, batches = 0, failures = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;  ///< frames of requests and of their answers
  std::chrono::nanoseconds compute{0};
};

/// Threading: run() on one thread, which also computes; stop() from any thread or signal-safe context of the caller's own.
class Server {
 public:
  static Result<std::unique_ptr<Server>> open(std::unique_ptr<engine::ExpertHost> host, ServerOptions options);
  virtual ~Server() = default;
  /// Serves until it has drained after stop(), or after the process got SIGTERM or SIGINT. A second stop or signal ends at once.
  virtual void run() = 0;
  virtual void stop() = 0;
  virtual ServerCounters counters() = 0;
  [[nodiscard]] virtual std::string listen_address() const = 0;
};

}  // namespace linkcpp::worker
