// The asking side's links in link_bench.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "net/transport.h"
#include "support/bench_report.h"
#include "wire/frame.h"

namespace linkcpp::bench {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

/// The kind of a link, where links tell it.
template <class SomeLink>
std::string kind_of(const SomeLink& link) {
  if constexpr (requires { std::string(link.kind()); }) {
    return std::string(link.kind());
  } else if constexpr (requires { std::string(to_string(link.kind())); }) {
    return std::string(to_string(link.kind()));
  } else {
    return "unknown";
  }
}

/// One link of the star, dialled again when it breaks; what waits for an answer then is sent once more. On the driving side.
class Leg {
 public:
  explicit Leg(std::string address) : address_(std::move(address)) {}

  void dial(boost::asio::io_context& context, const net::Credentials& credentials, const net::LinkKnobs& knobs) {
    dialler_ = net::Dialer::start(
        context, {address_}, credentials, knobs, [this](net::LinkPtr link) { take(std::move(link)); },
        [this](const Error& error) { failed(error); });
  }
  void failed(const Error& error) { failure_ = error.message; }
  void take(net::LinkPtr link) {
    link_ = std::move(link);
    ++links_made_;
    linked_at_ = Clock::now();
    link_->start({.on_frame = [this](const wire::FrameView& frame) { received(frame); },
                  .on_close =
                      [this](const Error& error) {
                        failed(error);
                        remember();
                        link_.reset();
                      }});
    if (waits_for_) link_->send(frame_);
  }
  /// Another link instead of the one that there is, which is not dialled again.
  void become(net::LinkPtr link) {
    drop();
    take(std::move(link));
  }
  void send(Bytes frame) {
    if (link_) link_->send(std::move(frame));
  }
  /// Who hears of frames that are no answers.
  void on_other(std::function<void(const wire::FrameView&)> listener) { on_other_ = std::move(listener); }
  /// Ends link and dialling; a later dial() begins anew.
  void drop() {
    remember();
    dialler_.reset();
    link_.reset();
  }
  void ask(std::uint64_t request, net::SharedFrame frame) {
    waits_for_ = request, frame_ = std::move(frame);
    if (link_) link_->send(frame_);
  }
  /// An answer that comes later is not looked at.
  void forget() { waits_for_.reset(); }

  [[nodiscard]] bool linked() const { return link_ != nullptr; }
  [[nodiscard]] bool waits() const { return waits_for_.has_value(); }
  [[nodiscard]] Clock::time_point answered_at() const { return answered_at_; }
  [[nodiscard]] Clock::time_point linked_at() const { return linked_at_; }
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t server_cpu_us() const { return server_cpu_us_; }
  [[nodiscard]] int links_made() const { return links_made_; }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] net::LinkStats stats() const { return link_ ? link_->stats() : net::LinkStats{}; }
  [[nodiscard]] nlohmann::json described() const {
    return {{"address", address_},
            {"kind", link_ ? kind_of(*link_) : kind_},
            {"endpoint", link_ ? link_->endpoint() : ""},
            {"rtt_of_pings_ms", static_cast<double>(stats().rtt.count()) / 1000},
            {"links_made", links_made_}};
  }
  [[nodiscard]] std::uint64_t bytes_sent() const { return sent_before_ + stats().bytes_sent; }
  [[nodiscard]] std::uint64_t bytes_received() const { return received_before_ + stats().bytes_received; }

 private:
  void received(const wire::FrameView& frame) {
    if (frame.header.type != wire::FrameType::combine && on_other_) return on_other_(frame);
    if (frame.header.type != wire::FrameType::combine || !waits_for_ || frame.header.request != *waits_for_) return;
    answered_at_ = Clock::now();
    waits_for_.reset();
    ByteReader reader(frame.body);
    if (const auto cpu = reader.get<std::uint64_t>(); reader.ok()) server_cpu_us_ = cpu;
  }
  /// The link is about to go, and its counters with it.
  void remember() {
    if (!link_) return;
    kind_ = kind_of(*link_);
    sent_before_ += stats().bytes_sent, received_before_ += stats().bytes_received;
  }

