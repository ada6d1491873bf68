// What the tests of links share: event loops on threads, a mailbox, a pair of linked nodes, and a peer that can misbehave.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/auth.h"
#include "net/endpoint.h"
#include "net/frame_buffer.h"
#include "net/tls_session.h"
#include "net/transport.h"
#include "net/websocket_frames.h"
#include "support/mailbox.h"
#include "unit/net/web_front.h"
#include "wire/messages.h"

namespace linkcpp::net {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Generous: under sanitizers on a busy machine everything is slow.
inline constexpr auto patience = 30s;

template <class T>
using Mailbox = test::TimedMailbox<T, patience.count()>;

/// How addresses of hosts begin: "" for TCP, "ws://", or "wss://" for a web server's TLS before them.
inline std::string scheme;

/// Tests that run over several transports.
class OverTransports : public testing::TestWithParam<const char*> {
 protected:
  OverTransports() { scheme = GetParam(); }
  ~OverTransports() override { scheme.clear(); }
};

inline std::string transport_name(const testing::TestParamInfo<const char*>& info) {
  const std::string text = info.param;
  return text.empty() ? "tcp" : text.substr(0, text.find(':'));
}

/// An io_context run by threads of its own.
class Loop {
 public:
  explicit Loop(int n_threads = 1) : work_(context_.get_executor()) {
    for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this] { context_.run(); });
  }
  ~Loop() {
    work_.reset();
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
  }
  boost::asio::io_context& context() { return context_; }

 private:
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
};

/// A link whose events go to mailboxes.
struct Recorder {
  struct Frame {
    wire::FrameHeader header;
    Bytes body;
  };
  std::shared_ptr<Mailbox<Frame>> frames = std::make_shared<Mailbox<Frame>>();
  std::shared_ptr<Mailbox<Error>> closes = std::make_shared<Mailbox<Error>>();
  std::shared_ptr<std::atomic<int>> late = std::make_shared<std::atomic<int>>(0);  ///< events after on_close

  [[nodiscard]] Link::Handlers handlers() const {
    auto closed = std::make_shared<std::atomic<bool>>(false);
    return {.on_frame =
                [frames = frames, closed, late = late](const wire::FrameView& view) {
                  if (*closed) ++*late;
                  frames->put({view.header, Bytes(view.body.begin(), view.body.end())});
                },
            .on_close =
                [closes = closes, closed, late = late](const Error& error) {
                  if (closed->exchange(true)) ++*late;
                  closes->put(error);
                }};
  }
};

inline Bytes pattern(std::size_t n, std::uint32_t seed) {
  Bytes bytes(n);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (std::size_t i = 0; i < n; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    bytes[i] = static_cast<std::byte>(state);
  }
  return bytes;
}

/// Equality without printing megabytes on failure.
inline bool same(const Bytes& a, const Bytes& b) { return a == b; }

inline Bytes frame_of(std::size_t n, std::uint32_t seed, wire::FrameType type = wire::FrameType::dispatch) {
  return wire::make_frame(type, seed, pattern(n, seed));
}

inline constexpr std::uint32_t many_threads = 4, frames_of_each = 300;

/// Sessions that lose or change connections let dispatches overtake each other.
enum class Order : std::uint8_t { kept, may_overtake };

