// "host:port" as the transport understands it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace linkcpp::net {

struct Endpoint {
  std::string host;  ///< without brackets; a name or a numeric address
  std::uint16_t port = 0;
  /// "host:port", with brackets around an IPv6 address.
  [[nodiscard]] std::string text() const;
};

/// Fails with `invalid_input`, naming the text and the form that is expected.
Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace linkcpp::net
