#include "net/memory_link.h"

#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <deque>
#include <mutex>
#include <optional>
#include <variant>

#include "net/connection.h"
#include "net/link_user.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

/// One end. What the other end sends is put into its inbox and taken out when it is due.
class End final : public Connection, public std::enable_shared_from_this<End> {
 public:
  End(asio::io_context& context, std::chrono::nanoseconds delay, std::chrono::nanoseconds round_trip, PeerKey peer, std::string endpoint)
      : strand_(asio::make_strand(context)),
        timer_(strand_),
        delay_(std::chrono::duration_cast<Clock::duration>(delay)),
        round_trip_(round_trip),
        peer_(peer),
        endpoint_(std::move(endpoint)) {}

  void connect(const std::shared_ptr<End>& other) { other_ = other; }

  void start(Link::Handlers handlers) override {
    asio::post(strand_, [self = shared_from_this(), handlers = std::move(handlers)]() mutable {
      if (self->muted_) return;
      self->handlers_ = std::move(handlers);
      self->started_ = true;
      if (self->ended_) return self->report();
      self->deliver();
    });
  }

  void send(SharedFrame frame) override {
    if (closed_ || frame->empty()) return;
    counters_.sent(frame->size());
    if (const auto other = other_.lock()) other->arrive(std::move(frame));
  }

  void close(Error reason) override {
    if (closed_.exchange(true)) return;
    if (const auto other = other_.lock())
      other->arrive(Error{ErrorKind::unavailable, std::format("the peer {} closed the connection", other->endpoint_)});
    asio::post(strand_, [self = shared_from_this(), reason = std::move(reason)]() mutable { self->end(std::move(reason)); });
  }

  void abandon() override {
    muted_ = true;
    close({ErrorKind::unavailable, "the link was dropped"});
    asio::post(strand_, [self = shared_from_this()] { self->handlers_ = {}; });
  }

  [[nodiscard]] bool sending() const override { return false; }
  [[nodiscard]] LinkStats stats() const override {
    const auto rtt = std::chrono::duration_cast<std::chrono::microseconds>(round_trip_);
    LinkStats stats = counters_.stats();
    stats.rtt = stats.rtt_min = rtt;
    return stats;
  }
  [[nodiscard]] const PeerKey& peer() const override { return peer_; }
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::string_view kind() const override { return "memory"; }
  void when_finished(std::function<void()> hook) override { finished_hook_ = std::move(hook); }

 private:
  using Item = std::variant<SharedFrame, Error>;

  void arrive(Item item) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = inbox_.empty();
      inbox_.emplace_back(Clock::now() + delay_, std::move(item));
    }
    if (first) asio::post(strand_, [self = shared_from_this()] { self->deliver(); });
  }

  /// Takes the first item if it is due, else arms the timer.
  std::optional<Item> next() {
    const std::lock_guard lock(mutex_);
    if (inbox_.empty()) return std::nullopt;
    auto& [due, item] = inbox_.front();
    if (due > Clock::now()) {
      timer_.expires_at(due);
      timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
        if (!error) self->deliver();
      });
      return std::nullopt;
    }
    std::optional<Item> result = std::move(item);
    inbox_.pop_front();
    return result;
  }

  void deliver() {
    while (started_ && !ended_ && !closed_) {
      auto item = next();
      if (!item) return;
      if (auto* error = std::get_if<Error>(&*item)) {
        closed_ = true;
        return end(std::move(*error));
      }
      handle(*std::get<SharedFrame>(*item));
    }
  }

  void handle(const Bytes& frame) {
    counters_.received(frame.size());
    auto header = wire::parse_frame_header(ByteSpan(frame).first(std::min(frame.size(), wire::frame_header_bytes)));
    if (header && header->length != frame.size() - wire::frame_header_bytes)
      header = fail(ErrorKind::invalid_input, "the length of a frame is wrong");
    if (!header) return close(header.error());
    if (header->type == wire::FrameType::ping || header->type == wire::FrameType::pong) return;
    if (handlers_.on_frame) handlers_.on_frame({*header, ByteSpan(frame).subspan(wire::frame_header_bytes)});
  }

  void end(Error reason) {
    if (ended_) return;
    ended_ = std::move(reason);
    timer_.cancel();
    {
      const std::lock_guard lock(mutex_);
      inbox_.clear();
    }
    if (started_) report();
  }

  void report() {
    const Link::Handlers handlers = std::exchange(handlers_, {});
    if (handlers.on_close && !muted_) handlers.on_close(*ended_);
    if (const auto hook = std::exchange(finished_hook_, {})) hook();
  }

  asio::strand<asio::io_context::executor_type> strand_;
  asio::steady_timer timer_;
  const Clock::duration delay_;
  const std::chrono::nanoseconds round_trip_;
  const PeerKey peer_;
  const std::string endpoint_;
  std::weak_ptr<End> other_;

  std::mutex mutex_;
  std::deque<std::pair<Clock::time_point, Item>> inbox_;

  // Strand only.
  Link::Handlers handlers_;
  std::function<void()> finished_hook_;
  std::optional<Error> ended_;
  bool started_ = false;

  std::atomic<bool> closed_ = false, muted_ = false;
  FrameCounters counters_;
};

}  // namespace

std::pair<LinkPtr, LinkPtr> make_memory_links(asio::io_context& first, asio::io_context& second, const MemoryLinkOptions& options) {
  const auto round_trip = options.delay_to_first + options.delay_to_second;
  auto a = std::make_shared<End>(first, options.delay_to_first, round_trip, options.second_key, options.second_name);
  auto b = std::make_shared<End>(second, options.delay_to_second, round_trip, options.first_key, options.first_name);
  a->connect(b);
  b->connect(a);
  return {make_link(std::move(a)), make_link(std::move(b))};
}

}  // namespace linkcpp::net
