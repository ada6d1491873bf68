#include "net/endpoint.h"

#include <algorithm>
#include <charconv>

namespace linkcpp::net {
namespace {

constexpr std::size_t max_host_length = 253;  // DNS

bool plausible_host(std::string_view host) {
  return !host.empty() && host.size() <= max_host_length &&
         std::ranges::all_of(host, [](char c) { return c > ' ' && c < 0x7F && c != '[' && c != ']'; });
}

}  // namespace

std::string Endpoint::text() const { return host.contains(':') ? std::format("[{}]:{}", host, port) : std::format("{}:{}", host, port); }

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto wrong = [&](const char* why) {
    return fail(ErrorKind::invalid_input, "'{}' is not an address: {}; write it as host:port, [IPv6]:port for IPv6", text.substr(0, 300),
                why);
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("the port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']') && host.size() > 2) {
    host = host.substr(1, host.size() - 2);
    if (!host.contains(':')) return wrong("there is no IPv6 address between the brackets");
  } else if (host.contains(':')) {
    return wrong("an IPv6 address needs brackets");
  }
  if (!plausible_host(host)) return wrong("the host is missing or malformed");
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size()) return wrong("the port is not a number up to 65535");
  return Endpoint{std::string(host), port};
}

}  // namespace linkcpp::net