  std::string address_, failure_, kind_ = "none";
  std::function<void(const wire::FrameView&)> on_other_;
  std::unique_ptr<net::Dialer> dialler_;
  net::LinkPtr link_;
  std::optional<std::uint64_t> waits_for_;
  net::SharedFrame frame_;
  Clock::time_point answered_at_, linked_at_;
  std::uint64_t server_cpu_us_ = 0, sent_before_ = 0, received_before_ = 0;
  int links_made_ = 0;
};

/// A leg that must be answered, and perhaps another that is asked the same when the first is slower than it usually is. On the driving
/// side.
class Spoke {
 public:
  Spoke(std::string address, std::optional<std::string> hedge) : leg_(std::move(address)) {
    if (hedge) hedge_.emplace(std::move(*hedge));
  }
  template <class Use>
  void each(Use use) {
    use(leg_);
    if (hedge_) use(*hedge_);
  }
  [[nodiscard]] Leg& leg() { return leg_; }

  void ask(std::uint64_t request, const net::SharedFrame& frame, bool may_hedge) {
    begun_ = Clock::now(), request_ = request, frame_ = frame;
    asked_hedge_ = false;
    hedge_at_ = may_hedge ? patience() : std::nullopt;
    leg_.ask(request, frame);
  }
  /// When the other one shall be asked, unless there is an answer.
  [[nodiscard]] std::optional<Clock::time_point> hedge_at() const { return leg_.waits() ? hedge_at_ : std::nullopt; }
  void hedge_if_due(Clock::time_point now) {
    if (!leg_.waits() || !hedge_at_ || *hedge_at_ > now) return;
    hedge_at_.reset();
    asked_hedge_ = true;
    ++hedged_;
    hedge_->ask(request_, frame_);
  }
  [[nodiscard]] bool answered() const { return !leg_.waits() || hedge_won(); }
  /// Milliseconds of the exchange that has ended.
  double finish() {
    const bool won = leg_.waits() && hedge_won();
    hedges_won_ += won;
    const double took = Milliseconds((won ? hedge_->answered_at() : leg_.answered_at()) - begun_).count();
    leg_.forget();
    if (hedge_) hedge_->forget();
    times_ms_.push_back(took);  // for one that the hedge won, the leg's own would have been longer
    return took;
  }
  /// Warm-up has ended; what hedging learned from it stays.
  void reset() {
    warm_ = times_ms_.size();
    hedged_ = hedges_won_ = 0;
  }
  [[nodiscard]] nlohmann::json described() const {
    nlohmann::json text = leg_.described();
    text["ms"] = summary({times_ms_.begin() + static_cast<std::ptrdiff_t>(warm_), times_ms_.end()});
    if (hedge_) text["hedge"] = hedge_->described(), text["hedged"] = hedged_, text["hedges_won"] = hedges_won_;
    return text;
  }

 private:
  [[nodiscard]] bool hedge_won() const { return asked_hedge_ && !hedge_->waits(); }
  /// The 95th percentile of what was seen; never before enough was seen.
  [[nodiscard]] std::optional<Clock::time_point> patience() const {
    constexpr std::size_t enough = 20;
    if (!hedge_ || times_ms_.size() < enough) return std::nullopt;
    return begun_ + std::chrono::duration_cast<Clock::duration>(Milliseconds(quantile(times_ms_, 0.95)));
  }

  Leg leg_;
  std::optional<Leg> hedge_;
  std::vector<double> times_ms_;
  std::size_t warm_ = 0;
  Clock::time_point begun_;
  std::uint64_t request_ = 0;
  net::SharedFrame frame_;
  std::optional<Clock::time_point> hedge_at_;
  bool asked_hedge_ = false;
  int hedged_ = 0, hedges_won_ = 0;
};

}  // namespace linkcpp::bench
