#include "net/attempt.h"

#include <utility>

namespace linkcpp::net {

using boost::system::error_code;

Attempt::Attempt(Strand strand, std::chrono::milliseconds deadline) : strand_(std::move(strand)), limit_(deadline), deadline_(strand_) {}

void Attempt::start_deadline() { start_timer(limit_, &Attempt::time_out); }

void Attempt::cancel_after(std::chrono::milliseconds pause) { start_timer(pause, &Attempt::cancel); }

void Attempt::end_deadline() { deadline_.cancel(); }

void Attempt::start_timer(std::chrono::milliseconds pause, void (Attempt::*then)()) {
  deadline_.expires_after(pause);
  deadline_.async_wait([weak = weak_from_this(), then](const error_code& cancelled) {
    if (const auto self = weak.lock(); self && !cancelled) (self.get()->*then)();
  });
}

void Attempt::time_out() {
  abort({ErrorKind::timeout, std::format("no authenticated link came up within {} ms; the peer got stuck in {}", limit_.count(), stage_)});
}

void Attempt::cancel() {
  if (pipe_) pipe_->cancel();
}

void Attempt::abort(Error reason) {
  if (aborted_) return;
  aborted_ = std::move(reason);
  close();
}

void Attempt::close() {
  if (breaker_) breaker_();
  if (pipe_) pipe_->close();
}

std::unexpected<Error> Attempt::broken(const Error& error) const {
  if (aborted_) return std::unexpected(*aborted_);
  if (error.kind != ErrorKind::unavailable) return std::unexpected(error);  // it says by itself what the peer did
  return fail(ErrorKind::unavailable, "the connection broke during {}: {}", stage_, error.message);
}

std::unexpected<Error> Attempt::ended() const {
  if (aborted_) return std::unexpected(*aborted_);
  return fail(ErrorKind::unavailable, "the peer closed the connection during {}", stage_);
}

}  // namespace linkcpp::net
