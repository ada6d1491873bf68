// All nodes, NATs and lines of a scenario, and the packets between them. Pure: packets and times come in, packets and times go out.
#pragma once

#include <functional>
#include <map>
#include <queue>

#include "base/bytes.h"
#include "scenario.h"

namespace linkcpp::lab {

struct SiteCounters {
  LineCounters up, down;
  std::uint64_t unroutable = 0;  ///< left the site for an address that nobody has
  std::uint64_t refused = 0;     ///< a NAT let them neither out nor in
};

/// Not thread-safe. Times never go back.
class Network {
 public:
  explicit Network(const Scenario& scenario);
  /// A node sends an IP packet.
  void send(std::size_t node, Bytes packet, Time now);
  /// When advance() has something to do.
  [[nodiscard]] std::optional<Time> next() const;
  /// Does what is due. `deliver` gets the packets for nodes and when they were due.
  void advance(Time now, const std::function<void(std::size_t node, const Bytes& packet, Time due)>& deliver);
  [[nodiscard]] SiteCounters counters(std::size_t site) const;

 private:
  using Realm = std::optional<std::size_t>;
  struct Place {
    Site site;
    Line up, down;
    std::optional<Nat> nat;
    std::uint64_t unroutable = 0;
  };
  struct Event {
    Time at;
    std::uint64_t order;
    std::size_t site;
    bool down;  ///< it came through the site's own line from outside; else it left through it
    Bytes packet;
    bool operator>(const Event& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };
  void travel(std::size_t site, bool down, Bytes packet, Time now);
  /// The packet stands in a realm, having come from `site`.
  void route(Realm realm, std::size_t site, Bytes packet, Time now);
  void leave(std::size_t nat, std::size_t site, Bytes packet, Time now);

  std::vector<Place> places_;
  std::map<std::pair<Realm, Address>, std::size_t> at_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
};

}  // namespace linkcpp::lab
