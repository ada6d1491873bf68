// The backbone's side of the swarm: admits workers, dispatches regions to them, keeps the account.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "dispatch/account.h"
#include "engine/anatomy.h"
#include "engine/expert_service.h"
#include "swarm/config.h"

namespace linkcpp::swarm {

/// The expert service over real links. Threading: begin/await/abandon/pass_done from any graph's thread, the rest from any thread.
class Backbone : public engine::ExpertService {
 public:
  /// Reads the model's anatomy, opens the identity, listens and dials. Workers may join from then on.
  static Result<std::unique_ptr<Backbone>> open(Config config);

  [[nodiscard]] virtual const engine::Anatomy& anatomy() const = 0;
  [[nodiscard]] virtual const Config& config() const = 0;
  /// Blocks until every expert of the model is held by a live worker, or `aborted` returns true (then `unavailable`, naming the gaps).
  virtual Result<> wait_for_coverage(const std::function<bool()>& aborted) = 0;
  [[nodiscard]] virtual dispatch::Account account() = 0;
  /// Emits the account on the status channel now, for the end of a run.
  virtual void flush_status() = 0;
  /// The bound address of the listener, empty if there is none.
  [[nodiscard]] virtual std::string listen_address() const = 0;
};

}  // namespace linkcpp::swarm
