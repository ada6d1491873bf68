#include "serve/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <charconv>
#include <memory>

namespace linkcpp::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

Result<tcp::endpoint> resolve(asio::io_context& context, const HostPort& address) {
  boost::system::error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, error);
  if (error || found.empty())
    return fail(ErrorKind::invalid_input, "'{}' is not an address of this machine: {}", address.host, error.message());
  return found.begin()->endpoint();
}

}  // namespace

std::string HostPort::text() const { return host.contains(':') ? std::format("[{}]:{}", host, port) : std::format("{}:{}", host, port); }

Result<HostPort> parse_host_port(const std::string& text) {
  const auto wrong = [&] { return fail(ErrorKind::invalid_input, "'{}' is not an address: write HOST:PORT, or [IPV6]:PORT", text); };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong();
  HostPort result;
  result.host = text.substr(0, colon);
  if (result.host.starts_with('[') && result.host.ends_with(']')) {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.contains(':')) {
    return wrong();
  }
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, result.port);
  if (result.host.empty() || error != std::errc{} || rest != end) return wrong();
  return result;
}

Result<HostPort> claim_port(HostPort address) {
  asio::io_context context;
  auto endpoint = resolve(context, address);
  if (!endpoint) return pass(endpoint);
  boost::system::error_code error;
  tcp::acceptor acceptor(context);
  acceptor.open(endpoint->protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(*endpoint, error);
  if (!error) acceptor.listen(1, error);
  if (error) {
    const char* remedy = error == asio::error::address_in_use  ? "another program has it: stop that one, or choose another port"
                         : error == asio::error::access_denied ? "ports below 1024 need privileges: choose a higher one"
                                                               : "choose an address that this machine has";
    return fail(ErrorKind::unavailable, "cannot listen on {}: {} ({})", address.text(), error.message(), remedy);
  }
  address.port = acceptor.local_endpoint().port();
  return address;
}

std::vector<std::string> local_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<std::string> v4, v6;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (entry->ifa_addr->sa_family == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      const asio::ip::address_v4 address(ntohl(in->sin_addr.s_addr));
      if (!address.is_loopback() && (address.to_uint() >> 16) != 0xA9FE) v4.push_back(address.to_string());
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* in = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      asio::ip::address_v6::bytes_type bytes;
      std::copy_n(in->sin6_addr.s6_addr, bytes.size(), bytes.begin());
      const asio::ip::address_v6 address(bytes);
      if (!address.is_loopback() && !address.is_link_local()) v6.push_back(address.to_string());
    }
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  return v4;
}

std::string client_url(const HostPort& address) {
  HostPort reachable = address;
  if (reachable.host == "0.0.0.0") reachable.host = "127.0.0.1";
  if (reachable.host == "::") reachable.host = "::1";
  return "http://" + reachable.text();
}

}  // namespace linkcpp::serve
