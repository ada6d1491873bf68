#include "fetch/stream.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace linkcpp::fetch {
namespace {

constexpr std::size_t read_chunk = 512u << 10;
constexpr std::size_t write_chunk = 256u << 10;

std::string os_word(int error) { return std::generic_category().message(error); }

class PlainStream final : public Stream {
 public:
  explicit PlainStream(std::unique_ptr<Socket> socket) : socket_(std::move(socket)) {}
  Result<std::size_t> read(std::span<std::byte> into, Milliseconds limit) override { return socket_->read(into, limit); }
  Result<> write(ByteSpan bytes, Milliseconds limit) override { return socket_->write(bytes, limit); }
  [[nodiscard]] Socket& socket() override { return *socket_; }

 private:
  std::unique_ptr<Socket> socket_;
};

Result<std::unique_ptr<Socket>> connect_one(const addrinfo& address, Clock::time_point deadline, const std::atomic<bool>& cancelled) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fail(ErrorKind::io, "cannot make a socket: {}", os_word(errno));
  auto socket = std::make_unique<Socket>(fd);
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return fail(ErrorKind::unavailable, "{}", os_word(errno));
  for (;;) {
    if (cancelled) return fail(ErrorKind::unavailable, "stopped");
    if (Clock::now() >= deadline) return fail(ErrorKind::timeout, "no answer");
    auto ready = socket->wait(true, Milliseconds(50));  // short, since nobody can shut a socket that is not known yet
    if (!ready && ready.error().kind == ErrorKind::timeout) continue;
    if (!ready) return pass(ready);
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return fail(ErrorKind::unavailable, "{}", os_word(error));
    return socket;
  }
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Socket::~Socket() { ::close(fd_); }

void Socket::shut() noexcept { ::shutdown(fd_, SHUT_RDWR); }

Result<> Socket::wait(bool writable, Milliseconds limit) const {
  pollfd entry{.fd = fd_, .events = static_cast<short>(writable ? POLLOUT : POLLIN), .revents = 0};
  const auto deadline = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    const int n = ::poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT32_MAX)));
    if (n > 0) return {};
    if (n == 0) return fail(ErrorKind::timeout, "nothing moved for {} ms", limit.count());
    if (errno != EINTR) return fail(ErrorKind::io, "cannot wait for the network: {}", os_word(errno));
  }
}

Result<std::size_t> Socket::read(std::span<std::byte> into, Milliseconds limit) {
  for (;;) {
    const ssize_t n = ::recv(fd_, into.data(), into.size(), MSG_DONTWAIT);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(ErrorKind::unavailable, "the connection broke: {}", os_word(errno));
    if (auto ready = wait(false, limit); !ready) return pass(ready);
  }
}

Result<> Socket::write(ByteSpan bytes, Milliseconds limit) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(ErrorKind::unavailable, "the connection broke: {}", os_word(errno));
    if (auto ready = wait(true, limit); !ready) return ready;
  }
  return {};
}

Result<std::unique_ptr<Socket>> connect_to(const std::string& host, std::uint16_t port, Milliseconds limit,
                                           const std::atomic<bool>& cancelled) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (const int rc = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found); rc != 0) {
    return fail(ErrorKind::unavailable, "cannot find the host {}: {}", host, ::gai_strerror(rc));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
  const auto deadline = Clock::now() + limit;
  Error last{ErrorKind::unavailable, "it has no address"};
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    auto socket = connect_one(*address, deadline, cancelled);
    if (socket) return socket;
    last = std::move(socket.error());
  }
  return fail(last.kind, "cannot connect to {}:{}: {}", host, port, last.message);
}

std::unique_ptr<Stream> plain_stream(std::unique_ptr<Socket> socket) { return std::make_unique<PlainStream>(std::move(socket)); }

NodeStream::NodeStream(Socket& socket, std::unique_ptr<net::TlsSession> session)
    : socket_(socket), session_(std::move(session)), ciphertext_(read_chunk) {}

Result<std::unique_ptr<NodeStream>> NodeStream::handshake(Socket& socket, std::shared_ptr<const net::TlsContext> context, net::TlsSide side,
                                                          Milliseconds limit) {
  auto session = net::TlsSession::create(std::move(context), side);
  if (!session) return pass(session);
  std::unique_ptr<NodeStream> stream(new NodeStream(socket, std::move(*session)));
  const auto deadline = Clock::now() + limit;
  for (;;) {
    auto done = stream->session_->handshake();
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now());
    if (auto flushed = stream->flush(std::max(left, Milliseconds(1))); done && !flushed) return pass(flushed);
    if (!done) return pass(done);
    if (*done) break;
    if (left.count() <= 0) return fail(ErrorKind::timeout, "the TLS handshake took more than {} ms", limit.count());
    auto got = socket.read(stream->ciphertext_, left);
    if (!got) return pass(got);
    if (*got == 0) return fail(ErrorKind::unavailable, "the peer closed the connection during the TLS handshake");
    stream->session_->feed(ByteSpan(stream->ciphertext_).first(*got));
  }
  stream->fed_ = true;  // data may follow the handshake in what was fed
  return stream;
}

Result<std::size_t> NodeStream::read(std::span<std::byte> into, Milliseconds limit) {
  // Several records at a time: each is only 16 KiB.
  std::size_t total = 0;
  for (;;) {
    if (fed_) {
      auto got = session_->read(into.subspan(total));
      if (!got) return total > 0 ? Result<std::size_t>(total) : std::move(got);
      total += *got;
      if (*got > 0 && total < into.size()) continue;
      if (*got == 0) fed_ = false;
      if (auto flushed = flush(limit); !flushed && total == 0) return pass(flushed);
    }
    if (total > 0 || session_->closed()) return total;
    auto got = socket_.read(ciphertext_, limit);
    if (!got) return got;
    if (*got == 0) return fail(ErrorKind::unavailable, "the peer closed the connection");
    session_->feed(ByteSpan(ciphertext_).first(*got));
    fed_ = true;
  }
}

Result<> NodeStream::write(ByteSpan bytes, Milliseconds limit) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), write_chunk));
    if (auto written = session_->write(part); !written) return written;
    if (auto flushed = flush(limit); !flushed) return flushed;
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Result<> NodeStream::flush(Milliseconds limit) {
  Bytes& output = session_->output();
  if (output.empty()) return {};
  auto written = socket_.write(output, limit);
  output.clear();
  return written;
}

void NodeStream::farewell() {
  session_->shutdown();
  (void)flush(Milliseconds(200));
}

}  // namespace linkcpp::fetch
