// Keeps one llama-server running: starts it, reads its status channel and log, starts it again when it crashes, stops it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "serve/process.h"
#include "serve/status.h"

namespace linkcpp::serve {

/// Every tunable of supervision.
struct SupervisionKnobs {
  int max_crashes = 5;  ///< more crashes than this within `crash_window` end it
  std::chrono::milliseconds crash_window{60'000};
  std::chrono::milliseconds backoff_min{500};  ///< pause before the first restart; doubles
  std::chrono::milliseconds backoff_max{8'000};
  std::chrono::milliseconds stop_grace{10'000};  ///< from SIGTERM to SIGKILL
  std::chrono::milliseconds drain_grace{1'000};  ///< for reading the rest of its output once it has ended
  std::size_t last_lines = 20;                   ///< of the log, kept for the report of a death
};

/// Runs on the thread that runs the io_context; not thread-safe.
class Supervisor {
 public:
  struct Handlers {
    std::function<void()> on_start;
    std::function<void(const Json& event)> on_event;                                   ///< a status event
    std::function<void(std::string_view line)> on_log;                                 ///< a line of stdout or stderr
    std::function<void(const ExitStatus&, std::chrono::milliseconds pause)> on_crash;  ///< it will be restarted after the pause
  };

  /// `command` is what to run; its output and extra descriptor are set here (the status channel is Command::extra_fd).
  Supervisor(boost::asio::io_context& context, Command command, SupervisionKnobs knobs, Handlers handlers);

  /// Runs until stop() (success), or until it is hopeless: the program cannot be started, it ended before served() was called, or
  /// it crashed too often. The error says how it ended and quotes the log's last lines.
  boost::asio::awaitable<Result<>> run();

  /// Asks for a graceful stop: SIGTERM, then SIGKILL after the grace. A second call kills at once.
  void stop();
  /// Tells that the program has begun to serve: from now on its death is a crash, worth a restart.
  void served() { served_ = true; }
  [[nodiscard]] bool stopping() const { return stopping_; }
  [[nodiscard]] pid_t pid() const { return process_.pid(); }

 private:
  boost::asio::awaitable<Result<ExitStatus>> run_once();
  boost::asio::awaitable<void> pump_status(Fd channel);
  boost::asio::awaitable<void> pump_log(Fd channel);
  boost::asio::awaitable<ExitStatus> wait_for_exit();
  /// Counts a crash; the pause before the restart, or none if there were too many.
  std::optional<std::chrono::milliseconds> next_pause();
  /// How it ended, for people: the plugin's own words if it said any, and the end of the log.
  [[nodiscard]] std::string obituary(const std::string& verdict) const;

  boost::asio::io_context& context_;
  Command command_;
  SupervisionKnobs knobs_;
  Handlers handlers_;
  Process process_;
  boost::asio::steady_timer pause_timer_, kill_timer_;
  std::deque<std::string> last_lines_;
  std::string last_complaint_;  ///< what the plugin or the engine named as its last error
  std::deque<std::chrono::steady_clock::time_point> crashes_;
  bool served_ = false;
  bool stopping_ = false;
};

}  // namespace linkcpp::serve
