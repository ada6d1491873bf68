// The answering side of link_bench.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "net/link.h"
#include "support/bench_frames.h"

namespace linkcpp::bench {

/// Keeps the links that it answers on. Everything runs on the driving side.
class Answering {
 public:
  explicit Answering(boost::asio::io_context& context) : context_(context) {}

  void take(const net::LinkPtr& link) {
    links_.push_back(link);
    const std::weak_ptr<net::Link> weak = link;
    link->start({.on_frame = [this, weak](const wire::FrameView& frame) { received(weak, frame); },
                 .on_close = [this, weak](const Error&) { std::erase(links_, weak.lock()); }});
  }
  void drop() { links_.clear(); }
  /// Who hears of frames that are no dispatches, and on which link they came.
  using OnOther = std::function<void(const std::weak_ptr<net::Link>&, const wire::FrameView&)>;
  void on_other(OnOther listener) { on_other_ = std::move(listener); }

 private:
  void received(const std::weak_ptr<net::Link>& weak, const wire::FrameView& frame) {
    if (frame.header.type == wire::FrameType::dispatch) return answer(weak, frame);
    if (on_other_) on_other_(weak, frame);
  }
  void answer(const std::weak_ptr<net::Link>& weak, const wire::FrameView& frame) {
    ByteReader reader(frame.body);
    const Wanted wanted{.back = reader.get<std::uint32_t>(), .compute_us = reader.get<std::uint32_t>()};
    if (!reader.ok() || wanted.back > wire::max_frame_body) return;
    const auto send = [weak, wanted, request = frame.header.request] {
      if (const auto link = weak.lock()) link->send(combine_frame(request, wanted.back));
    };
    if (wanted.compute_us == 0) return send();
    const auto timer = std::make_shared<boost::asio::steady_timer>(context_, std::chrono::microseconds(wanted.compute_us));
    timer->async_wait([timer, send](const boost::system::error_code& stopped) {
      if (!stopped) send();
    });
  }

  boost::asio::io_context& context_;
  std::vector<net::LinkPtr> links_;
  OnOther on_other_;
};

}  // namespace linkcpp::bench
