// Round trips over a link on loopback, dispatch out and combine back, against plain TCP sockets and against bare TLS in the same run.
// Both baselines use blocking reads and writes on threads of their own: the least that the kernel and OpenSSL ask.
// Counters, all medians: link_us, tcp_us, tls_us, link/tcp, link/tls.
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "net/driver.h"
#include "net/transport.h"
#include "wire/frame.h"

namespace {

using namespace linkcpp;
using Clock = std::chrono::steady_clock;

constexpr std::size_t dispatch_bytes = 12'288;  // one row of n_embd 3072 in F32
constexpr int batch = 32;                       // round trips of one kind in a row

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "bench_link: %s\n", what);
  std::abort();
}

Bytes frame(wire::FrameType type, std::size_t body) { return wire::make_frame(type, 1, Bytes(body, std::byte{0x5A})); }

/// A connected pair of TCP sockets on loopback.
std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0), client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (::bind(listener, generic, length) != 0 || ::listen(listener, 1) != 0 || ::getsockname(listener, generic, &length) != 0 ||
      ::connect(client, generic, length) != 0) {
    die("cannot make a pair of sockets");
  }
  const int server = ::accept(listener, nullptr, nullptr), on = 1;
  ::close(listener);
  for (const int fd : {client, server}) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {client, server};
}

/// Round trips of some kind; ends its server when destroyed.
class Path {
 public:
  virtual ~Path() = default;
  virtual void round_trip() = 0;
};

/// Blocking sockets, plain or with bare TLS.
class Blocking final : public Path {
 public:
  Blocking(std::size_t reply, bool tls) : out_(frame(wire::FrameType::dispatch, dispatch_bytes)), in_(wire::frame_header_bytes + reply) {
    const auto [client, server] = tcp_pair();
    client_.fd = client;
    server_.fd = server;
    if (tls) start_tls();
    thread_ = std::thread([this, answer = frame(wire::FrameType::combine, reply)] {
      Bytes request(wire::frame_header_bytes + dispatch_bytes);
      while (server_.read(request)) server_.write(answer);
    });
  }
  ~Blocking() override {
    ::shutdown(client_.fd, SHUT_RDWR);
    thread_.join();
    ::close(client_.fd);
    ::close(server_.fd);
  }
  void round_trip() override {
    client_.write(out_);
    if (!client_.read(in_)) die("the baseline broke");
  }

 private:
  struct End {
    int fd = -1;
    std::shared_ptr<SSL> ssl;
    bool read(Bytes& into) const {
      for (std::size_t at = 0; at < into.size();) {
        const auto n = ssl ? SSL_read(ssl.get(), into.data() + at, static_cast<int>(into.size() - at))
                           : ::recv(fd, into.data() + at, into.size() - at, 0);
        if (n <= 0) return false;
        at += static_cast<std::size_t>(n);
      }
      return true;
    }
    void write(const Bytes& from) const {
      for (std::size_t at = 0; at < from.size();) {
        const auto n = ssl ? SSL_write(ssl.get(), from.data() + at, static_cast<int>(from.size() - at))
                           : ::send(fd, from.data() + at, from.size() - at, MSG_NOSIGNAL);
        if (n <= 0) return;
        at += static_cast<std::size_t>(n);
      }
    }
  };

  void start_tls() {
    const auto identity = net::Identity::generate().value();
    for (End* end : {&client_, &server_}) {
      const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
      SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256");
      SSL_CTX_set_num_tickets(context.get(), 0);
      SSL_CTX_use_certificate(context.get(), identity.certificate());
      SSL_CTX_use_PrivateKey(context.get(), identity.private_key());
      end->ssl = std::shared_ptr<SSL>(SSL_new(context.get()), SSL_free);
      SSL_set_fd(end->ssl.get(), end->fd);
    }
    auto accepted = std::async(std::launch::async, [this] { return SSL_accept(server_.ssl.get()); });
    if (SSL_connect(client_.ssl.get()) != 1 || accepted.get() != 1) die("cannot start TLS");
  }

  End client_, server_;
  Bytes out_, in_;
  std::thread thread_;
};

