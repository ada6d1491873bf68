// Addresses as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace linkcpp::serve {

struct HostPort {
  std::string host;  ///< without brackets
  std::uint16_t port = 0;
  /// "host:port", with brackets around an IPv6 address.
  [[nodiscard]] std::string text() const;
};

/// Parses "host:port" or "[ipv6]:port". The error names the text and the form that is expected.
Result<HostPort> parse_host_port(const std::string& text);

/// Replaces port 0 by one that is free now, and fails with `unavailable` if the address cannot be bound, saying why.
Result<HostPort> claim_port(HostPort address);

/// This machine's own addresses, without loopback and link-local ones, IPv4 first; empty if it has none.
std::vector<std::string> local_addresses();

/// "http://host:port", with a wildcard host replaced by loopback, as a client on this machine would write it.
std::string client_url(const HostPort& address);

}  // namespace linkcpp::serve
