#include "net/router.h"

#include <utility>

namespace linkcpp::net {

const char* port_protocol_name(PortProtocol protocol) { return protocol == PortProtocol::udp ? "UDP" : "TCP"; }

Result<std::unique_ptr<Router>> find_any_router(const std::stop_token& stop, std::chrono::milliseconds patience) {
  auto natpmp = find_natpmp_router(stop, patience);
  if (natpmp || stop.stop_requested()) return natpmp;
  auto upnp = find_upnp_router(stop, patience);
  if (upnp) return upnp;
  return fail(upnp.error().kind, "{}; {}", natpmp.error().message, upnp.error().message);
}

}  // namespace linkcpp::net
