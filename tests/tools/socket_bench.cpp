// socket_bench: the bound that link_bench is compared with: the same exchanges over a plain TCP socket, blocking, without encryption.
//
//   socket_bench serve HOST:PORT            answers each request with as many bytes as it asks for; ends with a signal
//   socket_bench ask HOST:PORT [options]    prints one JSON object, as link_bench does
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "net/endpoint.h"
#include "support/bench_report.h"

namespace {

using namespace linkcpp;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

struct Options {
  std::string address, congestion_control = "cubic";
  std::size_t out = 12'288, back = 12'288;
  int count = 100, warm_up = 10;
  double pause_ms = 0, rtt_ms = 0, deadline_s = 60, limit_s = 600;
};

/// Of a request.
struct Head {
  std::uint32_t length = 0, back = 0;
};
constexpr std::uint32_t largest = 64u << 20;

int complain(const std::string& what) {
  std::fprintf(stderr, "socket_bench: error: %s%s%s\n", what.c_str(), errno == 0 ? "" : ": ", errno == 0 ? "" : std::strerror(errno));
  return 1;
}

struct Resolved {
  sockaddr_storage address{};
  socklen_t length = 0;
};

class Connection {
 public:
  explicit Connection(int fd) : fd_(fd) {}
  Connection(Connection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Connection& operator=(Connection&&) = delete;
  ~Connection() {
    if (fd_ >= 0) ::close(fd_);
  }
  /// \return the congestion control in force
  std::string prepare(const std::string& congestion_control, double deadline_s) const {
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(), static_cast<socklen_t>(congestion_control.size()));
    const timeval limit{.tv_sec = static_cast<time_t>(deadline_s), .tv_usec = 0};
    if (deadline_s > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    std::array<char, 32> name{};
    socklen_t length = name.size() - 1;
    ::getsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, name.data(), &length);
    return name.data();
  }
  [[nodiscard]] bool connect(const Resolved& to) const {
    return ::connect(fd_, reinterpret_cast<const sockaddr*>(&to.address), to.length) == 0;
  }
  [[nodiscard]] bool listen(const Resolved& at) const {
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return ::bind(fd_, reinterpret_cast<const sockaddr*>(&at.address), at.length) == 0 && ::listen(fd_, 100) == 0;
  }
  [[nodiscard]] int accept() const { return ::accept(fd_, nullptr, nullptr); }
  [[nodiscard]] bool read(void* to, std::size_t n) const {
    auto* at = static_cast<char*>(to);
    while (n > 0) {
      const ssize_t got = ::recv(fd_, at, n, 0);
      if (got <= 0) return false;
      at += got, n -= static_cast<std::size_t>(got);
    }
    return true;
  }
  [[nodiscard]] bool write(const void* from, std::size_t n) const {
    const auto* at = static_cast<const char*>(from);
    while (n > 0) {
      const ssize_t put = ::send(fd_, at, n, MSG_NOSIGNAL);
      if (put <= 0) return false;
      at += put, n -= static_cast<std::size_t>(put);
    }
    return true;
  }

