// Routers that speak NAT-PMP, through libnatpmp, whose calls do not block: waiting is ours, in short steps, so that it can be stopped.
#include <natpmp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "net/router.h"

namespace linkcpp::net {
namespace {

namespace ip = boost::asio::ip;
using Clock = std::chrono::steady_clock;
constexpr auto glance = std::chrono::milliseconds(50);  ///< how often a wait looks whether it shall end
constexpr auto answer_limit = std::chrono::milliseconds(2000);

ip::address_v4 address_of(in_addr_t raw) { return ip::address_v4(ntohl(raw)); }

Error words_of(int code, const std::string& where) {
  switch (code) {
    case NATPMP_ERR_NOTAUTHORIZED:
      return {
          ErrorKind::unauthorized,
          std::format("the router {} understands NAT-PMP and refuses: port mapping is switched off there, or not for this port", where)};
    case NATPMP_ERR_NETWORKFAILURE:
      return {ErrorKind::unavailable, std::format("the router {} has no connection to the outside", where)};
    case NATPMP_ERR_OUTOFRESOURCES:
      return {ErrorKind::unavailable, std::format("the router {} has no room for another port mapping", where)};
    case NATPMP_ERR_NOGATEWAYSUPPORT:
    case NATPMP_ERR_UNSUPPORTEDVERSION:
    case NATPMP_ERR_UNSUPPORTEDOPCODE:
    case NATPMP_ERR_RECVFROM:
      return {ErrorKind::not_found, std::format("the router {} does not understand NAT-PMP", where)};
    case NATPMP_ERR_CANNOTGETGATEWAY:
      return {ErrorKind::not_found, "there is no default gateway that could be asked by NAT-PMP"};
    default:
      return {ErrorKind::io, std::format("NAT-PMP with the router {} failed (error {} of libnatpmp)", where, code)};
  }
}

class NatPmpRouter final : public Router {
 public:
  explicit NatPmpRouter(std::stop_token stop) : stop_(std::move(stop)) {}
  ~NatPmpRouter() override {
    if (open_) closenatpmp(&natpmp_);
  }
  NatPmpRouter(const NatPmpRouter&) = delete;
  NatPmpRouter& operator=(const NatPmpRouter&) = delete;

  Result<> begin(const std::optional<ip::address_v4>& gateway) {
    const int code = initnatpmp(&natpmp_, gateway ? 1 : 0, gateway ? htonl(gateway->to_uint()) : 0);
    if (code < 0) return std::unexpected(words_of(code, gateway ? gateway->to_string() : ""));
    open_ = true;
    return {};
  }

  [[nodiscard]] std::string_view protocol() const override { return "NAT-PMP"; }
  [[nodiscard]] std::string where() const override { return address_of(natpmp_.gateway).to_string(); }

  Result<ip::address> outside() override { return outside_within(answer_limit); }
  Result<ip::address> outside_within(std::chrono::milliseconds patience) {
    if (const int code = sendpublicaddressrequest(&natpmp_); code < 0) return std::unexpected(words_of(code, where()));
    auto answer = wait(NATPMP_RESPTYPE_PUBLICADDRESS, patience, true);
    if (!answer) return pass(answer);
    return address_of(answer->pnu.publicaddress.addr.s_addr);
  }

  Result<PortGrant> open(const PortWish& wish) override {
    auto answer = map(wish, wish.port, wish.lease, true);
    if (!answer) return pass(answer);
    return PortGrant{.port = answer->pnu.newportmapping.mappedpublicport,
                     .lease = std::chrono::seconds(answer->pnu.newportmapping.lifetime)};
  }

  /// Even when everything shall end: that is when it is needed.
  void close(const PortWish& wish, const PortGrant& /*grant*/) override { std::ignore = map(wish, 0, std::chrono::seconds(0), false); }

 private:
  Result<natpmpresp_t> map(const PortWish& wish, std::uint16_t outside, std::chrono::seconds lease, bool stoppable) {
    const bool udp = wish.protocol == PortProtocol::udp;
    const int code = sendnewportmappingrequest(&natpmp_, udp ? NATPMP_PROTOCOL_UDP : NATPMP_PROTOCOL_TCP, wish.port, outside,
                                               static_cast<std::uint32_t>(lease.count()));
    if (code < 0) return std::unexpected(words_of(code, where()));
    return wait(udp ? NATPMP_RESPTYPE_UDPPORTMAPPING : NATPMP_RESPTYPE_TCPPORTMAPPING, stoppable ? answer_limit : answer_limit / 2,
                stoppable);
  }

  /// The library repeats the question when that is due.
  Result<natpmpresp_t> wait(std::uint16_t type, std::chrono::milliseconds patience, bool stoppable) {
    for (const auto end = Clock::now() + patience; Clock::now() < end;) {
      if (stoppable && stop_.stop_requested()) return fail(ErrorKind::unavailable, "asking the router was ended");
      natpmpresp_t answer{};
      const int code = readnatpmpresponseorretry(&natpmp_, &answer);
      if (code == 0 && answer.type == type) return answer;
      if (code < 0 && code != NATPMP_TRYAGAIN) return std::unexpected(words_of(code, where()));
      pollfd readable{natpmp_.s, POLLIN, 0};
      timeval due{};
      getnatpmprequesttimeout(&natpmp_, &due);
      const auto until_due = std::chrono::milliseconds(due.tv_sec * 1000 + due.tv_usec / 1000 + 1);
      ::poll(&readable, 1,
             static_cast<int>(std::clamp<std::chrono::milliseconds>(until_due, std::chrono::milliseconds(1), glance).count()));
    }
    return fail(ErrorKind::not_found, "the router {} does not answer by NAT-PMP", where());
  }

  natpmp_t natpmp_{};
  bool open_ = false;
  std::stop_token stop_;
};

Result<std::unique_ptr<Router>> find(const std::stop_token& stop, std::chrono::milliseconds patience,
                                     const std::optional<ip::address_v4>& gateway) {
  auto router = std::make_unique<NatPmpRouter>(stop);
  if (auto begun = router->begin(gateway); !begun) return pass(begun);
  // One that understands the protocol answers this.
  if (auto outside = router->outside_within(patience); !outside) return pass(outside);
  return router;
}

}  // namespace

Result<std::unique_ptr<Router>> find_natpmp_router(const std::stop_token& stop, std::chrono::milliseconds patience) {
  return find(stop, patience, std::nullopt);
}

Result<std::unique_ptr<Router>> find_natpmp_router(const std::stop_token& stop, std::chrono::milliseconds patience,
                                                   const ip::address_v4& gateway) {
  return find(stop, patience, gateway);
}

}  // namespace linkcpp::net
