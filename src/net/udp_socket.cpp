#include "net/udp_socket.h"

#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <cstring>

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// Bursts of a whole answer must fit: the default of most machines is 208 KiB.
constexpr int buffer_bytes = 4 << 20;
/// Of one call with segmentation offload (the kernel's UDP_MAX_SEGMENTS, and 64 KiB of payload).
constexpr std::size_t max_segments = 40;

}  // namespace

SocketAddress::SocketAddress(const Udp::endpoint& endpoint) {
  length = static_cast<socklen_t>(endpoint.size());
  std::memcpy(&storage, endpoint.data(), length);
}

Udp::endpoint endpoint_of(const sockaddr* address, socklen_t length) {
  Udp::endpoint endpoint;
  if (length > endpoint.capacity()) return endpoint;
  std::memcpy(endpoint.data(), address, length);
  endpoint.resize(length);
  if (const auto host = endpoint.address(); host.is_v6() && host.to_v6().is_v4_mapped()) {
    return {asio::ip::make_address_v4(asio::ip::v4_mapped, host.to_v6()), endpoint.port()};
  }
  return endpoint;
}

Result<std::shared_ptr<UdpSocket>> UdpSocket::bind(Strand strand, const Udp::endpoint& where) {
  AsioSocket socket(std::move(strand));
  error_code error, ignored;
  socket.open(where.protocol(), error);
  if (!error && where.address().is_v6()) socket.set_option(asio::ip::v6_only(false), ignored);
  if (!error) socket.bind(where, error);
  if (error) return fail(ErrorKind::io, "cannot open UDP {}: {}; choose another address or port", to_text(where), error.message());
  socket.non_blocking(true, ignored);
  std::shared_ptr<UdpSocket> result(new UdpSocket(std::move(socket)));
  result->local_ = result->socket_.local_endpoint(ignored);
  result->fd_ = result->socket_.native_handle();
  result->both_families_ = where.address().is_v6();
  for (const int option : {SO_RCVBUF, SO_SNDBUF}) ::setsockopt(result->fd_, SOL_SOCKET, option, &buffer_bytes, sizeof buffer_bytes);
  return result;
}

void UdpSocket::when_readable(std::function<void(bool)> callback) {
  socket_.async_wait(AsioSocket::wait_read, [callback = std::move(callback)](const error_code& error) { callback(!error); });
}

std::span<const UdpSocket::Datagram> UdpSocket::receive() {
  std::array<iovec, batch> parts;
  std::array<mmsghdr, batch> messages{};
  for (std::size_t i = 0; i < batch; ++i) {
    parts[i] = {buffers_[i].data(), buffers_[i].size()};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_name = &senders_[i];
    messages[i].msg_hdr.msg_namelen = sizeof senders_[i];
  }
  const int n = ::recvmmsg(fd_, messages.data(), batch, MSG_DONTWAIT, nullptr);
  std::size_t used = 0;
  for (int i = 0; i < n; ++i) {
    const msghdr& header = messages[static_cast<std::size_t>(i)].msg_hdr;
    if ((header.msg_flags & MSG_TRUNC) != 0) continue;  // nothing of ours is so long
    received_[used++] = {endpoint_of(static_cast<const sockaddr*>(header.msg_name), header.msg_namelen),
                         ByteSpan(buffers_[static_cast<std::size_t>(i)]).first(messages[static_cast<std::size_t>(i)].msg_len)};
  }
  return {received_.data(), used};
}

bool UdpSocket::send_segmented(const sockaddr* to, socklen_t length, ByteSpan bytes, std::size_t segment) const {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> control{};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(to);
  message.msg_namelen = length;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (bytes.size() > segment) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto size = static_cast<std::uint16_t>(segment);
    std::memcpy(CMSG_DATA(header), &size, sizeof size);
  }
  for (;;) {
    if (::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno != EINTR) return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS;
  }
}

void UdpSocket::send(const Udp::endpoint& to, ByteSpan bytes, std::size_t segment) {
  Udp::endpoint target = to;
  if (both_families_ && to.address().is_v4()) {
    target = {asio::ip::make_address_v6(asio::ip::v4_mapped, to.address().to_v4()), to.port()};
  }
  const SocketAddress address(target);
  while (!bytes.empty()) {
    const ByteSpan part = bytes.first(std::min(bytes.size(), segment * max_segments));
    bytes = bytes.subspan(part.size());
    if (send_segmented(address.get(), address.length, part, segment)) continue;
    // Devices and kernels without segmentation: one by one.
    for (ByteSpan rest = part; !rest.empty();) {
      const ByteSpan one = rest.first(std::min(rest.size(), segment));
      rest = rest.subspan(one.size());
      send_segmented(address.get(), address.length, one, segment);
    }
  }
}

bool UdpSocket::has_waiting() const {
  int waiting = 0;
  return ::ioctl(fd_, FIONREAD, &waiting) == 0 && waiting > 0;
}

void UdpSocket::cancel() {
  error_code ignored;
  socket_.cancel(ignored);
}

}  // namespace linkcpp::net
