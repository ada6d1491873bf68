#include "network.h"

#include <algorithm>

namespace linkcpp::lab {

Network::Network(const Scenario& scenario) {
  std::uint64_t seed = scenario.seed * 1'000'003;
  for (const Site& site : scenario.sites) {
    at_.emplace(std::pair(site.behind, site.address), places_.size());
    if (site.address6) at6_.emplace(*site.address6, places_.size());
    ++numbered_[site.behind];
    std::optional<Nat> nat;
    std::optional<Firewall> firewall;
    if (site.nat) {
      nat.emplace(*site.nat, seed + 2);
      if (site.nat->firewall6) firewall.emplace(site.nat->udp_timeout, site.nat->tcp_timeout);
    }
    places_.push_back({.site = site,
                       .up = Line(site.up, seed),
                       .down = Line(site.down, seed + 1),
                       .nat = std::move(nat),
                       .firewall = std::move(firewall)});
    seed += 3;
  }
  for (const Path& path : scenario.paths) paths_[{path.from, path.to}] += path.delay;
}

void Network::push(Time at, std::size_t site, Step step, Bytes packet) {
  events_.push_back({.at = at, .order = order_++, .site = site, .step = step, .packet = std::move(packet)});
  std::ranges::push_heap(events_, std::greater<>());
}

void Network::send(std::size_t node, Bytes packet, Time now) { leave(node, std::move(packet), now); }

void Network::leave(std::size_t site, Bytes packet, Time now) {
  Place& place = places_[site];
  if (place.is_cut) {
    ++place.cut;
  } else if (!place.site.filter.passes(packet, true)) {
    ++place.blocked;
  } else if (const auto out = place.up.admit(packet.size(), now)) {
    push(*out, site, Step::left, std::move(packet));
  }
}

void Network::enter(std::size_t site, Bytes packet, Time now) {
  Place& place = places_[site];
  if (place.is_cut) {
    ++place.cut;
  } else if (const auto out = place.down.admit(packet.size(), now)) {
    push(*out, site, Step::came, std::move(packet));
  }
}

void Network::cross(std::size_t from, std::size_t to, Bytes packet, Time now) {
  if (const auto path = paths_.find({from, to}); path != paths_.end())
    return push(now + path->second, to, Step::reached, std::move(packet));
  enter(to, std::move(packet), now);
}

std::optional<std::size_t> Network::neighbour(Realm realm, ByteSpan packet) const {
  if (const auto route = route_of(packet)) {
    const auto found = at_.find({realm, route->to});
    return found == at_.end() ? std::nullopt : std::optional(found->second);
  }
  const auto route = route6_of(packet);
  const auto found = route ? at6_.find(route->to) : at6_.end();
  if (found == at6_.end()) return std::nullopt;
  // IPv6 addresses count everywhere: the neighbour is the one that it lies behind, if any of this realm.
  for (std::size_t site = found->second;; site = *places_[site].site.behind) {
    if (places_[site].site.behind == realm) return site;
    if (!places_[site].site.behind) return std::nullopt;
  }
}

void Network::route(Realm realm, std::size_t site, Bytes packet, Time now) {
  if (const auto target = neighbour(realm, packet)) return cross(site, *target, std::move(packet), now);
  const bool known = route_of(packet) || (route6_of(packet) && at6_.contains(route6_of(packet)->to));
  if (!known || !realm) {
    ++places_[site].unroutable;
    return;
  }
  translate(*realm, site, std::move(packet), now);
}

void Network::translate(std::size_t nat, std::size_t site, Bytes packet, Time now) {
  Place& place = places_[nat];
  const auto four = route_of(packet);
  if (!four) {
    if (place.firewall) place.firewall->outbound(packet, now);
    return leave(nat, std::move(packet), now);
  }
  const bool hairpin = four->to == place.site.address;
  if (hairpin && !place.site.nat->hairpin) {
    ++places_[site].unroutable;
    return;
  }
  if (!place.nat->outbound(packet, now)) return;
  if (!hairpin) return leave(nat, std::move(packet), now);
  if (place.nat->inbound(packet, now)) route(nat, nat, std::move(packet), now);
}

void Network::came(std::size_t site, Bytes packet, Time now, const std::function<void(std::size_t, const Bytes&, Time)>& deliver) {
  Place& place = places_[site];
  if (!place.site.filter.passes(packet, false)) {
    ++place.blocked;
    return;
  }
  if (!place.nat) return deliver(site, packet, now);
  if (route6_of(packet)) {
    if (place.firewall && !place.firewall->lets_in(packet, now)) {
      ++place.refused;
      return;
    }
  } else if (!place.nat->inbound(packet, now)) {
    return;
  }
  route(site, site, std::move(packet), now);
}

std::optional<Time> Network::next() const {
  if (events_.empty()) return std::nullopt;
  return events_.front().at;
}

void Network::advance(Time now, const std::function<void(std::size_t, const Bytes&, Time)>& deliver) {
  while (!events_.empty() && events_.front().at <= now) {
    std::ranges::pop_heap(events_, std::greater<>());
    Event event = std::move(events_.back());
    events_.pop_back();
    switch (event.step) {
      case Step::left:
        route(places_[event.site].site.behind, event.site, std::move(event.packet), event.at);
        break;
      case Step::reached:
        enter(event.site, std::move(event.packet), event.at);
        break;
      case Step::came:
        came(event.site, std::move(event.packet), event.at, deliver);
        break;
    }
  }
}

void Network::reshape(std::size_t site, const LineShape& up, const LineShape& down) {
  Place& place = places_[site];
  place.up.reshape(up);
  place.down.reshape(down);
  place.site.up = up, place.site.down = down;
}

void Network::move(std::size_t site, Realm behind) {
  Site& moved = places_[site].site;
  at_.erase({moved.behind, moved.address});
  const std::size_t number = numbered_[behind]++;
  moved.behind = behind;
  moved.address = address_of(behind, number);
  at_[{behind, moved.address}] = site;
  if (moved.address6) {
    at6_.erase(*moved.address6);
    moved.address6 = address6_of(behind, number);
    at6_[*moved.address6] = site;
  }
  if (places_[site].nat) {
    moved.nat->outside = moved.address;
    places_[site].nat->renumber(moved.address);
  }
}

std::optional<std::size_t> Network::find(std::string_view name) const {
  const auto at = std::ranges::find(places_, name, [](const Place& place) -> std::string_view { return place.site.name; });
  if (at == places_.end()) return std::nullopt;
  return static_cast<std::size_t>(at - places_.begin());
}

SiteCounters Network::counters(std::size_t site) const {
  const Place& place = places_[site];
  return {.up = place.up.counters(),
          .down = place.down.counters(),
          .unroutable = place.unroutable,
          .refused = place.refused + (place.nat ? place.nat->refused() : 0),
          .blocked = place.blocked,
          .cut = place.cut};
}

}  // namespace linkcpp::lab
