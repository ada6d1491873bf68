// Routers that speak UPnP, through miniupnpc, whose calls block: each for some seconds at most, by its own limits.
// clang-format off: miniupnpc's headers use size_t without declaring it
#include <cstddef>
#include <miniupnpc/miniupnpc.h>
#include <miniupnpc/upnpcommands.h>
#include <miniupnpc/upnperrors.h>
// clang-format on

#include <array>
#include <boost/asio/ip/address.hpp>
#include <utility>

#include "net/router.h"

namespace linkcpp::net {
namespace {

namespace ip = boost::asio::ip;
constexpr int kinds_of_router = 4;          // that the library asks for, one after the other; late answers to the first count as well
constexpr int only_permanent_leases = 725;  // error code of WANIPConnection: OnlyPermanentLeasesSupported
constexpr int refused = 606;                // Action not authorized

class UpnpRouter final : public Router {
 public:
  UpnpRouter() = default;
  ~UpnpRouter() override { FreeUPNPUrls(&urls_); }
  UpnpRouter(const UpnpRouter&) = delete;
  UpnpRouter& operator=(const UpnpRouter&) = delete;

  /// Takes the first of the devices that is a router.
  Result<> begin(UPNPDev* devices) {
    std::array<char, 64> outside{};
    const int kind = UPNP_GetValidIGD(devices, &urls_, &data_, here_.data(), static_cast<int>(here_.size()), outside.data(),
                                      static_cast<int>(outside.size()));
    if (kind == UPNP_CONNECTED_IGD || kind == UPNP_PRIVATEIP_IGD) return {};
    if (kind == UPNP_DISCONNECTED_IGD) return fail(ErrorKind::unavailable, "the router {} has no connection to the outside", where());
    return fail(ErrorKind::not_found, "no router answers by UPnP");
  }

  [[nodiscard]] std::string_view protocol() const override { return "UPnP"; }
  [[nodiscard]] std::string where() const override { return urls_.rootdescURL == nullptr ? "" : urls_.rootdescURL; }

  Result<ip::address> outside() override {
    std::array<char, 64> text{};
    if (const int code = UPNP_GetExternalIPAddress(urls_.controlURL, data_.first.servicetype, text.data()); code != UPNPCOMMAND_SUCCESS) {
      return std::unexpected(words_of(code));
    }
    boost::system::error_code error;
    auto address = ip::make_address(text.data(), error);
    if (error) return fail(ErrorKind::incompatible, "the router {} names no outside address", where());
    return address;
  }

  Result<PortGrant> open(const PortWish& wish) override {
    int code = add(wish, wish.lease);
    if (code == UPNPCOMMAND_SUCCESS) return PortGrant{wish.port, wish.lease};
    if (code != only_permanent_leases) return std::unexpected(words_of(code));
    code = add(wish, std::chrono::seconds(0));
    if (code == UPNPCOMMAND_SUCCESS) return PortGrant{wish.port, std::chrono::seconds(0)};
    return std::unexpected(words_of(code));
  }

  void close(const PortWish& wish, const PortGrant& grant) override {
    UPNP_DeletePortMapping(urls_.controlURL, data_.first.servicetype, std::to_string(grant.port).c_str(), port_protocol_name(wish.protocol),
                           nullptr);
  }

 private:
  int add(const PortWish& wish, std::chrono::seconds lease) {
    const std::string port = std::to_string(wish.port);
    return UPNP_AddPortMapping(urls_.controlURL, data_.first.servicetype, port.c_str(), port.c_str(), here_.data(), "linkcpp",
                               port_protocol_name(wish.protocol), nullptr, std::to_string(lease.count()).c_str());
  }
  [[nodiscard]] Error words_of(int code) const {
    const char* words = strupnperror(code);
    return {code == refused ? ErrorKind::unauthorized : ErrorKind::unavailable,
            std::format("the router {} refuses by UPnP: {}", where(), words == nullptr ? std::format("error {}", code) : words)};
  }

  UPNPUrls urls_{};
  IGDdatas data_{};
  std::array<char, 64> here_{};  ///< this machine's address, as the router sees it
};

}  // namespace

Result<std::unique_ptr<Router>> find_upnp_router(const std::stop_token& stop, std::chrono::milliseconds patience) {
  int error = 0;
  const auto each = patience / kinds_of_router;
  const std::unique_ptr<UPNPDev, void (*)(UPNPDev*)> devices(
      upnpDiscover(static_cast<int>(each.count()), nullptr, nullptr, UPNP_LOCAL_PORT_ANY, 0, 2, &error), freeUPNPDevlist);
  if (stop.stop_requested()) return fail(ErrorKind::unavailable, "looking for a router was ended");
  if (!devices) return fail(ErrorKind::not_found, "no router answers by UPnP");
  auto router = std::make_unique<UpnpRouter>();
  if (auto begun = router->begin(devices.get()); !begun) return pass(begun);
  return router;
}

}  // namespace linkcpp::net
