// An authenticated TLS connection that carries frames: the body of a Link over a pipe.
#pragma once

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "net/connection.h"
#include "net/frame_buffer.h"
#include "net/link.h"
#include "net/link_user.h"
#include "net/pipe.h"
#include "net/tls_session.h"
#include "net/transport.h"

namespace linkcpp::net {

/// Threads: send() encrypts and writes on the calling thread, as far as the kernel takes the bytes, so that a frame leaves at once whoever
/// drives the io_context. All else (reading, handlers, timers, waiting for the kernel) runs on the pipe's strand. Lock order: tls_,
/// queue_.
class TlsConnection final : public Connection, public std::enable_shared_from_this<TlsConnection> {
 public:
  /// What a finished handshake leaves behind. `received` may already hold frames that followed the peer's proof.
  struct Parts {
    std::unique_ptr<Pipe> pipe;
    std::unique_ptr<TlsSession> session;
    FrameBuffer received;
  };
  TlsConnection(Parts parts, LinkKnobs knobs);

  void start(Link::Handlers handlers) override;
  void send(SharedFrame frame) override;
  void close(Error reason) override;
  void abandon() override;
  [[nodiscard]] bool sending() const override;
  [[nodiscard]] LinkStats stats() const override;
  [[nodiscard]] const PeerKey& peer() const override { return peer_; }
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::string_view kind() const override { return pipe_->kind(); }
  void when_finished(std::function<void()> hook) override { user_.when_finished(std::move(hook)); }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Pumped { idle, blocked, more, failed };

  // ---- sending, any thread
  void pump();
  Pumped pump_some();
  bool encrypt_batch();
  bool take_frames();
  Pumped write_out();
  void pump_when_writable();
  void pump_if_output();

  // ---- on the strand
  void read();
  void on_read(const Result<std::size_t>& got);
  bool decrypt(std::size_t n);
  void deliver();
  bool handle(const wire::FrameView& frame);
  void on_ping(const wire::FrameView& frame);
  void on_pong(const wire::FrameView& frame);
  void schedule_keep_warm(Clock::time_point when);
  void keep_warm();
  void ping(Clock::time_point now);
  void begin_close();
  void farewell();
  void finish(Error reason);
  void shut();

  [[nodiscard]] Clock::duration silence_limit() const;
  [[nodiscard]] Clock::time_point silent_since() const;
  [[nodiscard]] bool peer_is_gone(Clock::time_point now) const;
  void watch_delivery(Clock::time_point now);

  const LinkKnobs knobs_;
  const std::unique_ptr<Pipe> pipe_;  ///< written under tls_mutex_; all else on its strand
  const PeerKey peer_;
  const std::string endpoint_;

  mutable std::mutex queue_mutex_;
  std::deque<SharedFrame> queue_;
  std::size_t queued_bytes_ = 0;  ///< not yet encrypted
  bool pumping_ = false;          ///< somebody encrypts and writes, or waits until the kernel takes more
  bool closing_ = false;          ///< nothing more is accepted
  std::optional<Error> close_reason_;

  std::mutex tls_mutex_;
  std::unique_ptr<TlsSession> session_;
  bool open_ = true;               ///< the pipe may be written
  std::deque<SharedFrame> batch_;  ///< frames being encrypted
  std::size_t batch_at_ = 0;       ///< bytes of the first that are done
  Bytes small_;                    ///< small frames joined into one record
  std::size_t written_ = 0;        ///< bytes of the session's output that the kernel has
  std::optional<Error> send_error_;

  // Strand only.
  FrameBuffer received_;
  std::unique_ptr<std::byte[]> ciphertext_;
  LinkUser user_;
  boost::asio::steady_timer warm_timer_, close_timer_;
  Clock::time_point heard_;
  std::optional<Clock::time_point> ping_sent_;
  std::uint64_t ping_stamp_ = 0;
  std::optional<std::uint64_t> ping_end_;  ///< bytes of the pipe at which the ping was surely written
  std::uint64_t delivered_ = 0;            ///< bytes that the next machine had taken when last looked at
  Clock::time_point delivering_;           ///< when that last grew, while the ping was still on its way
  bool reading_ = false, leaving_ = false, finished_ = false;

  FrameCounters counters_;
  std::atomic<std::int64_t> rtt_ns_{0}, rtt_min_ns_{0};
  std::atomic<Clock::rep> sent_;               ///< when something was last sent
  std::atomic<Clock::time_point> last_heard_;  ///< heard_, for stats()
};

}  // namespace linkcpp::net
