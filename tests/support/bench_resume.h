// Dials the same address by QUIC again and again from one socket, whose tickets let all but the first time resume.
#pragma once

#include <boost/asio/post.hpp>
#include <memory>
#include <string>
#include <utility>

#include "net/connection.h"
#include "net/quic_hub.h"
#include "support/bench_leg.h"
#include "support/bench_punch.h"

namespace linkcpp::bench {

/// As a dialer does it, but when it is told to, without a dialer's pauses. On the driving side.
class Resuming {
 public:
  static constexpr std::string_view scheme = "quic://";

  static Result<std::unique_ptr<Resuming>> open(boost::asio::io_context& context, const net::Credentials& credentials,
                                                const net::LinkKnobs& knobs, const std::string& address) {
    auto to = udp_address(address.substr(scheme.size()));
    if (!to) return pass(to);
    auto endpoint = net::QuicEndpoint::open(boost::asio::make_strand(context), {to->protocol(), 0}, credentials, knobs);
    if (!endpoint) return pass(endpoint);
    return std::make_unique<Resuming>(std::move(*endpoint), *to);
  }
  Resuming(std::shared_ptr<net::QuicEndpoint> endpoint, const net::Udp::endpoint& to) : endpoint_(std::move(endpoint)), to_(to) {}

  /// The leg gets the link, or hears why there is none.
  void dial(Leg& leg) {
    boost::asio::post(endpoint_->hub()->strand(), [hub = endpoint_->hub(), to = to_, &leg] {
      hub->dial(to, net::to_text(to), [&leg](Result<std::shared_ptr<net::Connection>> ready) {
        if (!ready) return leg.failed(ready.error());
        leg.take(net::make_link(std::move(*ready)));
      });
    });
  }

 private:
  std::shared_ptr<net::QuicEndpoint> endpoint_;
  net::Udp::endpoint to_;
};

}  // namespace linkcpp::bench
