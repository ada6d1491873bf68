#include "fetch/url.h"

#include <algorithm>

#include "net/endpoint.h"
#include "wire/text.h"

namespace linkcpp::fetch {
namespace {

constexpr std::size_t max_url = 8192;

std::uint16_t default_port(std::string_view scheme) { return scheme == "http" ? 80 : scheme == "https" ? 443 : 0; }

}  // namespace

std::string Url::authority() const {
  const std::string shown = host.contains(':') ? "[" + host + "]" : host;
  return port == default_port(scheme) ? shown : std::format("{}:{}", shown, port);
}

std::string Url::text() const { return std::format("{}://{}{}", scheme, authority(), target); }

Result<Url> parse_url(std::string_view text) {
  const auto wrong = [&](const std::string& why) {
    return fail(ErrorKind::invalid_input, "'{}' is not a URL that can be fetched: {}", wire::plain_text(text, 300), why);
  };
  if (text.size() > max_url) return wrong("it is too long");
  if (!std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; }))
    return wrong("it has characters that must be percent-encoded");
  const std::size_t mark = text.find("://");
  if (mark == std::string_view::npos) return wrong("it begins with none of http://, https://, lks://");
  Url url;
  url.scheme = text.substr(0, mark);
  if (url.scheme != "http" && url.scheme != "https" && url.scheme != "lks")
    return wrong("it begins with none of http://, https://, lks://");
  std::string_view rest = text.substr(mark + 3);
  rest = rest.substr(0, rest.find('#'));
  const std::size_t slash = rest.find_first_of("/?");
  std::string authority(rest.substr(0, slash));
  if (slash != std::string_view::npos) url.target = (rest[slash] == '?' ? "/" : "") + std::string(rest.substr(slash));
  if (authority.contains('@')) return wrong("user names and passwords are not sent");
  const bool has_port = authority.rfind(':') != std::string::npos && !authority.ends_with(']');
  if (!has_port) {
    if (default_port(url.scheme) == 0) return wrong("the port is missing");
    authority += std::format(":{}", default_port(url.scheme));
  }
  auto endpoint = net::parse_endpoint(authority);
  if (!endpoint) return wrong(endpoint.error().message);
  url.host = endpoint->host;
  url.port = endpoint->port;
  return url;
}

Result<Url> resolve(const Url& from, std::string_view location) {
  if (location.contains("://")) return parse_url(location);
  if (location.starts_with("//")) return parse_url(from.scheme + ":" + std::string(location));
  Url url = from;
  url.target =
      location.starts_with('/') ? std::string(location) : from.path().substr(0, from.path().rfind('/') + 1) + std::string(location);
  return parse_url(url.text());
}

std::string encode_component(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || std::string_view("-._~").contains(c);
    text += plain ? std::string(1, c) : std::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return text;
}

}  // namespace linkcpp::fetch
