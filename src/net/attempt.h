// One attempt to get an authenticated connection: its deadline, how far it is, and what is there so far.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "net/pipe.h"
#include "net/socket.h"

namespace linkcpp::net {

/// Everything runs on the strand. The steps of an attempt (connecting, a proxy's TLS, an upgrade, our own handshake) leave what they
/// have in pipe(), and say which step they are, so that whatever cuts the attempt short can name it.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(Strand strand, std::chrono::milliseconds deadline);

  [[nodiscard]] const Strand& strand() const { return strand_; }
  /// Begins the deadline for everything.
  void start_deadline();
  void end_deadline();
  /// Instead of the deadline: what waits on the pipe fails after `pause`.
  void cancel_after(std::chrono::milliseconds pause);

  /// The step that begins now, "the TLS handshake". Must be a literal.
  void enter(const char* stage) { stage_ = stage; }
  [[nodiscard]] const char* stage() const { return stage_; }

  /// Ends the attempt with this error; the first one counts.
  void abort(Error reason);
  [[nodiscard]] const std::optional<Error>& aborted() const { return aborted_; }
  /// While there is no pipe yet: what ends the waiting for one.
  void set_breaker(std::function<void()> breaker) { breaker_ = std::move(breaker); }

  [[nodiscard]] Pipe& pipe() { return *pipe_; }
  [[nodiscard]] bool has_pipe() const { return pipe_ != nullptr; }
  void set_pipe(std::unique_ptr<Pipe> pipe) { pipe_ = std::move(pipe); }
  [[nodiscard]] std::unique_ptr<Pipe> take_pipe() { return std::move(pipe_); }
  /// The peer went before it said anything: nothing that an operator must know.
  void set_silent() { silent_ = true; }
  [[nodiscard]] bool silent() const { return silent_; }
  /// Ends what is there.
  void close();

  /// The error of a reading or writing that failed, with the step it happened in; or why the attempt was cut short.
  [[nodiscard]] std::unexpected<Error> broken(const Error& error) const;
  /// The other side has ended the stream.
  [[nodiscard]] std::unexpected<Error> ended() const;

 private:
  void start_timer(std::chrono::milliseconds pause, void (Attempt::*then)());
  void time_out();
  void cancel();

  Strand strand_;
  const std::chrono::milliseconds limit_;
  boost::asio::steady_timer deadline_;
  const char* stage_ = "the TCP connection";
  std::optional<Error> aborted_;
  std::function<void()> breaker_;
  std::unique_ptr<Pipe> pipe_;
  bool silent_ = false;
};

}  // namespace linkcpp::net
