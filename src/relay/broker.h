// Who is at the relay, who may speak to whom, and who speaks how often. Pure: no sockets, no clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/relay_messages.h"
#include "relay/access.h"
#include "relay/bucket.h"
#include "relay/tickets.h"

namespace linkcpp::relay {

/// Limits of a relay. A peer is one key.
struct Limits {
  std::size_t max_controls = 4096;  ///< control connections in all
  std::size_t max_controls_of_peer = 8;
  std::size_t max_links = 4096;  ///< connections that are passed on, in all
  std::size_t max_links_of_peer = 512;
  double connects_per_second = 10;  ///< of a peer
  double connect_burst = 60;
  double messages_per_second = 50;  ///< of a control connection
  double message_burst = 400;
  std::chrono::milliseconds ticket_lifetime{10'000};
};

/// A control connection.
using ControlId = std::uint64_t;

class Broker {
 public:
  Broker(Access access, Limits limits) : access_(std::move(access)), limits_(limits), tickets_(limits.ticket_lifetime) {}

  /// A control connection whose TLS is done. `unavailable` if there are too many.
  Result<> arrive(ControlId id, const net::PeerKey& key);
  void leave(ControlId id);

  /// A backbone. Those who joined under another membership (the swarm's secret was replaced) must go: their ids are returned.
  Result<std::vector<ControlId>> register_backbone(ControlId id, const net::RelayMembership& membership);
  /// A node of a backbone that is here.
  Result<> join(ControlId id, const net::RelayJoin& join, const net::TlsSession::ExportedKey& exported);
  Result<> listen(ControlId id);

  struct Introduction {
    ControlId called = 0;
    net::PeerKey caller_key;
    TicketBook::Pair tickets;
  };
  Result<Introduction> connect(ControlId id, const net::PeerKey& to, Clock::time_point now);
  /// Whether a control connection may say something more now.
  bool may_speak(ControlId id, Clock::time_point now);

  struct Side {
    TicketBook::Redeemed ticket;
    net::PeerKey peer;  ///< whose data connection this is
  };
  /// A data connection. What is answered with `joined` counts as a part of a link until link_ended().
  Side redeem(const net::RelayTicket& ticket, Clock::time_point now);
  void link_ended(std::uint64_t connection);
  /// Now and then.
  void forget_old(Clock::time_point now);

  [[nodiscard]] std::size_t n_controls() const { return controls_.size(); }
  [[nodiscard]] std::size_t n_links() const { return links_.size(); }
  [[nodiscard]] std::size_t n_swarms() const { return swarms_.size(); }

 private:
  struct Control {
    net::PeerKey key;
    std::optional<net::PeerKey> swarm;  ///< the backbone's key; none before it registered or joined
    bool listens = false;
    Bucket messages;
  };
  struct Swarm {
    net::RelayMembership membership{};
    std::set<ControlId> controls;
  };
  struct Peer {
    std::size_t controls = 0, links = 0;
    Bucket connects;
  };
  struct Link {
    net::PeerKey caller, called;
    bool counted = false;  ///< a side has come
    Clock::time_point expires;
  };

  Result<Control*> newcomer(ControlId id);
  void enter(ControlId id, Control& control, const net::PeerKey& swarm);
  std::optional<ControlId> find_listening(const net::PeerKey& swarm, const net::PeerKey& key) const;
  Peer& peer(const net::PeerKey& key);
  void drop_if_idle(const net::PeerKey& key, Clock::time_point now);

  Access access_;
  const Limits limits_;
  TicketBook tickets_;
  std::map<ControlId, Control> controls_;
  std::map<net::PeerKey, Swarm> swarms_;  ///< by the backbone's key
  std::map<net::PeerKey, Peer> peers_;
  std::map<std::uint64_t, Link> links_;  ///< issued or joined
};

}  // namespace linkcpp::relay
