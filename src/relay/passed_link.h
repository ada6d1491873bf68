// Two data connections that the relay has joined.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "net/pipe.h"
#include "relay/bucket.h"
#include "relay/flow.h"

namespace linkcpp::relay {

/// On the strand that both pipes share.
class PassedLink : public std::enable_shared_from_this<PassedLink> {
 public:
  struct Side {
    std::unique_ptr<net::Pipe> pipe;
    std::shared_ptr<Bucket> rate;  ///< of what this side sends
  };
  PassedLink(Side caller, Side called, std::shared_ptr<std::uint64_t> all_bytes);
  /// Passes bytes both ways until both sides have ended or either breaks; then `on_end`, once.
  void start(std::function<void()> on_end);
  void close();
  /// When something last passed, in either direction.
  [[nodiscard]] Clock::time_point moved() const { return std::max(there_.moved, back_.moved); }
  [[nodiscard]] std::uint64_t bytes() const { return there_.bytes + back_.bytes; }

 private:
  void run(Flow& flow);

  Side caller_, called_;
  const std::shared_ptr<std::uint64_t> all_bytes_;
  Flow there_, back_;
  int running_ = 0;
  std::function<void()> on_end_;
};

}  // namespace linkcpp::relay
