// A child process: started with exactly the descriptors and environment it should have, never left behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace linkcpp::serve {

/// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset() { *this = Fd(); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Both ends of a stream that closes on exec, numbered above the descriptors that a child is given.
struct Channel {
  Fd ours;
  Fd theirs;
  /// A socket pair: writing to it never raises SIGPIPE in a writer that asks for that.
  static Result<Channel> open();
};

/// How a process ended.
struct ExitStatus {
  int code = 0;    ///< exit code, when it exited
  int signal = 0;  ///< the signal that ended it, else 0
  [[nodiscard]] bool success() const { return code == 0 && signal == 0; }
  /// "exited with code 3", "was ended by signal 9 (Killed)"
  [[nodiscard]] std::string describe() const;
};

/// What to start.
struct Command {
  std::vector<std::string> argv;                          ///< argv[0] is a path
  std::map<std::string, std::optional<std::string>> env;  ///< changes to our environment; none: unset
  int output = -1;                                        ///< receives stdout and stderr; -1: ours
  int out = -1;                                           ///< receives stdout instead of `output`
  int extra = -1;                                         ///< becomes descriptor `extra_fd` of the child; -1: none
  int parent_death_signal = SIGKILL;                      ///< sent to the child when we die
  static constexpr int extra_fd = 3;
};

/// A running or ended child in a process group of its own (a terminal's Ctrl-C reaches only us, so that we decide the order of
/// stopping). Standard input is /dev/null. Destroying it kills and reaps it. Threading: one thread; the thread that starts a
/// child must outlive it, since the kernel ties the death signal to that thread.
class Process {
 public:
  Process() = default;
  /// Fails with `not_found` or `io`, naming the program and the reason, if it cannot be executed.
  static Result<Process> start(const Command& command);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Becomes readable when the child ends.
  [[nodiscard]] int watch_fd() const { return pidfd_.get(); }
  /// The exit status once it has ended; reaps it.
  std::optional<ExitStatus> poll();
  /// Sends a signal, unless it has been reaped.
  void signal(int number);
  /// Waits up to `limit`.
  std::optional<ExitStatus> wait(std::chrono::milliseconds limit);
  /// SIGTERM, once: many programs take a second one as "at once".
  void terminate();
  /// terminate(), and SIGKILL after `grace`.
  ExitStatus stop(std::chrono::milliseconds grace);

 private:
  pid_t pid_ = -1;
  Fd pidfd_;
  std::optional<ExitStatus> status_;
  bool terminating_ = false;
};

/// Runs a short command to its end and returns what it printed, at most 64 KiB of it; `timeout` if it takes longer than `limit`.
Result<std::string> capture(Command command, std::chrono::milliseconds limit);

}  // namespace linkcpp::serve
