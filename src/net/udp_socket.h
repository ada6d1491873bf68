// A UDP socket that moves many datagrams in one call.
#pragma once

#include <netinet/in.h>

#include <array>
#include <boost/asio/ip/udp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "net/socket.h"

namespace linkcpp::net {

using Udp = boost::asio::ip::udp;

/// Threading: send() from any thread; all else on the strand.
class UdpSocket {
 public:
  struct Datagram {
    Udp::endpoint from;  ///< IPv4 addresses as such, also on a socket for both families
    ByteSpan bytes;
  };
  static constexpr std::size_t max_datagram = 2048;

  /// Port 0 picks one. An IPv6 wildcard serves IPv4 too.
  static Result<std::shared_ptr<UdpSocket>> bind(Strand strand, const Udp::endpoint& where);

  [[nodiscard]] Udp::endpoint local() const { return local_; }
  /// Calls back once when something can be read, or with false after cancel().
  void when_readable(std::function<void(bool open)> callback);
  /// What has come, up to a batch; empty: nothing more. Valid until the next call.
  std::span<const Datagram> receive();
  /// Sends `bytes` as datagrams of `segment` bytes (the last may be shorter). What the kernel does not take is lost, as on the way: the
  /// protocols above repair that.
  void send(const Udp::endpoint& to, ByteSpan bytes, std::size_t segment);
  /// Whether datagrams wait that receive() has not taken.
  [[nodiscard]] bool has_waiting() const;
  /// Ends the waiting of when_readable().
  void cancel();

 private:
  using AsioSocket = boost::asio::basic_datagram_socket<Udp, Strand>;
  static constexpr std::size_t batch = 32;

  explicit UdpSocket(AsioSocket socket) : socket_(std::move(socket)) {}
  bool send_segmented(const sockaddr* to, socklen_t length, ByteSpan bytes, std::size_t segment) const;

  AsioSocket socket_;
  Udp::endpoint local_;
  int fd_ = -1;
  bool both_families_ = false;
  std::array<std::array<std::byte, max_datagram>, batch> buffers_;
  std::array<sockaddr_in6, batch> senders_;
  std::array<Datagram, batch> received_;
};

/// For interfaces that want the operating system's form.
struct SocketAddress {
  sockaddr_in6 storage{};
  socklen_t length = 0;
  explicit SocketAddress(const Udp::endpoint& endpoint);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};
/// The inverse; IPv4 addresses that were mapped into IPv6 come out as IPv4.
Udp::endpoint endpoint_of(const sockaddr* address, socklen_t length);

}  // namespace linkcpp::net
