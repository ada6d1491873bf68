#include "relay/flow.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "net/pipe_io.h"
#include "net/tcp_pipe.h"

namespace linkcpp::relay {
namespace {

namespace asio = boost::asio;
using net::TcpPipe;

constexpr std::size_t chunk = 64u << 10;
constexpr int kernel_pipe_bytes = 256 << 10;
/// Bytes after which others get the thread.
constexpr std::size_t turn = 1u << 20;

class KernelPipe {
 public:
  KernelPipe() {
    if (::pipe2(ends_.data(), O_NONBLOCK | O_CLOEXEC) != 0) ends_ = {-1, -1};
    if (open()) ::fcntl(ends_[1], F_SETPIPE_SZ, kernel_pipe_bytes);  // best effort: the system limits the sum
  }
  ~KernelPipe() {
    for (const int end : ends_) {
      if (end >= 0) ::close(end);
    }
  }
  KernelPipe(const KernelPipe&) = delete;
  KernelPipe& operator=(const KernelPipe&) = delete;
  [[nodiscard]] bool open() const { return ends_[0] >= 0; }
  [[nodiscard]] int in() const { return ends_[1]; }
  [[nodiscard]] int out() const { return ends_[0]; }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// Bytes moved, 0 at the end, -1 if it would wait.
Result<ssize_t> splice_some(int from, int to, std::size_t most) {
  for (;;) {
    const ssize_t n = ::splice(from, nullptr, to, nullptr, most, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (n >= 0) return n;
    if (errno == EAGAIN) return -1;
    if (errno != EINTR) return fail(ErrorKind::unavailable, "{}", std::generic_category().message(errno));
  }
}

asio::awaitable<void> let_others(const net::Strand& strand) { co_await asio::post(strand, asio::use_awaitable); }

/// Counts, and waits while the sender has sent more than it may.
asio::awaitable<void> account(Flow& flow, std::size_t n) {
  const auto now = Clock::now();
  flow.moved = now;
  flow.bytes += n;
  flow.all += n;
  flow.rate.owe(static_cast<double>(n), now);
  for (auto pause = flow.rate.pause(now); pause > Clock::duration::zero(); pause = flow.rate.pause(Clock::now())) {
    asio::steady_timer timer(flow.from.strand(), pause);
    if (const auto [error] = co_await timer.async_wait(net::as_values); error) co_return;
    flow.moved = Clock::now();  // slow, not idle
  }
}

asio::awaitable<Result<>> splice_on(Flow& flow, TcpPipe& from, TcpPipe& to, KernelPipe& kernel) {
  std::size_t held = 0, since_turn = 0;
  bool ended = false;
  for (;;) {
    std::size_t came = 0;
    if (!ended) {
      const auto n = splice_some(from.socket().native_handle(), kernel.in(), chunk);
      if (!n) co_return std::unexpected(n.error());
      ended = *n == 0;
      came = *n > 0 ? static_cast<std::size_t>(*n) : 0;
      held += came;
      since_turn += came;
    }
    while (held > 0) {
      const auto n = splice_some(kernel.out(), to.socket().native_handle(), held);
      if (!n) co_return std::unexpected(n.error());
      if (*n > 0) {
        held -= static_cast<std::size_t>(*n);
        continue;
      }
      if (auto ready = co_await net::writable(to); !ready) co_return ready;
    }
    if (ended) {
      to.shutdown_send();
      co_return Result<>();
    }
    if (came > 0) co_await account(flow, came);
    if (came == 0) {
      if (const auto [error] = co_await from.socket().async_wait(net::Socket::wait_read, net::as_values); error)
        co_return fail(ErrorKind::unavailable, "{}", error.message());
      since_turn = 0;
    } else if (since_turn >= turn) {
      co_await let_others(from.strand());
      since_turn = 0;
    }
  }
}

asio::awaitable<Result<>> copy_on(Flow& flow) {
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(chunk);
  for (;;) {
    const auto got = co_await net::read_some(flow.from, {buffer.get(), chunk});
    if (!got) co_return std::unexpected(got.error());
    if (*got == 0) {
      flow.to.shutdown_send();
      co_return Result<>();
    }
    if (auto written = co_await net::write_all(flow.to, {buffer.get(), *got}); !written) co_return written;
    co_await account(flow, *got);
  }
}

}  // namespace

asio::awaitable<Result<>> pass_on(Flow& flow) {
  auto* const from = dynamic_cast<TcpPipe*>(&flow.from);
  auto* const to = dynamic_cast<TcpPipe*>(&flow.to);
  if (from != nullptr && to != nullptr) {
    KernelPipe kernel;
    if (kernel.open()) co_return co_await splice_on(flow, *from, *to, kernel);
  }
  co_return co_await copy_on(flow);
}

}  // namespace linkcpp::relay
