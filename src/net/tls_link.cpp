#include "net/tls_link.h"

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "net/link_words.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t read_chunk = 128u << 10;
/// Plaintext encrypted before it is written: small enough that the peer decrypts one piece while the next is encrypted.
constexpr std::size_t encrypt_chunk = 32u << 10;
/// Frames up to this size share a TLS record with their neighbours.
constexpr std::size_t small_frame = 2u << 10;
constexpr std::size_t record_bytes = 16u << 10;
/// Bytes that one call may write before it lets others have the thread.
constexpr std::size_t pump_budget = 1u << 20;
/// Ciphertext that waits although nothing is sent can only be answers to TLS key updates; a peer that piles them up is hostile.
constexpr std::size_t max_pending_ciphertext = 1u << 20;
constexpr auto flush_deadline = std::chrono::seconds(1);
/// How long a closed connection still takes in what the peer had sent. Closing over unread data would make the kernel send a reset,
/// which can destroy our last words on their way.
constexpr auto drain_deadline = std::chrono::seconds(1);
constexpr std::size_t max_ping_body = 64;
constexpr auto least_pause = std::chrono::milliseconds(1);

LinkKnobs sane(LinkKnobs knobs) {
  knobs.keep_warm = std::max(knobs.keep_warm, least_pause);
  knobs.silence_limit = std::max(knobs.silence_limit, least_pause);
  return knobs;
}

}  // namespace

TlsConnection::TlsConnection(Parts parts, LinkKnobs knobs)
    : knobs_(sane(std::move(knobs))),
      pipe_(std::move(parts.pipe)),
      peer_(parts.session->peer()),
      endpoint_(pipe_->endpoint()),
      session_(std::move(parts.session)),
      received_(std::move(parts.received)),
      warm_timer_(pipe_->strand()),
      close_timer_(pipe_->strand()),
      heard_(Clock::now()),
      sent_(Clock::now().time_since_epoch().count()),
      last_heard_(heard_) {}

// ---- sending ---------------------------------------------------------------------------------------------------------

void TlsConnection::send(SharedFrame frame) {
  bool overflow = false;
  {
    const std::lock_guard lock(queue_mutex_);
    if (closing_ || frame->empty()) return;
    overflow = queued_bytes_ + frame->size() > knobs_.max_queued_bytes;
    if (overflow) {
      closing_ = true;
    } else {
      counters_.sent(frame->size());
      sent_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
      queued_bytes_ += frame->size();
      queue_.push_back(std::move(frame));
      if (std::exchange(pumping_, true)) return;
    }
  }
  if (!overflow) return pump();
  asio::post(pipe_->strand(), [self = shared_from_this()] { self->finish(stuck_peer(self->endpoint_, self->knobs_)); });
}

/// Called by whoever has set pumping_.
void TlsConnection::pump() {
  switch (pump_some()) {
    case Pumped::idle:
      return;
    case Pumped::blocked:
      return pump_when_writable();
    case Pumped::more:
      asio::post(pipe_->strand(), [self = shared_from_this()] { self->pump(); });
      return;
    case Pumped::failed:
      asio::post(pipe_->strand(), [self = shared_from_this()] {
        std::optional<Error> error;
        {
          const std::lock_guard lock(self->tls_mutex_);
          error = std::exchange(self->send_error_, std::nullopt);
        }
        if (error) self->finish(std::move(*error));
      });
  }
}

TlsConnection::Pumped TlsConnection::pump_some() {
  for (std::size_t done = 0; done < pump_budget; done += encrypt_chunk) {
    // Released between chunks, so that received data can be decrypted meanwhile.
    const std::lock_guard lock(tls_mutex_);
    if (!open_) return Pumped::idle;
    if (session_->output().empty() && !encrypt_batch()) return send_error_ ? Pumped::failed : Pumped::idle;
    if (const Pumped result = write_out(); result != Pumped::idle) return result;
  }
  return Pumped::more;
}

