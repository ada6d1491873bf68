// Gives slices to other nodes: an HTTPS server with the node's own identity, for those who know the swarm's secret.
//
//   GET, HEAD /v1/slices/<64 hex>    a slice's object; one Range is honoured
//   GET, HEAD /v1/indexes/<64 hex>   a slice index
//
// TLS 1.3, Ed25519 certificates on both sides, as links have them. Each connection proves the join token's secret first
// (fetch/proof.h); without that every answer is 401.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/transport.h"
#include "store/index.h"
#include "store/store.h"

namespace linkcpp::fetch {

/// What a server gives. Threading: all functions from any thread.
class SliceProvider {
 public:
  virtual ~SliceProvider() = default;
  /// Bytes of a slice's object; none if it is not here.
  [[nodiscard]] virtual std::optional<std::uint64_t> bytes_of(const store::Digest& digest) const = 0;
  /// Reads exactly to.size() bytes at `offset`, which lie inside the object.
  virtual Result<> read(const store::Digest& digest, std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// A slice index; `not_found` if it is not here.
  [[nodiscard]] virtual Result<std::string> index(const store::Digest& digest) const = 0;
};

/// Everything whole in a store, also what arrives later.
std::shared_ptr<SliceProvider> provide_store(std::shared_ptr<const store::Store> store);
/// Every slice of an index, straight out of the model's GGUF files (`paths` in the order of index.files), and the index itself. Fails with
/// `not_found` or `invalid_input` if a file is missing or of another size than the index says.
Result<std::shared_ptr<SliceProvider>> provide_gguf(std::shared_ptr<const store::SliceIndex> index,
                                                    const std::vector<std::filesystem::path>& paths);

struct SliceServerOptions {
  std::string listen = "0.0.0.0:0";  ///< "host:port"; port 0 picks one
  net::Credentials credentials;      ///< any peer that proves the secret is served; expected_peer is not looked at
  std::size_t max_connections = 128;
  std::size_t max_connections_per_peer = 16;
  std::chrono::milliseconds handshake_deadline{10'000};  ///< TCP accept to the first whole request
  std::chrono::milliseconds idle_limit{60'000};          ///< between requests
  std::chrono::milliseconds stall_limit{20'000};         ///< nothing of an answer was taken for so long
};

/// Threading: all functions from any thread. Destroying it closes every connection and waits for its threads.
class SliceServer {
 public:
  /// Fails with `invalid_input` (address) or `io`, naming the address.
  static Result<std::unique_ptr<SliceServer>> open(SliceServerOptions options, std::vector<std::shared_ptr<SliceProvider>> providers = {});
  virtual ~SliceServer() = default;

  /// The bound address, "host:port" with the real port.
  [[nodiscard]] virtual std::string address() const = 0;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// Providers are asked in the order of their adding.
  virtual void add(std::shared_ptr<SliceProvider> provider) = 0;

  struct PeerCount {
    std::uint64_t requests = 0;
    std::uint64_t bytes = 0;  ///< of slices, sent
  };
  struct Counters {
    std::map<net::PeerKey, PeerCount> peers;  ///< of those that proved the secret; bounded
    std::uint64_t refused = 0;                ///< connections turned away: no proof, too many, no TLS
    std::uint64_t connections = 0;            ///< open now
    [[nodiscard]] std::uint64_t bytes() const;
  };
  [[nodiscard]] virtual Counters counters() const = 0;
};

}  // namespace linkcpp::fetch
