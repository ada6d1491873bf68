#include "net/endpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "wire/text.h"

namespace linkcpp::net {
namespace {

constexpr std::size_t max_host_length = 253;  // DNS
constexpr std::size_t max_address = 2048;
constexpr std::size_t shown_text = 300;
constexpr std::array<std::string_view, 5> scheme_names = {"tcp", "ws", "wss", "quic", "relay"};  // as the enumeration

bool plausible_host(std::string_view host) {
  return !host.empty() && host.size() <= max_host_length &&
         std::ranges::all_of(host, [](char c) { return c > ' ' && c < 0x7F && c != '[' && c != ']'; });
}

std::uint16_t default_port(Scheme scheme) { return scheme == Scheme::ws ? 80 : scheme == Scheme::wss ? 443 : 0; }

}  // namespace

std::string Endpoint::text() const { return host.contains(':') ? std::format("[{}]:{}", host, port) : std::format("{}:{}", host, port); }

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto wrong = [&](const char* why) {
    return fail(ErrorKind::invalid_input, "'{}' is not an address: {}; write it as host:port, [IPv6]:port for IPv6",
                wire::plain_text(text, shown_text), why);
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

std::string_view scheme_name(Scheme scheme) { return scheme_names[static_cast<std::size_t>(scheme)]; }

std::string Address::authority() const {
  if (endpoint.port != default_port(carrier)) return endpoint.text();
  return endpoint.host.contains(':') ? "[" + endpoint.host + "]" : endpoint.host;
}

std::string Address::text() const {
  if (scheme == Scheme::tcp) return endpoint.text();
  std::string text(scheme_name(scheme));
  if (scheme != carrier && in_websocket()) text += "+" + std::string(scheme_name(carrier));
  text += "://";
  if (relay_key) text += key_text(*relay_key) + "@";
  text += authority();
  if (path != "/") text += path;
  if (key) text += (text.ends_with('/') ? "" : "/") + key_text(*key);
  return text;
}

namespace {

using Reason = std::string;
constexpr const char* known_schemes = "it begins with none of tcp://, ws://, wss://, quic://, relay://";

/// What stands before "://".
std::expected<void, Reason> take_scheme(Address& address, std::string_view text) {
  const auto find = [](std::string_view name) {
    const auto known = std::ranges::find(scheme_names, name);
    return known == scheme_names.end() ? std::nullopt : std::optional(static_cast<Scheme>(known - scheme_names.begin()));
  };
  const std::size_t plus = text.find('+');
  const auto scheme = find(text.substr(0, plus));
  if (!scheme) return std::unexpected(known_schemes);
  address.scheme = *scheme;
  if (address.scheme == Scheme::ws || address.scheme == Scheme::wss) address.carrier = address.scheme;
  if (plus == std::string_view::npos) return {};
  const auto carrier = find(text.substr(plus + 1));
  if (address.scheme != Scheme::relay || (carrier != Scheme::ws && carrier != Scheme::wss)) return std::unexpected(known_schemes);
  address.carrier = *carrier;
  return {};
}

/// What stands behind the authority: a path where there is a WebSocket, then a node's key where there is a relay.
std::expected<void, Reason> take_rest(Address& address, std::string_view rest) {
  rest = rest.substr(0, rest.find('#'));
  if (rest.empty() || rest == "/") return {};
  if (address.scheme == Scheme::relay) {
    const std::size_t slash = rest.rfind('/');
    const auto key = parse_key(slash == std::string_view::npos ? rest : rest.substr(slash + 1));
    if (key) {
      address.key = *key;
      rest = rest.substr(0, slash);
    } else if (!address.in_websocket()) {
      return std::unexpected(key.error().message);
    }
    if (rest.empty()) return {};
  }
  if (!address.in_websocket()) return std::unexpected("nothing more may stand behind the port");
  address.path = (rest[0] == '/' ? "" : "/") + std::string(rest);
  return {};
}

std::expected<Address, Reason> parse_parts(std::string_view scheme, std::string_view rest) {
  Address address;
  if (auto taken = take_scheme(address, scheme); !taken) return std::unexpected(std::move(taken.error()));
  const std::size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  std::string authority(rest.substr(0, end));
  if (const std::size_t at = authority.rfind('@'); at != std::string::npos) {
    if (address.scheme != Scheme::relay) return std::unexpected("user names and passwords are not sent");
    const auto key = parse_key(std::string_view(authority).substr(0, at));
    if (!key) return std::unexpected(key.error().message);
    address.relay_key = *key;
    authority.erase(0, at + 1);
  }
  const bool has_port = authority.rfind(':') != std::string::npos && !authority.ends_with(']');
  if (!has_port && default_port(address.carrier) != 0) authority += std::format(":{}", default_port(address.carrier));
  auto endpoint = parse_endpoint(authority);
  if (!endpoint) return std::unexpected(endpoint.error().message);
  address.endpoint = std::move(*endpoint);
  if (auto taken = take_rest(address, rest.substr(end)); !taken) return std::unexpected(std::move(taken.error()));
  return address;
}

}  // namespace

Result<Address> parse_address(std::string_view text) {
  const std::size_t mark = text.find("://");
  if (mark == std::string_view::npos) {
    auto endpoint = parse_endpoint(text);
    if (!endpoint) return pass(endpoint);
    return Address{.endpoint = std::move(*endpoint)};
  }
  auto address = [&]() -> std::expected<Address, Reason> {
    if (text.size() > max_address) return std::unexpected("it is too long");
    if (!std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; }))
      return std::unexpected("it has characters that must be percent-encoded");
    return parse_parts(text.substr(0, mark), text.substr(mark + 3));
  }();
  if (!address) {
    return fail(ErrorKind::invalid_input, "'{}' is not an address: {}", wire::plain_text(text, shown_text), address.error());
  }
  return std::move(*address);
}

}  // namespace linkcpp::net
