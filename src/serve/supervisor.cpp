#include "serve/supervisor.h"

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "net/coroutine.h"
#include "serve/lines.h"
#include "serve/text.h"

namespace linkcpp::serve {
namespace {

namespace asio = boost::asio;
using asio::awaitable;

/// Longest line of the status channel: an account of a thousand layers is about 250 KB.
constexpr std::size_t longest_event = 1u << 20;
constexpr std::size_t longest_log_line = 8192;

/// Calls on_line for every line until the other end is closed.
template <class OnLine>
awaitable<void> read_lines(asio::io_context& context, Fd channel, std::size_t longest, OnLine on_line) {
  asio::posix::stream_descriptor stream(context, channel.release());
  LineCutter cutter(longest);
  std::array<char, 16384> buffer;
  for (;;) {
    const auto [error, n] = co_await stream.async_read_some(asio::buffer(buffer), net::as_values);
    if (error) break;
    cutter.feed({buffer.data(), n}, on_line);
  }
  cutter.finish(on_line);
}

}  // namespace

Supervisor::Supervisor(asio::io_context& context, Command command, SupervisionKnobs knobs, Handlers handlers)
    : context_(context),
      command_(std::move(command)),
      knobs_(knobs),
      handlers_(std::move(handlers)),
      pause_timer_(context),
      kill_timer_(context) {}

awaitable<Result<>> Supervisor::run() {
  while (!stopping_) {
    auto ended = co_await run_once();
    if (!ended) co_return pass(ended);
    if (stopping_) break;
    const auto name = command_.argv[0].substr(command_.argv[0].rfind('/') + 1);
    if (!served_ && ended->signal == 0) {
      co_return fail(ErrorKind::unavailable, "{}", obituary(std::format("{} {} before it was ready", name, ended->describe())));
    }
    const auto pause = next_pause();
    if (!pause) {
      co_return fail(ErrorKind::unavailable, "{}",
                     obituary(std::format("{} crashed more than {} times within {} s; at last it {}", name, knobs_.max_crashes,
                                          knobs_.crash_window.count() / 1000, ended->describe())));
    }
    if (handlers_.on_crash) handlers_.on_crash(*ended, *pause);
    pause_timer_.expires_after(*pause);
    co_await pause_timer_.async_wait(net::as_values);
  }
  co_return Result<>{};
}

awaitable<Result<ExitStatus>> Supervisor::run_once() {
  using namespace asio::experimental::awaitable_operators;
  auto status = Channel::open(), log = Channel::open();
  if (!status) co_return pass(status);
  if (!log) co_return pass(log);
  command_.output = log->theirs.get();
  command_.extra = status->theirs.get();
  auto started = Process::start(command_);
  if (!started) co_return pass(started);
  process_ = std::move(*started);
  status->theirs.reset();
  log->theirs.reset();
  last_lines_.clear();
  last_complaint_.clear();
  if (handlers_.on_start) handlers_.on_start();

  // The channels usually end with the process; a grandchild that inherited them may hold them open, but not us.
  asio::steady_timer drained(context_, asio::steady_timer::time_point::max());
  ExitStatus ended;
  const auto until_exit = [&]() -> awaitable<void> {
    ended = co_await wait_for_exit();
    drained.expires_after(knobs_.drain_grace);
  };
  const auto until_drained = [&]() -> awaitable<void> {
    for (;;) {
      const auto [error] = co_await drained.async_wait(net::as_values);
      if (!error || error != asio::error::operation_aborted || drained.expiry() <= asio::steady_timer::clock_type::now()) co_return;
      const auto cancelled = co_await asio::this_coro::cancellation_state;
      if (cancelled.cancelled() != asio::cancellation_type::none) co_return;
    }
  };
  co_await ((until_exit() && pump_status(std::move(status->ours)) && pump_log(std::move(log->ours))) || until_drained());
  kill_timer_.cancel();
  co_return ended;
}

awaitable<void> Supervisor::pump_status(Fd channel) {
  co_await read_lines(context_, std::move(channel), longest_event, [this](std::string_view line) {
    auto event = parse_event(line);
    if (event && handlers_.on_event) handlers_.on_event(*event);
    if (!event && handlers_.on_log) handlers_.on_log(event.error().message);
  });
}

awaitable<void> Supervisor::pump_log(Fd channel) {
  co_await read_lines(context_, std::move(channel), longest_log_line, [this](std::string_view line) {
    constexpr std::string_view complaint = "linkcpp: error: ";
    if (line.starts_with(complaint)) last_complaint_ = printable(line.substr(complaint.size()));
    last_lines_.emplace_back(line);
    if (last_lines_.size() > knobs_.last_lines) last_lines_.pop_front();
    if (handlers_.on_log) handlers_.on_log(line);
  });
}

awaitable<ExitStatus> Supervisor::wait_for_exit() {
  asio::posix::stream_descriptor watch(context_, dup(process_.watch_fd()));
  while (!process_.poll()) co_await watch.async_wait(asio::posix::stream_descriptor::wait_read, net::as_values);
  co_return *process_.poll();
}

void Supervisor::stop() {
  if (stopping_) {
    process_.signal(SIGKILL);
    return;
  }
  stopping_ = true;
  pause_timer_.cancel();
  process_.terminate();
  kill_timer_.expires_after(knobs_.stop_grace);
  kill_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) process_.signal(SIGKILL);
  });
}

std::optional<std::chrono::milliseconds> Supervisor::next_pause() {
  const auto now = std::chrono::steady_clock::now();
  crashes_.push_back(now);
  while (crashes_.front() + knobs_.crash_window < now) crashes_.pop_front();
  if (crashes_.size() > static_cast<std::size_t>(knobs_.max_crashes)) return std::nullopt;
  const auto doublings = std::min<std::size_t>(crashes_.size() - 1, 16);
  return std::min(knobs_.backoff_min * (1 << doublings), knobs_.backoff_max);
}

std::string Supervisor::obituary(const std::string& verdict) const {
  std::string text = last_complaint_.empty() ? verdict : last_complaint_ + " (" + verdict + ")";
  if (last_lines_.empty()) return text + "; it logged nothing";
  text += "; the end of its log:";
  for (const auto& line : last_lines_) text += "\n  | " + printable(line);
  return text;
}

}  // namespace linkcpp::serve