/// A link, driven on both sides by the thread that waits.
class Linked final : public Path {
 public:
  explicit Linked(std::size_t reply)
      : out_(frame(wire::FrameType::dispatch, dispatch_bytes)), answer_(frame(wire::FrameType::combine, reply)) {
    const auto backbone = net::Identity::generate().value(), worker = net::Identity::generate().value();
    const net::Secret secret{1};
    auto listener = net::Listener::open(
        worker_driver_.context(), "127.0.0.1:0", {worker, secret, backbone.key(), false}, {},
        [this](net::LinkPtr link) { worker_ = std::move(link); },
        [](const std::string&, const Error& error) { die(error.message.c_str()); });
    if (!listener) die(listener.error().message.c_str());
    auto dialer = net::Dialer::start(
        driver_.context(), {(*listener)->address()}, {backbone, secret, std::nullopt, true}, {},
        [this](net::LinkPtr link) { link_ = std::move(link); }, [](const Error& error) { die(error.message.c_str()); });
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    if (!driver_.run_until([this] { return link_ != nullptr; }, deadline)) die("no link");
    if (!worker_driver_.run_until([this] { return worker_ != nullptr; }, deadline)) die("no link");
    worker_->start({.on_frame = [this](const wire::FrameView&) { worker_->send(answer_); }, .on_close = [](const Error&) {}});
    link_->start(
        {.on_frame = [this](const wire::FrameView&) { answered_ = true; }, .on_close = [](const Error&) { die("the link broke"); }});
    thread_ = std::thread([this] { worker_driver_.run_until([this] { return stop_.load(); }, Clock::time_point::max()); });
  }
  ~Linked() override {
    stop_ = true;
    worker_driver_.run_exclusive([] {});
    thread_.join();
    driver_.run_exclusive([this] { link_.reset(); });
    worker_driver_.run_exclusive([this] { worker_.reset(); });
  }
  void round_trip() override {
    answered_ = false;
    link_->send(out_);
    if (!driver_.run_until([this] { return answered_; }, Clock::now() + std::chrono::seconds(10))) die("no answer");
  }

 private:
  net::Driver driver_, worker_driver_;
  net::LinkPtr link_, worker_;
  Bytes out_, answer_;
  bool answered_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void round_trip(benchmark::State& state) {
  const auto reply = static_cast<std::size_t>(state.range(0));
  struct Kind {
    std::unique_ptr<Path> path;
    std::vector<double> us;
    double measure() {
      const auto start = Clock::now();
      path->round_trip();
      return us.emplace_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  };
  std::array<Kind, 3> kinds{Kind{std::make_unique<Linked>(reply), {}}, Kind{std::make_unique<Blocking>(reply, false), {}},
                            Kind{std::make_unique<Blocking>(reply, true), {}}};
  for (Kind& kind : kinds) {
    for (int i = 0; i < 200; ++i) kind.path->round_trip();
  }
  for (auto _ : state) {
    double link = 0;
    for (Kind& kind : kinds) {
      for (int i = 0; i < batch; ++i) {
        const double us = kind.measure();
        if (&kind == &kinds[0]) link += us;
      }
    }
    state.SetIterationTime(link / batch / 1e6);
  }
  const double link = median(kinds[0].us), tcp = median(kinds[1].us), tls = median(kinds[2].us);
  state.counters["link_us"] = link;
  state.counters["tcp_us"] = tcp;
  state.counters["tls_us"] = tls;
  state.counters["link/tcp"] = link / tcp;
  state.counters["link/tls"] = link / tls;
}
BENCHMARK(round_trip)->ArgName("back")->Arg(12'288)->Arg(98'304)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(60);

/// What a wait costs when its event is there already: no hand-over from the background thread.
void run_until_ready(benchmark::State& state) {
  net::Driver driver;
  for (auto _ : state) {
    bool done = false;
    boost::asio::post(driver.context(), [&] { done = true; });
    if (!driver.run_until([&] { return done; }, Clock::now() + std::chrono::seconds(1))) die("not run");
  }
}
BENCHMARK(run_until_ready);

}  // namespace