/// Encrypts about one chunk. False if there is nothing to send, after which pumping_ is false, or on an error.
bool TlsConnection::encrypt_batch() {
  if (batch_.empty() && !take_frames()) return false;
  std::size_t room = encrypt_chunk;
  Result<> result;
  while (result && room > 0 && !batch_.empty()) {
    ByteSpan part = ByteSpan(*batch_.front()).subspan(batch_at_);
    if (part.size() <= small_frame && batch_.size() > 1 && batch_at_ == 0) {
      small_.clear();
      for (; !batch_.empty() && batch_.front()->size() <= small_frame && small_.size() + batch_.front()->size() <= record_bytes;
           batch_.pop_front()) {
        small_.insert(small_.end(), batch_.front()->begin(), batch_.front()->end());
      }
      result = session_->write(small_);
      room -= std::min(room, small_.size());
      continue;
    }
    part = part.first(std::min(room, part.size()));
    result = session_->write(part);
    room -= part.size();
    batch_at_ += part.size();
    if (batch_at_ < batch_.front()->size()) continue;
    batch_.pop_front();
    batch_at_ = 0;
  }
  if (!result) send_error_ = std::move(result.error());
  return !send_error_;
}

bool TlsConnection::take_frames() {
  const std::lock_guard lock(queue_mutex_);
  std::size_t taken = 0;
  while (!queue_.empty() && taken < encrypt_chunk) {
    taken += queue_.front()->size();
    batch_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  queued_bytes_ -= taken;
  if (taken > 0) return true;
  pumping_ = false;
  if (closing_) asio::post(pipe_->strand(), [self = shared_from_this()] { self->begin_close(); });
  return false;
}

/// Idle: all is written.
TlsConnection::Pumped TlsConnection::write_out() {
  Bytes& output = session_->output();
  ByteSpan rest = ByteSpan(output).subspan(written_);
  const auto gone = pipe_->try_write(rest);
  written_ = output.size() - rest.size();
  if (!gone) {
    send_error_ = Error{gone.error().kind, std::format("the connection to {} broke: {}", endpoint_, gone.error().message)};
    return Pumped::failed;
  }
  if (!*gone) return Pumped::blocked;
  output.clear();
  written_ = 0;
  return Pumped::idle;
}

void TlsConnection::pump_when_writable() {
  asio::dispatch(pipe_->strand(), [self = shared_from_this()] {
    if (self->finished_) return;
    self->pipe_->wait_writable([self](const Result<>& ready) {
      if (ready) self->pump();  // an error shows in the reading as well
    });
  });
}

/// The TLS layer may have something to say by itself, such as an answer to a key update.
void TlsConnection::pump_if_output() {
  {
    const std::lock_guard lock(tls_mutex_);
    if (session_->output().empty()) return;
  }
  {
    const std::lock_guard lock(queue_mutex_);
    if (std::exchange(pumping_, true)) return;
  }
  pump();
}

// ---- receiving -------------------------------------------------------------------------------------------------------

void TlsConnection::start(Link::Handlers handlers) {
  asio::dispatch(pipe_->strand(), [self = shared_from_this(), handlers = std::move(handlers)]() mutable {
    if (!self->user_.start(std::move(handlers))) return;
    if (self->leaving_ || self->finished_) return;
    self->heard_ = Clock::now();
    self->schedule_keep_warm(self->heard_ + self->knobs_.keep_warm);
    // Posted: a caller that is on the strand may not be ready for frames before it returns.
    asio::post(self->pipe_->strand(), [self] {
      self->deliver();
      self->read();
    });
  });
}

void TlsConnection::read() {
  if (finished_ || std::exchange(reading_, true)) return;
  if (!ciphertext_) ciphertext_ = std::make_unique_for_overwrite<std::byte[]>(read_chunk);
  pipe_->read_some({ciphertext_.get(), read_chunk}, [self = shared_from_this()](const Result<std::size_t>& got) {
    self->reading_ = false;
    self->on_read(got);
  });
}

void TlsConnection::on_read(const Result<std::size_t>& got) {
  if (finished_) return;
  if (!got || *got == 0) {
    if (leaving_) return shut();
    if (got) return finish(closed_by_peer(endpoint_, received_.held() > 0));
    const char* where = received_.held() > 0 ? " in the middle of a frame" : "";
    return finish({got.error().kind, std::format("the connection to {} broke{}: {}", endpoint_, where, got.error().message)});
  }
  if (leaving_) return read();  // discarded
  heard_ = Clock::now();
  last_heard_.store(heard_, std::memory_order_relaxed);
  if (!decrypt(*got)) return;
  pump_if_output();
  deliver();
  if (!leaving_) read();
}

/// Decrypts what was read. False if that ended the connection.
bool TlsConnection::decrypt(std::size_t n) {
  Result<std::size_t> got = 0;
  bool closed = false, flooded = false, first = true;
  do {
    const auto into = received_.space(record_bytes);
    const std::lock_guard lock(tls_mutex_);  // for one record only, so that senders need not wait long
    if (std::exchange(first, false)) session_->feed(ByteSpan(ciphertext_.get(), n));
    got = session_->read(into);
    if (got) received_.commit(*got);
    closed = session_->closed();
    flooded = session_->output().size() > max_pending_ciphertext;
  } while (got && *got > 0 && !flooded);
  if (got && !closed && !flooded) return true;
  deliver();  // what came before still counts
  if (!got) {
    finish({got.error().kind, std::format("the connection to {} is corrupt: {}", endpoint_, got.error().message)});
  } else if (flooded) {
    finish({ErrorKind::invalid_input, std::format("the peer {} floods the TLS layer", endpoint_)});
  } else {
    finish(closed_by_peer(endpoint_, received_.held() > 0));
  }
  return false;
}

void TlsConnection::deliver() {
  while (!leaving_ && !finished_) {
    {
      const std::lock_guard lock(queue_mutex_);
      if (closing_) return;  // close() was called, perhaps by the handler of the frame before
    }
    auto frame = received_.next();
    if (!frame) return finish(violation(endpoint_, frame.error().kind, frame.error().message));
    if (!*frame || !handle(**frame)) return;
  }
}

bool TlsConnection::handle(const wire::FrameView& frame) {
  counters_.received(wire::frame_header_bytes + frame.body.size());
  switch (frame.header.type) {
    case wire::FrameType::ping:
      on_ping(frame);
      break;
    case wire::FrameType::pong:
      on_pong(frame);
      break;
    case wire::FrameType::auth:
      finish(second_proof(endpoint_));
      break;
    default:
      user_.deliver(frame);
  }
  return !finished_;
}

// ---- keep-warm -------------------------------------------------------------------------------------------------------

void TlsConnection::on_ping(const wire::FrameView& frame) {
  if (frame.body.size() > max_ping_body) {
    return finish(violation(endpoint_, ErrorKind::invalid_input, std::format("a ping of {} bytes", frame.body.size())));
  }
  send(std::make_shared<const Bytes>(wire::make_frame(wire::FrameType::pong, frame.header.request, frame.body)));
}

void TlsConnection::on_pong(const wire::FrameView& frame) {
  ByteReader in(frame.body);
  const auto stamp = in.get<std::uint64_t>();
  if (!in.finished() || !ping_sent_ || stamp != ping_stamp_) return;  // not ours: says nothing
  const std::int64_t rtt = std::chrono::nanoseconds(Clock::now() - *ping_sent_).count();
  ping_sent_.reset();
  const std::int64_t smoothed = rtt_ns_.load(std::memory_order_relaxed), least = rtt_min_ns_.load(std::memory_order_relaxed);
  rtt_ns_.store(smoothed == 0 ? rtt : smoothed + (rtt - smoothed) / 8, std::memory_order_relaxed);
  rtt_min_ns_.store(least == 0 ? rtt : std::min(least, rtt), std::memory_order_relaxed);
}

void TlsConnection::schedule_keep_warm(Clock::time_point when) {
  warm_timer_.expires_at(when);
  warm_timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    if (auto self = weak.lock(); self && !error) self->keep_warm();
  });
}