 private:
  int fd_;
};

std::optional<Resolved> resolve(const std::string& text) {
  const auto endpoint = net::parse_endpoint(text);
  addrinfo* found = nullptr;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST, hints.ai_socktype = SOCK_STREAM;
  if (!endpoint || ::getaddrinfo(endpoint->host.c_str(), std::to_string(endpoint->port).c_str(), &hints, &found) != 0) return std::nullopt;
  Resolved resolved{.length = found->ai_addrlen};
  std::memcpy(&resolved.address, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return resolved;
}

void answer(const Connection& connection) {
  std::vector<char> request, reply;
  for (Head head; connection.read(&head, sizeof head) && head.length <= largest && head.back <= largest;) {
    request.resize(head.length), reply.resize(head.back);
    if (!connection.read(request.data(), request.size()) || !connection.write(reply.data(), reply.size())) return;
  }
}

int serve(const Options& options) {
  const auto where = resolve(options.address);
  if (!where) return complain("no numeric HOST:PORT: " + options.address);
  const Connection listener(::socket(where->address.ss_family, SOCK_STREAM, 0));
  // Accepted sockets inherit it. Set on them later, the pacing of the one before would stay in force.
  listener.prepare(options.congestion_control, 0);
  if (!listener.listen(*where)) return complain("cannot listen on " + options.address);
  std::printf("ready %s\n", options.address.c_str());
  std::fflush(stdout);
  for (;;) {
    const int fd = listener.accept();
    if (fd >= 0) std::thread([connection = Connection(fd)] { answer(connection); }).detach();
  }
}

int ask(const Options& options) {
  const auto where = resolve(options.address);
  if (!where) return complain("no numeric HOST:PORT: " + options.address);
  const Connection connection(::socket(where->address.ss_family, SOCK_STREAM, 0));
  const std::string control = connection.prepare(options.congestion_control, options.deadline_s);
  if (!connection.connect(*where)) return complain("cannot connect to " + options.address);
  std::vector<char> request(sizeof(Head) + options.out), reply(options.back);
  const Head head{.length = static_cast<std::uint32_t>(options.out), .back = static_cast<std::uint32_t>(options.back)};
  std::memcpy(request.data(), &head, sizeof head);
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(options.limit_s);
  for (int i = 0; i < options.warm_up + options.count && Clock::now() < end; ++i) {
    if (i >= options.warm_up) std::this_thread::sleep_for(Milliseconds(options.pause_ms));
    const auto begin = Clock::now();
    if (!connection.write(request.data(), request.size()) || !connection.read(reply.data(), reply.size()))
      return complain("the connection broke, or an answer did not come in time");
    if (i >= options.warm_up) times.push_back(Milliseconds(Clock::now() - begin).count());
  }
  nlohmann::json result{{"out", options.out},
                        {"back", options.back},
                        {"pause_ms", options.pause_ms},
                        {"asked_for", options.count},
                        {"complete", static_cast<int>(times.size()) == options.count},
                        {"ms", bench::summary(times)},
                        {"congestion_control", control},
                        {"cpu_s", {{"client", static_cast<double>(bench::cpu_us()) * 1e-6}}},
                        {"exchanges_ms", times}};
  if (options.rtt_ms > 0) result["rtt_ms"] = options.rtt_ms, result["in_rtt"] = bench::summary(times, options.rtt_ms);
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Times exchanges over plain TCP sockets."};
  app.require_subcommand(1);
  auto* server = app.add_subcommand("serve", "Answers; prints \"ready ADDRESS\"");
  auto* client = app.add_subcommand("ask", "Asks, and prints what it took as JSON");
  for (auto* command : {server, client}) {
    command->add_option("ADDRESS", options.address, "Numeric HOST:PORT")->required();
    command->add_option("--congestion-control", options.congestion_control, "Best effort")->capture_default_str();
  }
  const auto sizes = CLI::Range(std::size_t{1}, std::size_t{largest});
  client->add_option("--out", options.out, "Bytes of a request")->check(sizes)->capture_default_str();
  client->add_option("--back", options.back, "Bytes of the answer")->check(sizes)->capture_default_str();
  client->add_option("--count", options.count, "Exchanges")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  client->add_option("--warm-up", options.warm_up, "Exchanges before those that count")->capture_default_str();
  client->add_option("--pause-ms", options.pause_ms, "Before each exchange")->capture_default_str();
  client->add_option("--rtt-ms", options.rtt_ms, "The path's round trip, to give times in it");
  client->add_option("--deadline-s", options.deadline_s, "For each exchange")->capture_default_str();
  client->add_option("--limit-s", options.limit_s, "Stops after this with what it has")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return client->parsed() ? ask(options) : serve(options);
}
