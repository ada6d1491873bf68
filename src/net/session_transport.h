// Making sessions: what listens and what dials. Like Listener and Dialer (net/transport.h), whose promises about threads and lifetime hold
// here too, but OnLink is called once for a session, however many connections carry it in turn.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/link.h"
#include "net/session_link.h"
#include "net/transport.h"

namespace linkcpp::net {

/// Accepts sessions on several addresses. Destroying it stops accepting; sessions live on, as long as their connections do.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  /// The bound addresses, "host:port" with the real port, in the order in which they were given.
  [[nodiscard]] virtual const std::vector<std::string>& addresses() const = 0;

  /// Fails if one of the addresses cannot be listened on.
  static Result<std::unique_ptr<SessionListener>> open(boost::asio::io_context& context, const std::vector<std::string>& addresses,
                                                       const Credentials& credentials, const LinkKnobs& link, SessionKnobs knobs,
                                                       Listener::OnLink on_link, Listener::OnRefused on_refused);
};

/// Dials a peer and keeps a session with it: again when a connection is lost, with the Dialer's backoff when that fails. A session that
/// ended is followed by a new one. Destroying it stops dialling; a session lives on as long as its connections do.
class SessionDialer {
 public:
  virtual ~SessionDialer() = default;

  /// `addresses` in order of preference, as for a Dialer. Relays among them are used when no other address answers soon; while one carries
  /// the session, the others go on being dialled, and a direct path is looked for.
  static std::unique_ptr<SessionDialer> start(boost::asio::io_context& context, const std::vector<std::string>& addresses,
                                              const Credentials& credentials, const LinkKnobs& link, SessionKnobs knobs,
                                              Dialer::OnLink on_link, Dialer::OnFailure on_failure);
};

/// With path silence counted from the pause between pings on such links.
SessionKnobs fitting(SessionKnobs knobs, const LinkKnobs& link);

}  // namespace linkcpp::net