TlsConnection::Clock::duration TlsConnection::silence_limit() const {
  return net::silence_limit(knobs_, std::chrono::nanoseconds(rtt_ns_.load(std::memory_order_relaxed)));
}

/// Meaningful while a ping is unanswered.
TlsConnection::Clock::time_point TlsConnection::silent_since() const { return std::max({heard_, *ping_sent_, delivering_}); }

bool TlsConnection::peer_is_gone(Clock::time_point now) const {
  if (!ping_sent_ || now - silent_since() < silence_limit()) return false;
  // If bytes wait in the pipe, the peer spoke and it was this process that did not listen (stopped, or starved of CPU).
  return !pipe_->unread();
}

/// A ping behind megabytes is not answered before they have arrived: while they do, the peer is not silent but busy listening. What it
/// takes after the ping says nothing, since its kernel listens even when the program does not.
void TlsConnection::watch_delivery(Clock::time_point now) {
  if (!ping_sent_) return;
  if (!ping_end_ && !sending()) ping_end_ = pipe_->written();
  const std::uint64_t taken = pipe_->acknowledged();
  if (taken > delivered_ && (!ping_end_ || delivered_ < *ping_end_)) delivering_ = now;
  delivered_ = std::max(delivered_, taken);
}

void TlsConnection::keep_warm() {
  if (leaving_ || finished_) return;
  const auto now = Clock::now();
  watch_delivery(now);
  if (peer_is_gone(now)) {
    return finish(silent_peer(endpoint_, now - heard_));
  }
  // Looking at the time of the last frame here is cheaper than setting the timer anew with each frame.
  auto due = Clock::time_point(Clock::duration(sent_.load(std::memory_order_relaxed))) + knobs_.keep_warm;
  // A peer that is sent much and answers nothing is asked too: it may be gone.
  if (due <= now || now - heard_ > silence_limit() / 4) {
    ping(now);
    due = now + knobs_.keep_warm;
  }
  if (ping_sent_) due = std::clamp(silent_since() + silence_limit(), now + least_pause, std::max(due, now + least_pause));
  schedule_keep_warm(due);
}

