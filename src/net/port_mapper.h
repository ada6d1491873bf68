// Keeps a port of this node open on the router before it, as long as it lives.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "net/path_offer.h"
#include "net/router.h"

namespace linkcpp::net {

struct PortMapperKnobs {
  std::chrono::seconds lease{3600};               ///< asked for; renewed at half of what is granted
  std::chrono::milliseconds patience{2000};       ///< for finding a router, by each protocol
  std::chrono::milliseconds retry_first{30'000};  ///< after a failure; doubles
  std::chrono::milliseconds retry_longest{1'800'000};
  std::chrono::milliseconds farewell{3000};  ///< how long the destructor waits for the router to take the mapping away
  bool tcp = true;                           ///< the TCP port of the same number as well, best effort
};

/// Asks the router to pass a UDP port (and the TCP port of the same number) on to this node, renews that before the lease ends, and takes
/// it back at the end.
///
/// Asking blocks, so it has a thread. Callbacks run on it, one at a time; they must not destroy the mapper. When the destructor returns,
/// none runs or will run. It takes `farewell` at most: if the router is slower than that, the thread ends by itself later, and the lease
/// too.
class PortMapper {
 public:
  struct Mapped {
    Candidate candidate;         ///< of kind `mapped`: where others reach the UDP port
    std::uint16_t tcp_port = 0;  ///< outside, of the TCP port; 0: not open
    std::string by;              ///< "NAT-PMP 192.168.1.1"
    std::chrono::seconds lease{0};
  };
  /// Called when there is a mapping, and again when it is another one than before.
  using OnMapped = std::function<void(const Mapped&)>;
  /// Why there is none (now): no router, it refuses, or what it opens leads nowhere because it has another NAT before it. Called once for
  /// the same words.
  using OnTrouble = std::function<void(const Error&)>;

  PortMapper(std::uint16_t port, OnMapped on_mapped, OnTrouble on_trouble, PortMapperKnobs knobs = {}, FindRouter find = find_any_router);
  ~PortMapper();
  PortMapper(const PortMapper&) = delete;
  PortMapper& operator=(const PortMapper&) = delete;

 private:
  class Work;
  std::shared_ptr<Work> work_;
};

}  // namespace linkcpp::net
