#include "net/tcp_pipe.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

Error lost(const std::string& why) { return {ErrorKind::unavailable, why}; }

}  // namespace

TcpPipe::TcpPipe(Socket socket, std::string endpoint, std::string_view kind)
    : strand_(socket.get_executor()), socket_(std::move(socket)), endpoint_(std::move(endpoint)), kind_(kind) {
  error_code ignored;
  socket_.native_non_blocking(true, ignored);
  set_no_delay(socket_.native_handle());
}

void TcpPipe::read_some(std::span<std::byte> into, OnRead then) {
  socket_.async_read_some(asio::buffer(into.data(), into.size()), [then = std::move(then)](const error_code& error, std::size_t n) mutable {
    if (!error || error == asio::error::eof) return then(n);
    then(std::unexpected(lost(error.message())));
  });
}

Result<bool> TcpPipe::try_write(ByteSpan& bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      written_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      return std::unexpected(lost(std::generic_category().message(errno)));
    }
  }
  return true;
}

void TcpPipe::wait_writable(OnWritable then) {
  socket_.async_wait(Socket::wait_write, [then = std::move(then)](const error_code& error) mutable {
    if (!error) return then({});
    then(std::unexpected(lost(error.message())));
  });
}

void TcpPipe::shutdown_send() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
}

void TcpPipe::close() {
  error_code ignored;
  socket_.close(ignored);
}

void TcpPipe::cancel() {
  error_code ignored;
  socket_.cancel(ignored);
}

bool TcpPipe::unread() const {
  int waiting = 0;
  return ::ioctl(const_cast<Socket&>(socket_).native_handle(), FIONREAD, &waiting) == 0 && waiting > 0;
}

std::uint64_t TcpPipe::acknowledged() const {
  int held = 0;
  const std::uint64_t sent = written();  // before the question: it may only grow
  if (::ioctl(const_cast<Socket&>(socket_).native_handle(), SIOCOUTQ, &held) != 0 || held < 0) return 0;
  return sent - std::min<std::uint64_t>(sent, static_cast<std::uint64_t>(held));
}

}  // namespace linkcpp::net
