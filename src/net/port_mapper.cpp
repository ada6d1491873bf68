#include "net/port_mapper.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "net/callback_gate.h"
#include "net/nat_kind.h"

namespace linkcpp::net {
namespace {

using namespace std::chrono_literals;

}  // namespace

/// What the thread does. It shares the ownership, so that it may outlive the mapper while a router keeps it waiting.
class PortMapper::Work {
 public:
  Work(std::uint16_t port, OnMapped on_mapped, OnTrouble on_trouble, PortMapperKnobs knobs, FindRouter find)
      : udp_{PortProtocol::udp, port, knobs.lease},
        tcp_{PortProtocol::tcp, port, knobs.lease},
        on_mapped_(std::move(on_mapped)),
        on_trouble_(std::move(on_trouble)),
        knobs_(knobs),
        find_(std::move(find)) {}

  static void start(const std::shared_ptr<Work>& work) {
    std::thread([work] { work->run(); }).detach();
  }

  void run() {
    auto pause = knobs_.retry_first;
    while (!stopping()) {
      const auto kept = keep_open();
      if (kept) pause = knobs_.retry_first;
      sleep(kept ? *kept : pause);
      if (!kept) pause = std::min(2 * pause, knobs_.retry_longest);
    }
    take_back();
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  void stop() {
    gate_.close();
    stop_.request_stop();
    std::unique_lock lock(mutex_);
    changed_.notify_all();
    changed_.wait_for(lock, knobs_.farewell, [this] { return done_; });
  }

 private:
  [[nodiscard]] bool stopping() const { return stop_.stop_requested(); }

  void sleep(std::chrono::milliseconds pause) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, pause, [this] { return stopping(); });
  }

  /// Asks for the mapping, or renews it. How long to wait until the next time; none if there is none.
  std::optional<std::chrono::milliseconds> keep_open() {
    if (!router_) {
      auto found = find_(stop_.get_token(), knobs_.patience);
      if (!found) return trouble(found.error());
      router_ = std::move(*found);
    }
    const auto outside = router_->outside();
    if (!outside) return lost(outside.error());
    // What a router with such an address opens leads nowhere.
    if (!is_global(*outside)) {
      return lost(
          {ErrorKind::unavailable,
           std::format("the router {} could open a port, but has only the address {} outside: another NAT follows it (the provider's, "
                       "or a second router, where a port would have to be opened by hand)",
                       router_->where(), outside->to_string())});
    }
    const auto udp = router_->open(udp_);
    if (!udp) return lost(udp.error());
    udp_grant_ = *udp;
    if (knobs_.tcp) {
      const auto tcp = router_->open(tcp_);
      tcp_grant_ = tcp ? std::optional(*tcp) : std::nullopt;
    }
    tell({.candidate = {{*outside, udp->port}, CandidateKind::mapped},
          .tcp_port = tcp_grant_ ? tcp_grant_->port : std::uint16_t{0},
          .by = std::format("{} {}", router_->protocol(), router_->where()),
          .lease = udp->lease});
    return renewal(udp->lease);
  }

  /// A router that was restarted has forgotten also what it granted for ever.
  [[nodiscard]] std::chrono::milliseconds renewal(std::chrono::seconds lease) const {
    const std::chrono::milliseconds whole = lease.count() == 0 ? knobs_.lease : lease;
    return std::max<std::chrono::milliseconds>(whole / 2, 500ms);
  }

  void tell(Mapped mapped) {
    last_trouble_.clear();
    if (told_ && told_->candidate == mapped.candidate && told_->tcp_port == mapped.tcp_port) return;
    told_ = std::move(mapped);
    gate_.run([&] { on_mapped_(*told_); });
  }

  std::nullopt_t trouble(const Error& error) {
    told_.reset();
    if (!stopping() && std::exchange(last_trouble_, error.message) != error.message) gate_.run([&] { on_trouble_(error); });
    return std::nullopt;
  }

  /// Looks for a router anew the next time: this one may have been replaced.
  std::nullopt_t lost(const Error& error) {
    take_back();
    router_.reset();
    return trouble(error);
  }

  void take_back() {
    if (router_ && udp_grant_) router_->close(udp_, *udp_grant_);
    if (router_ && tcp_grant_) router_->close(tcp_, *tcp_grant_);
    udp_grant_.reset();
    tcp_grant_.reset();
  }

  const PortWish udp_, tcp_;
  const OnMapped on_mapped_;
  const OnTrouble on_trouble_;
  const PortMapperKnobs knobs_;
  const FindRouter find_;
  CallbackGate gate_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  ///< under the mutex; all below belongs to the thread
  std::unique_ptr<Router> router_;
  std::optional<PortGrant> udp_grant_, tcp_grant_;
  std::optional<Mapped> told_;
  std::string last_trouble_;
};

PortMapper::PortMapper(std::uint16_t port, OnMapped on_mapped, OnTrouble on_trouble, PortMapperKnobs knobs, FindRouter find)
    : work_(std::make_shared<Work>(port, std::move(on_mapped), std::move(on_trouble), knobs, std::move(find))) {
  Work::start(work_);
}

PortMapper::~PortMapper() { work_->stop(); }

}  // namespace linkcpp::net
