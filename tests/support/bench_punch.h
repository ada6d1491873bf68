// Looks for a direct path between the two sides of link_bench, whose link carries the offers.
#pragma once

#include <boost/asio/dispatch.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/endpoint.h"
#include "net/path_finder.h"
#include "net/quic_hub.h"
#include "support/bench_leg.h"
#include "wire/frame.h"

namespace linkcpp::bench {

/// "198.51.100.4:7000" as a UDP address; names are not looked up.
inline Result<net::Udp::endpoint> udp_address(const std::string& text) {
  auto parsed = net::parse_endpoint(text);
  if (!parsed) return pass(parsed);
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(parsed->host, error);
  if (error) return fail(ErrorKind::invalid_input, "{} is not a numeric address", text);
  return net::Udp::endpoint(address, parsed->port);
}

/// The product has no frame for offers of paths yet; link_bench borrows one that it has no other use for.
inline constexpr auto punch_frame = wire::FrameType::offer;

/// One side: a UDP socket, and the path finder on it. Everything on the driving side.
class Punching {
 public:
  struct Handlers {
    std::function<void(Bytes frame)> send;        ///< over the link that there is
    std::function<void(net::LinkPtr)> on_direct;  ///< an authenticated link on the direct path
  };

  /// `stun`: who says how others see us.
  static Result<std::unique_ptr<Punching>> open(boost::asio::io_context& context, const net::Credentials& credentials,
                                                const net::LinkKnobs& knobs, const std::string& stun, bool dialer, Handlers handlers) {
    auto server = udp_address(stun);
    if (!server) return pass(server);
    auto endpoint = net::QuicEndpoint::open(boost::asio::make_strand(context), {server->protocol(), 0}, credentials, knobs);
    if (!endpoint) return pass(endpoint);
    return std::make_unique<Punching>(std::move(*endpoint), *server, dialer, std::move(handlers));
  }
  Punching(std::shared_ptr<net::QuicEndpoint> endpoint, const net::Udp::endpoint& stun, bool dialer, Handlers handlers)
      : endpoint_(std::move(endpoint)), handlers_(std::move(handlers)) {
    finder_ = std::make_shared<net::PathFinder>(
        endpoint_, dialer, std::vector{stun},
        net::PathFinder::Handlers{.send_offer = [this](const Bytes& offer) { handlers_.send(wire::make_frame(punch_frame, 0, offer)); },
                                  .on_connection = [this](std::shared_ptr<net::Connection> found) { linked(std::move(found)); }});
    if (dialer) return;
    on_strand([this] { endpoint_->hub()->accept([this](std::shared_ptr<net::Connection> found) { linked(std::move(found)); }, {}); });
  }

  void start() {
    begun_ = Clock::now();
    on_strand([finder = finder_] { finder->start(); });
  }
  void received(const wire::FrameView& frame) {
    if (frame.header.type != punch_frame) return;
    on_strand([finder = finder_, offer = Bytes(frame.body.begin(), frame.body.end())] { finder->received_offer(offer); });
  }
  [[nodiscard]] bool found() const { return linked_at_.has_value(); }
  [[nodiscard]] nlohmann::json described() const {
    const auto& report = finder_->report();
    const auto ms = [](auto time) { return Milliseconds(time).count(); };
    nlohmann::json text{{"direct", found()}, {"state", report.state}, {"own", nlohmann::json::array()}, {"peers", nlohmann::json::array()}};
    for (const auto& one : report.own) text["own"].push_back(candidate_kind_name(one.kind) + (" " + net::to_text(one.at)));
    for (const auto& one : report.peers) text["peers"].push_back(candidate_kind_name(one.kind) + (" " + net::to_text(one.at)));
    if (report.found) text["found_ms"] = ms(report.took), text["round_trip_ms"] = ms(report.round_trip);
    if (linked_at_) text["direct_ms"] = ms(*linked_at_ - begun_);
    return text;
  }

 private:
  template <class Task>
  void on_strand(Task task) {
    boost::asio::dispatch(endpoint_->hub()->strand(), std::move(task));
  }
  void linked(std::shared_ptr<net::Connection> found) {
    linked_at_ = Clock::now();
    handlers_.on_direct(net::make_link(std::move(found)));
  }

  std::shared_ptr<net::QuicEndpoint> endpoint_;
  Handlers handlers_;
  std::shared_ptr<net::PathFinder> finder_;
  Clock::time_point begun_;
  std::optional<Clock::time_point> linked_at_;
};

}  // namespace linkcpp::bench
