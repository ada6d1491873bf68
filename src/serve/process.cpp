#include "serve/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

namespace linkcpp::serve {
namespace {

/// Above every number that a child is given (0 to 3), so that dup2 in the child never meets its own source.
constexpr int lowest_own_fd = 10;

std::string reason(int error) { return std::generic_category().message(error); }

Result<Fd> raise(Fd fd) {
  const int high = fcntl(fd.get(), F_DUPFD_CLOEXEC, lowest_own_fd);
  if (high < 0) return fail(ErrorKind::io, "out of file descriptors: {}", reason(errno));
  return Fd(high);
}

/// argv or envp: pointers into strings that outlive it.
std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (auto& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment(const std::map<std::string, std::optional<std::string>>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) result.emplace_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (value) result.push_back(name + '=' + *value);
  }
  return result;
}

/// What the child needs between fork and exec, prepared before: only async-signal-safe calls are allowed there.
struct Launch {
  char** argv;
  char** envp;
  int null_fd, out, err, extra, report, death_signal;
  pid_t parent;
};

[[noreturn]] void become(const Launch& launch) {
  prctl(PR_SET_PDEATHSIG, launch.death_signal);
  if (getppid() != launch.parent) _exit(127);  // the parent died before the line above
  setpgid(0, 0);
  dup2(launch.null_fd, 0);
  if (launch.out >= 0) dup2(launch.out, 1);
  if (launch.err >= 0) dup2(launch.err, 2);
  if (launch.extra >= 0) dup2(launch.extra, Command::extra_fd);
  // Libraries open sockets and files without close-on-exec; none of them is the child's business.
  close_range(launch.extra >= 0 ? Command::extra_fd + 1 : 3, ~0U, CLOSE_RANGE_CLOEXEC);
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  for (int number : {SIGPIPE, SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGCHLD}) sigaction(number, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(launch.argv[0], launch.argv, launch.envp);
  const int error = errno;
  [[maybe_unused]] auto written = write(launch.report, &error, sizeof error);
  _exit(127);
}

ExitStatus decode(int status) {
  if (WIFSIGNALED(status)) return {.code = 0, .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status), .signal = 0};
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Result<Channel> Channel::open() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return fail(ErrorKind::io, "cannot make a channel: {}", reason(errno));
  auto ours = raise(Fd(ends[0])), theirs = raise(Fd(ends[1]));
  if (!ours) return pass(ours);
  if (!theirs) return pass(theirs);
  return Channel{std::move(*ours), std::move(*theirs)};
}

std::string ExitStatus::describe() const {
  if (signal != 0) return std::format("was ended by signal {} ({})", signal, strsignal(signal));
  return std::format("exited with code {}", code);
}

Result<Process> Process::start(const Command& command) {
  auto strings = command.argv;
  auto variables = environment(command.env);
  auto argv = pointers(strings), envp = pointers(variables);
  auto null = raise(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  if (!null) return pass(null);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return fail(ErrorKind::io, "cannot start {}: {}", command.argv[0], reason(errno));
  Fd report_in(report[0]);
  auto report_out = raise(Fd(report[1]));
  if (!report_out) return pass(report_out);

  const Launch launch{argv.data(),    envp.data(),   null->get(),       command.out >= 0 ? command.out : command.output,
                      command.output, command.extra, report_out->get(), command.parent_death_signal,
                      getpid()};
  // No signal handler of ours may run in the child, where it would write to descriptors that it shares with us.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const pid_t pid = fork();
  if (pid == 0) become(launch);
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (pid < 0) return fail(ErrorKind::io, "cannot start {}: {}", command.argv[0], reason(fork_error));

  Process process;
  process.pid_ = pid;
  report_out->reset();
  int error = 0;
  ssize_t n = 0;
  while ((n = read(report_in.get(), &error, sizeof error)) < 0 && errno == EINTR) continue;
  if (n == sizeof error) {
    const auto kind = error == ENOENT ? ErrorKind::not_found : ErrorKind::io;
    return fail(kind, "cannot start {}: {}", command.argv[0], reason(error));
  }
  process.pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_) return fail(ErrorKind::io, "cannot watch {}: {}", command.argv[0], reason(errno));
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(std::exchange(other.status_, std::nullopt)),
      terminating_(other.terminating_) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(status_, other.status_);
  std::swap(terminating_, other.terminating_);
  return *this;
}

Process::~Process() {
  if (pid_ < 0 || status_) return;
  ::kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

std::optional<ExitStatus> Process::poll() {
  if (pid_ < 0 || status_) return status_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) status_ = decode(status);
  return status_;
}

void Process::signal(int number) {
  if (pid_ > 0 && !status_) ::kill(pid_, number);
}

void Process::terminate() {
  if (!std::exchange(terminating_, true)) signal(SIGTERM);
}

std::optional<ExitStatus> Process::wait(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!poll()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (pid_ < 0 || left.count() <= 0) return std::nullopt;
    pollfd watched{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    ::poll(&watched, 1, static_cast<int>(left.count()));
  }
  return status_;
}

ExitStatus Process::stop(std::chrono::milliseconds grace) {
  if (pid_ < 0) return {};
  terminate();
  if (auto status = wait(grace)) return *status;
  signal(SIGKILL);
  while (!poll()) wait(std::chrono::seconds(1));
  return *status_;
}

Result<std::string> capture(Command command, std::chrono::milliseconds limit) {
  constexpr std::size_t most = 64u << 10;
  auto channel = Channel::open();
  if (!channel) return pass(channel);
  command.output = channel->theirs.get();
  auto process = Process::start(command);
  if (!process) return pass(process);
  channel->theirs.reset();
  std::string text;
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd watched{.fd = channel->ours.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0) return fail(ErrorKind::timeout, "{} did not answer within {} ms", command.argv[0], limit.count());
    if (::poll(&watched, 1, static_cast<int>(left.count())) <= 0) continue;
    char buffer[4096];
    const ssize_t n = read(channel->ours.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, std::min<std::size_t>(static_cast<std::size_t>(n), most - text.size()));
  }
  process->stop(std::chrono::seconds(1));
  return text;
}

}  // namespace linkcpp::serve
