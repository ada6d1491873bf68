// URLs, as far as fetching needs them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace linkcpp::fetch {

struct Url {
  std::string scheme;  ///< "http", "https" or "lks"
  std::string host;    ///< without brackets
  std::uint16_t port = 0;
  std::string target = "/";                     ///< path and query, as it goes on the wire
  [[nodiscard]] std::string authority() const;  ///< "host" or "host:port", for the Host header
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string path() const { return target.substr(0, target.find('?')); }
};

/// `invalid_input`, naming the text and what is wrong.
Result<Url> parse_url(std::string_view text);
/// Where a Location header leads from `from`.
Result<Url> resolve(const Url& from, std::string_view location);
/// A file name as a path component: everything but unreserved characters is percent-encoded.
std::string encode_component(std::string_view name);

}  // namespace linkcpp::fetch
