#include "relay/broker.h"

#include <openssl/crypto.h>

#include <utility>

namespace linkcpp::relay {

using net::key_text;
using net::short_name;

Broker::Peer& Broker::peer(const net::PeerKey& key) {
  return peers_.try_emplace(key, Peer{.connects = Bucket(limits_.connects_per_second, limits_.connect_burst)}).first->second;
}

Result<> Broker::arrive(ControlId id, const net::PeerKey& key) {
  if (controls_.size() >= limits_.max_controls)
    return fail(ErrorKind::unavailable, "this relay has {} nodes, as many as it may: use another, or ask its operator", controls_.size());
  Peer& who = peer(key);
  if (who.controls >= limits_.max_controls_of_peer) {
    return fail(ErrorKind::unavailable, "node {} has {} connections to this relay already; are several programs using one --home?",
                short_name(key), who.controls);
  }
  ++who.controls;
  controls_.emplace(id, Control{.key = key, .messages = Bucket(limits_.messages_per_second, limits_.message_burst)});
  return {};
}

void Broker::leave(ControlId id) {
  const auto found = controls_.find(id);
  if (found == controls_.end()) return;
  const Control control = found->second;
  controls_.erase(found);
  --peer(control.key).controls;
  if (!control.swarm) return;
  const auto swarm = swarms_.find(*control.swarm);
  swarm->second.controls.erase(id);
  if (swarm->second.controls.empty()) swarms_.erase(swarm);
}

/// A control connection that has said nothing of itself yet.
Result<Broker::Control*> Broker::newcomer(ControlId id) {
  const auto found = controls_.find(id);
  if (found == controls_.end()) return fail(ErrorKind::internal, "an unknown control connection");
  if (found->second.swarm) return fail(ErrorKind::invalid_input, "a node says twice whose it is");
  return &found->second;
}

void Broker::enter(ControlId id, Control& control, const net::PeerKey& swarm) {
  control.swarm = swarm;
  swarms_[swarm].controls.insert(id);
}

Result<std::vector<ControlId>> Broker::register_backbone(ControlId id, const net::RelayMembership& membership) {
  auto control = newcomer(id);
  if (!control) return pass(control);
  const net::PeerKey key = (*control)->key;
  if (!access_.allows(key)) {
    return fail(ErrorKind::unauthorized, "this relay does not serve your backbone; its operator allows it with `linkcpp relay --allow {}`",
                key_text(key));
  }
  Swarm& swarm = swarms_[key];
  std::vector<ControlId> outdated;
  if (CRYPTO_memcmp(swarm.membership.data(), membership.data(), membership.size()) != 0) {
    for (const ControlId other : swarm.controls) {
      if (controls_.at(other).key != key) outdated.push_back(other);
    }
    swarm.membership = membership;
  }
  enter(id, **control, key);
  return outdated;
}

Result<> Broker::join(ControlId id, const net::RelayJoin& join, const net::TlsSession::ExportedKey& exported) {
  auto control = newcomer(id);
  if (!control) return pass(control);
  const auto swarm = swarms_.find(join.backbone);
  if (swarm == swarms_.end()) {
    return fail(ErrorKind::unavailable, "backbone {} is not at this relay now; is it running, and was it given this relay?",
                short_name(join.backbone));
  }
  const auto expected = net::relay_proof(swarm->second.membership, exported, (*control)->key, join.backbone);
  if (!expected) return std::unexpected(expected.error());
  if (CRYPTO_memcmp(expected->data(), join.proof.data(), expected->size()) != 0) {
    return fail(ErrorKind::unauthorized, "wrong or outdated join token; ask the backbone's operator for `linkcpp token`");
  }
  enter(id, **control, join.backbone);
  return {};
}

Result<> Broker::listen(ControlId id) {
  const auto control = controls_.find(id);
  if (control == controls_.end() || !control->second.swarm)
    return fail(ErrorKind::invalid_input, "a node listens before it said whose it is");
  control->second.listens = true;
  return {};
}

/// The newest, since an older one may belong to a process that is gone.
std::optional<ControlId> Broker::find_listening(const net::PeerKey& swarm, const net::PeerKey& key) const {
  const auto& controls = swarms_.at(swarm).controls;
  for (auto id = controls.rbegin(); id != controls.rend(); ++id) {
    const Control& control = controls_.at(*id);
    if (control.listens && control.key == key) return *id;
  }
  return std::nullopt;
}

Result<Broker::Introduction> Broker::connect(ControlId id, const net::PeerKey& to, Clock::time_point now) {
  const auto control = controls_.find(id);
  if (control == controls_.end() || !control->second.swarm)
    return fail(ErrorKind::invalid_input, "a node connects before it said whose it is");
  const net::PeerKey from = control->second.key;
  if (!peer(from).connects.take(1, now))
    return fail(ErrorKind::unavailable, "more connections are asked for than {} a second", limits_.connects_per_second);
  const auto called = find_listening(*control->second.swarm, to);
  if (!called) {
    return fail(ErrorKind::not_found, "node {} is not at this relay now; is it running, and does it listen at this relay?", short_name(to));
  }
  if (links_.size() >= limits_.max_links) return fail(ErrorKind::unavailable, "this relay carries as many connections as it may");
  for (const net::PeerKey& key : {from, to}) {
    if (peer(key).links >= limits_.max_links_of_peer)
      return fail(ErrorKind::unavailable, "node {} has {} connections through this relay, as many as it may", short_name(key),
                  peer(key).links);
  }
  auto tickets = tickets_.issue(now);
  if (!tickets) return pass(tickets);
  links_[tickets->connection] = {.caller = from, .called = to, .expires = now + limits_.ticket_lifetime};
  ++peer(from).links;
  ++peer(to).links;
  return Introduction{.called = *called, .caller_key = from, .tickets = *tickets};
}

bool Broker::may_speak(ControlId id, Clock::time_point now) {
  const auto control = controls_.find(id);
  return control != controls_.end() && control->second.messages.take(1, now);
}

Broker::Side Broker::redeem(const net::RelayTicket& ticket, Clock::time_point now) {
  Side side{.ticket = tickets_.redeem(ticket, now)};
  if (side.ticket.answer != net::RelayAnswer::joined) return side;
  const auto link = links_.find(side.ticket.connection);
  if (link == links_.end()) {  // its first side gave up
    side.ticket.answer = net::RelayAnswer::peer_missing;
    return side;
  }
  link->second.counted = true;
  side.peer = side.ticket.caller ? link->second.caller : link->second.called;
  return side;
}

void Broker::link_ended(std::uint64_t connection) {
  const auto link = links_.find(connection);
  if (link == links_.end()) return;
  --peer(link->second.caller).links;
  --peer(link->second.called).links;
  links_.erase(link);
}

void Broker::drop_if_idle(const net::PeerKey& key, Clock::time_point now) {
  const auto found = peers_.find(key);
  if (found != peers_.end() && found->second.controls == 0 && found->second.links == 0 && found->second.connects.full(now))
    peers_.erase(found);
}

void Broker::forget_old(Clock::time_point now) {
  tickets_.forget_old(now);
  std::vector<std::uint64_t> expired;
  for (const auto& [connection, link] : links_) {
    if (!link.counted && now >= link.expires) expired.push_back(connection);
  }
  for (const std::uint64_t connection : expired) link_ended(connection);
  std::vector<net::PeerKey> keys;
  for (const auto& [key, peer] : peers_) keys.push_back(key);
  for (const net::PeerKey& key : keys) drop_if_idle(key, now);
}

}  // namespace linkcpp::relay
