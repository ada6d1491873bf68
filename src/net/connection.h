// What stands behind a Link: an authenticated connection over some transport.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "net/link.h"

namespace linkcpp::net {

/// The body of a Link, which is only a handle on it. The members that both have promise the same (net/link.h).
class Connection {
 public:
  virtual ~Connection() = default;
  virtual void start(Link::Handlers handlers) = 0;
  virtual void send(SharedFrame frame) = 0;
  virtual void close(Error reason) = 0;
  /// Closes without on_close: nobody is left who could be told.
  virtual void abandon() = 0;
  [[nodiscard]] virtual bool sending() const = 0;
  [[nodiscard]] virtual LinkStats stats() const = 0;
  [[nodiscard]] virtual const PeerKey& peer() const = 0;
  [[nodiscard]] virtual const std::string& endpoint() const = 0;
  [[nodiscard]] virtual std::string_view kind() const = 0;
  /// Called on the connection's strand when it has ended, after on_close. Set on the strand, before the link is handed out.
  virtual void when_finished(std::function<void()> hook) = 0;
};

/// A link around a connection; the last copy to go abandons it.
LinkPtr make_link(std::shared_ptr<Connection> connection);

}  // namespace linkcpp::net
