// Runs a command among network namespaces whose only way to each other is the network of a scenario.
//
//   lab_emulate SCENARIO.json [--report FILE] -- COMMAND [ARG...]
//
// Each node is a network namespace with a TUN device; this process moves the packets. The namespaces have no names and live by this
// process's descriptors alone, and the command with all its children lives in a process namespace of its own: whatever ends this process,
// nothing stays behind. Processes enter a node by `lab/in NODE COMMAND`. Changes are asked for by datagrams to a socket without a file.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "control.h"
#include "network.h"

namespace {

using namespace linkcpp;
using namespace linkcpp::lab;

constexpr int mtu = 1500;
constexpr int usage_code = 2, failure_code = 3;
/// Packets read from one node before the others have their turn.
constexpr int packets_a_turn = 64;

std::string reason() { return std::strerror(errno); }

/// A descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

Time now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::chrono::seconds(time.tv_sec) + Time(time.tv_nsec);
}

struct Node {
  std::size_t site = 0;
  Descriptor tun, space;
};

Result<> run_quietly(const std::string& command) {
  if (std::system(command.c_str()) == 0) return {};
  return fail(ErrorKind::io, "this failed: {}", command);
}

/// A new network namespace with one interface; leaves the thread in it.
Result<Node> make_node(const Site& site, std::size_t number) {
  if (::unshare(CLONE_NEWNET) != 0)
    return fail(ErrorKind::io, "cannot make a network namespace: {}; run as root, or under `unshare -Ur`", reason());
  Node node{.site = number,
            .tun = Descriptor(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)),
            .space = Descriptor(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC))};
  if (node.tun.get() < 0 || node.space.get() < 0) return fail(ErrorKind::io, "cannot open /dev/net/tun: {}", reason());
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(request.ifr_name, "wan");
  if (::ioctl(node.tun.get(), TUNSETIFF, &request) != 0) return fail(ErrorKind::io, "cannot make a TUN device: {}", reason());
  // Everything leaves by the one interface; its own address is the only one that is near.
  const std::string address = text_of(site.address);
  auto done = run_quietly(std::format(
      "ip link set lo up && ip addr add {}/32 dev wan && ip link set wan mtu {} txqueuelen 10000 up && ip route add default dev wan src {}",
      address, mtu, address));
  // Without this, what one connection learned of a path would change the next one's measurement.
  if (done) done = run_quietly("echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save");
  if (done && site.address6) {
    const std::string six = text_of(*site.address6);
    done = run_quietly(std::format("ip addr add {}/128 dev wan nodad && ip -6 route add default dev wan src {}", six, six));
  }
  if (!done) return pass(done);
  return node;
}

Result<std::vector<Node>> make_nodes(const Scenario& scenario) {
  const Descriptor home(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  std::vector<Node> nodes;
  for (std::size_t i = 0; i < scenario.sites.size(); ++i) {
    if (scenario.sites[i].nat) continue;
    auto node = make_node(scenario.sites[i], i);
    if (!node) return fail(node.error().kind, "node {}: {}", scenario.sites[i].name, node.error().message);
    nodes.push_back(std::move(*node));
  }
  if (::setns(home.get(), CLONE_NEWNET) != 0) return fail(ErrorKind::io, "cannot leave a network namespace: {}", reason());
  return nodes;
}

/// The first process of its process namespace: when it ends, all others there are killed.
[[noreturn]] void be_init(char** command) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  const pid_t child = ::fork();
  if (child == 0) {
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvp(command[0], command);
    std::fprintf(stderr, "lab: cannot run %s: %s\n", command[0], std::strerror(errno));
    ::_exit(127);
  }
  for (;;) {
    int status = 0;
    const pid_t ended = ::wait(&status);
    if (ended == child) ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    if (ended < 0 && errno != EINTR) ::_exit(failure_code);
  }
}