void TlsConnection::ping(Clock::time_point now) {
  if (ping_sent_) return;  // only one at a time: a slow peer must not get a storm
  ping_sent_ = now;
  ping_stamp_ = static_cast<std::uint64_t>(now.time_since_epoch().count());
  ping_end_.reset();
  delivered_ = pipe_->acknowledged();
  Bytes body;
  ByteWriter(body).put(ping_stamp_);
  send(std::make_shared<const Bytes>(wire::make_frame(wire::FrameType::ping, 0, body)));
}

// ---- closing ---------------------------------------------------------------------------------------------------------

void TlsConnection::close(Error reason) {
  {
    const std::lock_guard lock(queue_mutex_);
    if (std::exchange(closing_, true)) return;
    close_reason_ = std::move(reason);
  }
  asio::post(pipe_->strand(), [self = shared_from_this()] { self->begin_close(); });
}

void TlsConnection::abandon() {
  user_.mute();
  close({ErrorKind::unavailable, "the link was dropped"});
  asio::post(pipe_->strand(), [self = shared_from_this()] { self->user_.forget(); });
}

/// Waits until the queue is written, but not for long, then says farewell. Called again when the queue is empty.
void TlsConnection::begin_close() {
  if (leaving_ || finished_) return;
  {
    const std::lock_guard lock(queue_mutex_);
    if (!close_reason_) return;  // closing_ for another reason, which finish() is about to report
    if (pumping_) {
      close_timer_.expires_after(flush_deadline);
      close_timer_.async_wait([weak = weak_from_this()](const error_code& error) {
        if (auto self = weak.lock(); self && !error) self->farewell();
      });
      return;
    }
  }
  farewell();
}

void TlsConnection::farewell() {
  if (std::exchange(leaving_, true) || finished_) return;
  warm_timer_.cancel();
  {
    const std::lock_guard lock(tls_mutex_);
    session_->shutdown();
    write_out();  // best effort
    open_ = false;
    pipe_->shutdown_send();
  }
  close_timer_.expires_after(drain_deadline);
  close_timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error) self->shut();
  });
  read();
  Error reason;
  {
    const std::lock_guard lock(queue_mutex_);
    reason = std::move(*close_reason_);
    queue_.clear();
    queued_bytes_ = 0;
  }
  user_.end(std::move(reason));
}

/// Ends the connection at once, with the first reason that was found.
void TlsConnection::finish(Error reason) {
  if (finished_) return;
  const bool told = leaving_;
  {
    const std::lock_guard lock(queue_mutex_);
    if (std::exchange(closing_, true) && close_reason_) reason = std::move(*close_reason_);  // close() was first
    queue_.clear();
    queued_bytes_ = 0;
  }
  shut();
  if (!told) user_.end(std::move(reason));
}

void TlsConnection::shut() {
  if (std::exchange(finished_, true)) return;
  warm_timer_.cancel();
  close_timer_.cancel();
  const std::lock_guard lock(tls_mutex_);
  if (open_) {  // tells the peer why: an alert that the TLS layer has queued, or the farewell
    session_->shutdown();
    write_out();
  }
  open_ = false;
  pipe_->close();
}

bool TlsConnection::sending() const {
  const std::lock_guard lock(queue_mutex_);
  return pumping_;
}

LinkStats TlsConnection::stats() const {
  const auto us = [](const std::atomic<std::int64_t>& ns) {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::nanoseconds(ns.load(std::memory_order_relaxed)));
  };
  LinkStats stats = counters_.stats();
  stats.rtt = us(rtt_ns_);
  stats.rtt_min = us(rtt_min_ns_);
  stats.heard = last_heard_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace linkcpp::net
