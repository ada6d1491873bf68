// Gets a worker its experts: knows what is stored here, fetches what a backbone assigns, and says which layers are complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/expert_host.h"
#include "net/identity.h"
#include "net/token.h"
#include "wire/provision.h"

namespace linkcpp::worker {

struct ProvisionOptions {
  std::uint64_t budget = 0;         ///< bytes of slices to hold
  std::filesystem::path store;      ///< folder of the slice store
  std::string share = "0.0.0.0:0";  ///< "host:port" where other nodes get slices from this one; empty: not at all
  std::filesystem::path model;      ///< the model's GGUF, if it is on this machine: slices are copied out of it
  net::Identity identity;
  net::Secret secret{};
  unsigned parallel = 4;  ///< transfers at a time
};

/// A layer of which everything that was assigned is in the store.
struct ArrivedLayer {
  engine::MoeLayer layer;
  wire::LayerHolding experts;
  engine::SliceReader read;  ///< out of the store
};

struct ProvisionProgress {
  std::uint64_t bytes = 0, bytes_wanted = 0;  ///< of assigned slices: here, all
  std::uint64_t fetched = 0;                  ///< of these, bytes that came over a network or from a file in this process's life
  double bytes_per_second = 0;
  double seconds_left = -1;  ///< negative: not known
  bool operator==(const ProvisionProgress&) const = default;
};

/// Threading: all functions from any thread. `wake` is called on threads of its own whenever take() may have something.
class Provisioner {
 public:
  /// Opens the store and begins to share it. Fails with `io` if the folder cannot be used or the port is taken.
  static Result<std::unique_ptr<Provisioner>> open(ProvisionOptions options, std::function<void()> wake);
  virtual ~Provisioner() = default;

  /// Room, and what is stored of the model that was held last.
  [[nodiscard]] virtual wire::Offer offer() const = 0;
  /// Fetches what is assigned from now on, instead of what was assigned before. `host`: where the backbone was reached (empty: at a relay),
  /// for sources without one. Returns at once; faults are logged.
  virtual void assign(wire::Assign assign, const std::string& host, const net::PeerKey& backbone) = 0;
  /// The next layer that is complete; the caller holds it from then on.
  virtual std::optional<ArrivedLayer> take() = 0;
  /// Digest of the model that is assigned; none before.
  [[nodiscard]] virtual std::optional<wire::Digest> model() const = 0;
  [[nodiscard]] virtual ProvisionProgress progress() const = 0;
};

}  // namespace linkcpp::worker
