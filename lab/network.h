// All nodes, NATs and lines of a scenario, and the packets between them. Pure: packets and times come in, packets and times go out.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "base/bytes.h"
#include "firewall.h"
#include "scenario.h"

namespace linkcpp::lab {

struct SiteCounters {
  LineCounters up, down;
  std::uint64_t unroutable = 0;  ///< left the site for an address that nobody has
  std::uint64_t refused = 0;     ///< a NAT or its firewall let them neither out nor in
  std::uint64_t blocked = 0;     ///< by the site's filter
  std::uint64_t cut = 0;         ///< while its line was cut
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

  /// Changes, from now on. Sites are numbered as in the scenario.
  void reshape(std::size_t site, const LineShape& up, const LineShape& down);
  /// A line that is cut loses everything that enters it.
  void cut(std::size_t site, bool is_cut) { places_[site].is_cut = is_cut; }
  /// The site gets addresses that nobody had before, a node also another realm if asked; what is sent to its old ones is lost. A NAT
  /// forgets its mappings.
  void move(std::size_t site, Realm behind);

  /// As it is now.
  [[nodiscard]] const Site& site(std::size_t number) const { return places_[number].site; }
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;
  [[nodiscard]] std::size_t sites() const { return places_.size(); }
  [[nodiscard]] SiteCounters counters(std::size_t site) const;

 private:
  struct Place {
    Site site;
    Line up, down;
    std::optional<Nat> nat;
    std::optional<Firewall> firewall;  ///< of a NAT
    bool is_cut = false;
    std::uint64_t unroutable = 0, refused = 0, blocked = 0, cut = 0;
  };
  enum class Step : std::uint8_t {
    left,     ///< through the site's line to outside
    reached,  ///< the site's line, from outside
    came,     ///< through it
  };
  struct Event {
    Time at;
    std::uint64_t order;
    std::size_t site;
    Step step;
    Bytes packet;
    bool operator>(const Event& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };
  void push(Time at, std::size_t site, Step step, Bytes packet);
  void leave(std::size_t site, Bytes packet, Time now);
  void enter(std::size_t site, Bytes packet, Time now);
  void came(std::size_t site, Bytes packet, Time now, const std::function<void(std::size_t, const Bytes&, Time)>& deliver);
  /// The packet stands in a realm, having come from `site`.
  void route(Realm realm, std::size_t site, Bytes packet, Time now);
  /// It goes to a neighbour.
  void cross(std::size_t from, std::size_t to, Bytes packet, Time now);
  /// It goes out of the realm of a NAT, having come from `site`.
  void translate(std::size_t nat, std::size_t site, Bytes packet, Time now);
  [[nodiscard]] std::optional<std::size_t> neighbour(Realm realm, ByteSpan packet) const;

  std::vector<Place> places_;
  std::map<std::pair<Realm, Address>, std::size_t> at_;
  std::map<Address6, std::size_t> at6_;
  std::map<std::pair<std::size_t, std::size_t>, Time> paths_;
  std::map<Realm, std::size_t> numbered_;  ///< addresses given out so far
  std::vector<Event> events_;              ///< a heap, the next one first; not a priority_queue, out of which packets could only be copied
  std::uint64_t order_ = 0;
};

}  // namespace linkcpp::lab
