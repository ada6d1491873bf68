#include "swarm/status.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace linkcpp::swarm {
namespace {

/// A reader that lags by more than this loses events.
constexpr std::size_t max_backlog = 1u << 20;

long long us(std::chrono::nanoseconds time) { return std::chrono::duration_cast<std::chrono::microseconds>(time).count(); }

}  // namespace

nlohmann::json to_json(const dispatch::Tally& t) {
  return {{"steps", t.steps},
          {"tokens", t.tokens},
          {"pairs", t.pairs},
          {"bytes_out", t.bytes_out},
          {"bytes_in", t.bytes_in},
          {"payload_out", t.payload_out},
          {"payload_in", t.payload_in},
          {"resent_pairs", t.resent_pairs},
          {"failed_steps", t.failed_steps},
          {"wait_us", us(t.wait)},
          {"flight_us", us(t.flight)},
          {"compute_us", us(t.compute)},
          {"queued_us", us(t.queued)}};
}

nlohmann::json to_json(const dispatch::MatmulCount& count) {
  return {{"seen", count.seen}, {"dispatched", count.dispatched}, {"on_base", count.on_base}};
}

StatusChannel::StatusChannel(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  struct stat info{};
  is_socket_ = fstat(fd_, &info) == 0 && S_ISSOCK(info.st_mode);
  if (const int flags = fcntl(fd_, F_GETFL); flags >= 0) fcntl(fd_, F_SETFL, flags | O_NONBLOCK);
}

void StatusChannel::emit(const nlohmann::json& event) {
  if (fd_ < 0) return;
  if (unsent_.size() < max_backlog) {
    unsent_ += event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    unsent_ += '\n';
  }
  while (!unsent_.empty()) {
    // MSG_NOSIGNAL: the engine's process may not have SIGPIPE ignored, and must not die because its supervisor did.
    const ssize_t n = is_socket_ ? send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL) : write(fd_, unsent_.data(), unsent_.size());
    if (n > 0) {
      unsent_.erase(0, static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    } else {
      fd_ = -1;
      unsent_.clear();
    }
  }
}

}  // namespace linkcpp::swarm
