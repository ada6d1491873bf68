#include "net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "net/transport.h"

namespace linkcpp::net {

void set_congestion_control(int fd, const std::string& name) {
  if (!name.empty()) ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string congestion_control_in_force(const LinkKnobs& knobs) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "unknown";
  set_congestion_control(fd, knobs.congestion_control);
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t length = sizeof name;
  const bool known = ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0;
  ::close(fd);
  return known ? std::string(name, ::strnlen(name, sizeof name)) : "unknown";
}

}  // namespace linkcpp::net