/// Several threads send from both ends at once: frames stay whole, none is lost or repeated, and those of each thread are in order.
inline void exchange_from_many_threads(const LinkPtr& backbone, const LinkPtr& worker, const Recorder& at_backbone,
                                       const Recorder& at_worker, Order order = Order::kept) {
  constexpr std::uint32_t n_threads = many_threads, n = frames_of_each;
  std::vector<std::jthread> threads;
  for (std::uint32_t t = 0; t < n_threads; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < n; ++i) {
        const std::uint32_t id = t << 16 | i;
        worker->send(frame_of(id * 2654435761u % 20'000, id));
        backbone->send(frame_of(id * 2654435761u % 5'000, id));
      }
    });
  }
  for (const Recorder* side : {&at_backbone, &at_worker}) {
    const std::size_t limit = side == &at_backbone ? 20'000 : 5'000;
    std::vector<std::uint32_t> next(n_threads, 0);
    std::set<std::uint32_t> seen;
    for (std::uint32_t i = 0; i < n_threads * n; ++i) {
      const auto frame = side->frames->take();
      ASSERT_TRUE(frame);
      const auto id = static_cast<std::uint32_t>(frame->header.request);
      ASSERT_LT(id >> 16, n_threads);
      ASSERT_LT(id & 0xFFFF, n);
      ASSERT_TRUE(seen.insert(id).second) << id << " came twice";
      if (order == Order::kept) {
        ASSERT_EQ(id & 0xFFFF, next[id >> 16]++);
      }
      ASSERT_TRUE(same(frame->body, pattern(id * 2654435761u % limit, id)));
    }
  }
}

inline Secret secret_of(std::uint8_t fill) {
  Secret secret;
  secret.fill(fill);
  return secret;
}

inline Identity new_identity() { return Identity::generate().value(); }

/// A backbone that listens and what a worker needs to join it.
struct Nodes {
  Identity backbone = new_identity(), worker = new_identity();
  Secret secret = secret_of(7);
  LinkKnobs knobs{.handshake_deadline = 20'000ms,
                  .keep_warm = 50ms,
                  .silence_limit = 20'000ms,
                  .silence_floor = 20'000ms,
                  .backoff_min = 1ms,
                  .backoff_max = 20ms,
                  .web_ca_file = WebCertificate::one().file()};

  [[nodiscard]] Credentials backbone_credentials() const { return {backbone, secret, std::nullopt, true}; }
  [[nodiscard]] Credentials worker_credentials() const { return {worker, secret, backbone.key(), false}; }
};

struct Refusal {
  std::string endpoint;
  Error error;
};

/// A listening backbone.
struct Host {
  Mailbox<LinkPtr> links;
  Mailbox<Refusal> refusals;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<WebFront> front;

  /// `address`: where it, or what stands before it, listens; may have a scheme.
  Host(boost::asio::io_context& context, const Credentials& credentials, const LinkKnobs& knobs,
       const std::string& address = "127.0.0.1:0") {
    const bool fronted = scheme == "wss://";
    const std::string where = parse_address(address).value().endpoint.text();
    auto opened = Listener::open(
        context, fronted ? "127.0.0.1:0" : where, credentials, knobs, [this](LinkPtr link) { links.put(std::move(link)); },
        [this](const std::string& endpoint, const Error& error) { refusals.put({endpoint, error}); });
    if (!opened) throw std::runtime_error(opened.error().message);
    listener = std::move(*opened);
    if (fronted) front = std::make_unique<WebFront>(where, listener->address());
  }
  /// What dialers connect to.
  [[nodiscard]] std::string reached() const { return front ? std::format("127.0.0.1:{}", front->port()) : listener->address(); }
  /// The same, with the transport that the test is about.
  [[nodiscard]] std::string address() const { return scheme + reached(); }
};

/// A dialling node.
struct Guest {
  Mailbox<LinkPtr> links;
  Mailbox<Error> failures;
  std::unique_ptr<Dialer> dialer;

  Guest(boost::asio::io_context& context, std::vector<std::string> addresses, const Credentials& credentials, const LinkKnobs& knobs) {
    dialer = Dialer::start(
        context, std::move(addresses), credentials, knobs, [this](LinkPtr link) { links.put(std::move(link)); },
        [this](const Error& error) { failures.put(error); });
  }
};

/// Two nodes with one link between them, each on its own loop.
struct Linked {
  Nodes nodes;
  Loop backbone_loop, worker_loop;
  std::unique_ptr<Host> host;
  std::unique_ptr<Guest> guest;
  LinkPtr backbone, worker;
  Recorder at_backbone, at_worker;

  explicit Linked(Nodes n = {}, int n_threads = 1, bool redial = false)
      : nodes(std::move(n)), backbone_loop(n_threads), worker_loop(n_threads) {
    host = std::make_unique<Host>(backbone_loop.context(), nodes.backbone_credentials(), nodes.knobs);
    guest = std::make_unique<Guest>(worker_loop.context(), std::vector{host->address()}, nodes.worker_credentials(), nodes.knobs);
    backbone = host->links.take().value_or(nullptr);
    worker = guest->links.take().value_or(nullptr);
    if (!backbone || !worker) throw std::runtime_error("the nodes did not link");
    if (!redial) guest->dialer.reset();
    backbone->start(at_backbone.handlers());
    worker->start(at_worker.handlers());
  }
};

/// A blocking client that speaks TLS, or not, and says whatever a test wants, over TCP or in a WebSocket.
class RawPeer {
 public:
  explicit RawPeer(const std::string& address) {
    const Address to = parse_address(address).value();
    connect(to.endpoint.port);
    if (to.scheme == Scheme::ws) upgrade();
  }
  ~RawPeer() { close(); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  /// Like a killed process on a machine that is up: the kernel resets the connection.
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  bool send_raw(ByteSpan bytes) {
    if (!decoder_) return send_bytes(bytes);
    Bytes frame;
    put_websocket_frame(frame, WebSocketOpcode::binary, bytes, WebSocketMask{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}});
    return send_bytes(frame);
  }
  bool send_raw(std::string_view text) { return send_raw(std::as_bytes(std::span(text))); }
  /// Past the WebSocket, if there is one.
  bool send_bytes(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool send_bytes(std::string_view text) { return send_bytes(std::as_bytes(std::span(text))); }
  /// Bytes as they come, or empty at the end.
  Bytes receive_bytes(std::size_t most = 65536) {
    Bytes bytes(most);
    const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return bytes;
  }
  /// Bytes of the stream, or empty at the end.
  Bytes receive_raw() {
    for (;;) {
      Bytes bytes = receive_bytes();
      if (!decoder_ || bytes.empty()) return bytes;
      const auto decoded = decoder_->decode(bytes);
      bytes.resize(decoded.payload);
      if (!bytes.empty() || decoded.closed || decoded.wrong) return bytes;
    }
  }
  /// Everything as text until the other side closes.
  std::string receive_text() {
    std::string text;
    for (Bytes bytes = receive_bytes(); !bytes.empty(); bytes = receive_bytes())
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return text;
  }
  /// Closes one direction.
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  /// Sends zeros until nothing has been taken for `pause`; returns how many were.
  std::size_t send_until_blocked(std::chrono::milliseconds pause) {
    const Bytes zeros(65536);
    std::size_t taken = 0;
    for (auto last = Clock::now(); Clock::now() - last < pause;) {
      const ssize_t n = ::send(fd_, zeros.data(), zeros.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        taken += static_cast<std::size_t>(n);
        last = Clock::now();
      } else {
        std::this_thread::sleep_for(1ms);
      }
    }
    return taken;
  }
  /// True once the other side has closed.
  bool wait_for_end() {
    for (;;) {
      char byte;
      const ssize_t n = ::recv(fd_, &byte, 1, 0);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
      if (n < 0) return false;
    }
  }

  Result<> tls(const Identity& identity, const std::optional<PeerKey>& expected = std::nullopt) {
    auto context = TlsContext::create(identity, expected);
    if (!context) return pass(context);
    session_ = std::move(TlsSession::create(*context, TlsSide::client).value());
    for (;;) {
      auto done = session_->handshake();
      flush();
      if (!done) return pass(done);
      if (*done) return {};
      if (!refill()) return fail(ErrorKind::unavailable, "closed in the handshake");
    }
  }
  bool send(ByteSpan plaintext) {
    if (!session_->write(plaintext)) return false;
    return flush();
  }
  /// Sends the proof that a worker with this identity and secret would send.
  bool prove(const Identity& identity, const Secret& secret, Role role = Role::worker) {
    const auto exported = session_->export_key(auth_exporter_label).value();
    const Proof proof = make_proof(secret, role, exported, identity.key()).value();
    return send(wire::make_frame(wire::FrameType::auth, 0, std::as_bytes(std::span(proof))));
  }
  [[nodiscard]] TlsSession::ExportedKey exported(std::string_view label) const { return session_->export_key(label).value(); }
  /// The next frame, none at the end.
  std::optional<Recorder::Frame> receive() {
    for (;;) {
      Result<std::size_t> got;
      while (got = session_->read(received_.space(16384)), got && *got > 0) received_.commit(*got);
      auto frame = received_.next();
      if (frame && *frame) return Recorder::Frame{(*frame)->header, Bytes((*frame)->body.begin(), (*frame)->body.end())};
      if (!got || !frame || session_->closed() || !refill()) return std::nullopt;
    }
  }

 private:
  void connect(std::uint16_t port) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) throw std::runtime_error("cannot connect");
    const timeval limit{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  /// A byte at a time, so that nothing behind the answer is taken.
  void upgrade() {
    send_bytes(
        "GET /x HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    std::string answer;
    while (!answer.ends_with("\r\n\r\n")) {
      const Bytes byte = receive_bytes(1);
      if (byte.empty()) return;  // refused; what follows fails
      answer += static_cast<char>(byte[0]);
    }
    if (answer.starts_with("HTTP/1.1 101 ")) decoder_.emplace(WebSocketSide::server);
  }
  bool flush() {
    const bool sent = send_raw(session_->output());
    session_->output().clear();
    return sent;
  }
  bool refill() {
    input_ = receive_raw();
    session_->feed(input_);
    return !input_.empty();
  }

  int fd_ = -1;
  std::optional<WebSocketDecoder> decoder_;
  std::unique_ptr<TlsSession> session_;
  Bytes input_;
  FrameBuffer received_;
};

}  // namespace linkcpp::net