/// How late packets were handed over, in a histogram by powers of two of a microsecond.
class Lateness {
 public:
  void add(Time late) {
    const auto us = static_cast<std::uint64_t>(std::max<std::int64_t>(0, late.count() / 1000));
    ++counts_[static_cast<std::size_t>(std::bit_width(us))];
    ++total_;
    worst_ = std::max(worst_, late);
  }
  /// An upper bound of the share's quantile, in milliseconds.
  [[nodiscard]] double quantile_ms(double share) const {
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (static_cast<double>(seen) >= share * static_cast<double>(total_))
        return std::min(static_cast<double>(std::uint64_t{1} << i) * 1e-3, worst_ms());
    }
    return worst_ms();
  }
  [[nodiscard]] double worst_ms() const { return static_cast<double>(worst_.count()) * 1e-6; }

 private:
  std::array<std::uint64_t, 65> counts_{};
  std::uint64_t total_ = 0;
  Time worst_{};
};

/// A socket for requests, in the abstract namespace: it has no file, and dies with this process. Its name is "linkcpp-lab-PID".
Result<Descriptor> open_control() {
  Descriptor control(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string name = std::format("linkcpp-lab-{}", ::getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (control.get() < 0 || ::bind(control.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return fail(ErrorKind::io, "cannot open the socket for changes: {}", reason());
  return control;
}

/// Packets that wait for a processor are late. Best effort; children do not inherit it.
bool go_first() {
  const sched_param parameters{.sched_priority = 1};
  return ::sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &parameters) == 0;
}

class Emulator {
 public:
  Emulator(const Scenario& scenario, std::vector<Node> nodes) : scenario_(scenario), network_(scenario), nodes_(std::move(nodes)) {
    by_site_.resize(scenario.sites.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) by_site_[nodes_[i].site] = i;
  }

  /// "backbone=7 w1=9": descriptors of the namespaces, for lab/in.
  [[nodiscard]] std::string spaces() const {
    std::string text;
    for (const Node& node : nodes_) text += std::format("{}={} ", scenario_.sites[node.site].name, node.space.get());
    return text;
  }

  /// Moves packets until `child` ends; its exit status.
  int run(pid_t child, int signals, int control) {
    goes_first_ = go_first();
    const Descriptor timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    std::vector<pollfd> entries{{.fd = signals, .events = POLLIN, .revents = 0},
                                {.fd = timer.get(), .events = POLLIN, .revents = 0},
                                {.fd = control, .events = POLLIN, .revents = 0}};
    const std::size_t first_node = entries.size();
    for (const Node& node : nodes_) entries.push_back({.fd = node.tun.get(), .events = POLLIN, .revents = 0});
    for (;;) {
      arm(timer.get());
      if (::poll(entries.data(), entries.size(), 1000) < 0 && errno != EINTR) return failure_code;
      if (entries[0].revents != 0) {
        signalfd_siginfo info{};
        if (::read(signals, &info, sizeof info) == sizeof info && info.ssi_signo != SIGCHLD) ::kill(child, SIGKILL);
      }
      if (entries[2].revents != 0) answer(control);
      int status = 0;
      if (::waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (entries[first_node + i].revents != 0) take(nodes_[i]);
      }
      network_.advance(now(), [this](std::size_t site, const Bytes& packet, Time due) { give(site, packet, due); });
    }
  }

  [[nodiscard]] nlohmann::json report() const {
    nlohmann::json sites = nlohmann::json::array();
    for (std::size_t i = 0; i < scenario_.sites.size(); ++i) {
      const SiteCounters counters = network_.counters(i);
      const auto line = [](const LineCounters& c) {
        return nlohmann::json{{"packets", c.packets},
                              {"bytes", c.bytes},
                              {"lost", c.lost},
                              {"dropped", c.dropped},
                              {"loss", c.packets == 0 ? 0 : static_cast<double>(c.lost) / static_cast<double>(c.packets)}};
      };
      sites.push_back({{"name", scenario_.sites[i].name},
                       {"address", text_of(network_.site(i).address)},
                       {"up", line(counters.up)},
                       {"down", line(counters.down)},
                       {"unroutable", counters.unroutable},
                       {"refused_by_nat", counters.refused},
                       {"blocked", counters.blocked},
                       {"cut", counters.cut}});
    }
    std::string control;
    std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> control;
    return {{"sites", sites},
            {"late_ms", {{"p50", lateness_.quantile_ms(0.5)}, {"p99", lateness_.quantile_ms(0.99)}, {"worst", lateness_.worst_ms()}}},
            {"not_taken", not_taken_},
            {"goes_first", goes_first_},
            {"congestion_control", control}};
  }

 private:
  /// One request and its answer: {"ok":true, ...} or {"ok":false,"error":"..."}.
  void answer(int control) {
    std::array<char, 65536> request;
    sockaddr_un from{};
    socklen_t length = sizeof from;
    const ssize_t n = ::recvfrom(control, request.data(), request.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (n <= 0) return;
    const std::string text = obeyed({request.data(), static_cast<std::size_t>(n)}).dump();
    ::sendto(control, text.data(), text.size(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&from), length);
  }
  /// "report" is the emulator's own; with "fresh", lateness is counted anew from here.
  nlohmann::json obeyed(std::string_view request) {
    const auto parsed = nlohmann::json::parse(request, nullptr, false);
    if (parsed.is_object() && parsed.value("do", nlohmann::json()) == "report") {
      const nlohmann::json all{{"ok", true}, {"report", report()}};
      if (parsed.contains("fresh")) lateness_ = {};
      return all;
    }
    const auto done = obey(network_, request);
    if (!done) return {{"ok", false}, {"error", done.error().message}};
    return {{"ok", true}, {"site", nlohmann::json::parse(*done)}};
  }
  void arm(int timer) const {
    itimerspec when{};
    if (const auto next = network_.next()) {
      const auto at = std::max(next->count(), std::int64_t{1});
      when.it_value = {.tv_sec = at / 1'000'000'000, .tv_nsec = at % 1'000'000'000};
    }
    ::timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, nullptr);
  }
  void take(const Node& node) {
    for (int i = 0; i < packets_a_turn; ++i) {
      Bytes packet(mtu + 36);
      const ssize_t n = ::read(node.tun.get(), packet.data(), packet.size());
      if (n <= 0) return;
      packet.resize(static_cast<std::size_t>(n));
      network_.send(node.site, std::move(packet), now());
    }
  }
  void give(std::size_t site, const Bytes& packet, Time due) {
    lateness_.add(now() - due);
    if (::write(nodes_[by_site_[site]].tun.get(), packet.data(), packet.size()) < 0) ++not_taken_;
  }

  const Scenario& scenario_;
  Network network_;
  std::vector<Node> nodes_;
  std::vector<std::size_t> by_site_;
  Lateness lateness_;
  std::uint64_t not_taken_ = 0;
  bool goes_first_ = false;
};

int complain(const std::string& message, int code) {
  std::fprintf(stderr, "lab: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const char *file = nullptr, *report = nullptr;
  int at = 1;
  for (; at < argc && std::strcmp(argv[at], "--") != 0; ++at) {
    if (std::strcmp(argv[at], "--report") == 0 && at + 1 < argc)
      report = argv[++at];
    else
      file = argv[at];
  }
  if (file == nullptr || at + 1 >= argc)
    return complain("usage: lab_emulate SCENARIO.json [--report FILE] -- COMMAND [ARG...]", usage_code);
  std::ifstream in(file);
  const auto scenario = parse_scenario(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!scenario) return complain(scenario.error().message, usage_code);
  auto nodes = make_nodes(*scenario);
  if (!nodes) return complain(nodes.error().message, failure_code);
  Emulator emulator(*scenario, std::move(*nodes));
  auto control = open_control();
  if (!control) return complain(control.error().message, failure_code);

  sigset_t watched;
  sigemptyset(&watched);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&watched, number);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  const Descriptor signals(::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC));
  ::setenv("LINKCPP_LAB_PID", std::to_string(::getpid()).c_str(), 1);
  ::setenv("LINKCPP_LAB_NODES", emulator.spaces().c_str(), 1);
  if (::unshare(CLONE_NEWPID) != 0) return complain(std::format("cannot make a process namespace: {}", reason()), failure_code);
  const pid_t child = ::fork();
  if (child < 0) return complain(std::format("cannot start a process: {}", reason()), failure_code);
  if (child == 0) be_init(argv + at + 1);
  const int code = emulator.run(child, signals.get(), control->get());
  if (report != nullptr) std::ofstream(report) << emulator.report().dump(1) << '\n';
  return code;
}
