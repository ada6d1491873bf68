#include "network.h"

namespace linkcpp::lab {

Network::Network(const Scenario& scenario) {
  std::uint64_t seed = scenario.seed * 1'000'003;
  for (const Site& site : scenario.sites) {
    at_.emplace(std::pair(site.behind, site.address), places_.size());
    std::optional<Nat> nat;
    if (site.nat) nat.emplace(*site.nat, seed + 2);
    places_.push_back({.site = site, .up = Line(site.up, seed), .down = Line(site.down, seed + 1), .nat = std::move(nat)});
    seed += 3;
  }
}

void Network::send(std::size_t node, Bytes packet, Time now) { travel(node, false, std::move(packet), now); }

void Network::travel(std::size_t site, bool down, Bytes packet, Time now) {
  Line& line = down ? places_[site].down : places_[site].up;
  const auto out = line.admit(packet.size(), now);
  if (out) events_.push({.at = *out, .order = order_++, .site = site, .down = down, .packet = std::move(packet)});
}

void Network::route(Realm realm, std::size_t site, Bytes packet, Time now) {
  const auto route = route_of(packet);
  const auto target = route ? at_.find({realm, route->to}) : at_.end();
  if (target != at_.end()) return travel(target->second, true, std::move(packet), now);
  if (!route || !realm) {
    ++places_[site].unroutable;
    return;
  }
  leave(*realm, site, std::move(packet), now);
}

void Network::leave(std::size_t nat, std::size_t site, Bytes packet, Time now) {
  Place& place = places_[nat];
  const bool hairpin = route_of(packet)->to == place.site.address;
  if (hairpin && !place.site.nat->hairpin) {
    ++places_[site].unroutable;
    return;
  }
  if (!place.nat->outbound(packet, now)) return;
  if (!hairpin) return travel(nat, false, std::move(packet), now);
  if (place.nat->inbound(packet, now)) route(nat, nat, std::move(packet), now);
}

std::optional<Time> Network::next() const {
  if (events_.empty()) return std::nullopt;
  return events_.top().at;
}

void Network::advance(Time now, const std::function<void(std::size_t, const Bytes&, Time)>& deliver) {
  while (!events_.empty() && events_.top().at <= now) {
    Event event = events_.top();
    events_.pop();
    Place& place = places_[event.site];
    if (!event.down) {
      route(place.site.behind, event.site, std::move(event.packet), event.at);
    } else if (!place.nat) {
      deliver(event.site, event.packet, event.at);
    } else if (place.nat->inbound(event.packet, event.at)) {
      route(event.site, event.site, std::move(event.packet), event.at);
    }
  }
}

SiteCounters Network::counters(std::size_t site) const {
  const Place& place = places_[site];
  return {.up = place.up.counters(),
          .down = place.down.counters(),
          .unroutable = place.unroutable,
          .refused = place.nat ? place.nat->refused() : 0};
}

}  // namespace linkcpp::lab
