// Slices over HTTP(S) with Range requests: from another node, from a web server with a slice folder, or out of GGUF files on a web server.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "net/transport.h"
#include "store/source.h"

namespace linkcpp::fetch {

struct HttpKnobs {
  std::chrono::milliseconds connect_limit{10'000};  ///< TCP and TLS
  std::chrono::milliseconds stall_limit{15'000};    ///< for so long less than stall_bytes came: the source is given up
  std::uint64_t stall_bytes = 16u << 10;
  int max_redirects = 4;
  std::uint64_t coalesce_gap = 64u << 10;  ///< GGUF: ranges this close are fetched in one request, what is between them is dropped
};

/// A source at `url`:
///
///   lks://host:port                another node's SliceServer; `credentials` needed, with the node's key as expected_peer if it is known
///   http(s)://host/path/to/x.gguf  the model's own file; the others are beside it, by the names that the index says. `index` needed
///   http(s)://host/path/           a folder that `linkcpp slice` wrote: objects/ab/abcdef…
///
/// Public https servers are verified against the system's authorities ($SSL_CERT_FILE, $SSL_CERT_DIR) and their host name. `invalid_input`
/// on a URL that cannot be one. Nothing is connected before the first read().
Result<std::unique_ptr<store::SliceSource>> http_source(const std::string& url, HttpKnobs knobs = {},
                                                        std::shared_ptr<const store::SliceIndex> index = nullptr,
                                                        std::optional<net::Credentials> credentials = std::nullopt);

/// A whole small file, or with lks:// a path on a node ("lks://host:port/v1/indexes/<hex>"). `invalid_input` if it is larger than
/// `max_bytes`.
Result<std::string> http_get(const std::string& url, std::uint64_t max_bytes, HttpKnobs knobs = {},
                             std::optional<net::Credentials> credentials = std::nullopt);

}  // namespace linkcpp::fetch
