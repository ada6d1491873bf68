#include "nat.h"

#include <algorithm>

namespace linkcpp::lab {
namespace {

constexpr std::uint16_t first_port = 1024;
constexpr int port_attempts = 256;

}  // namespace

void Nat::forget(const Port& port) {
  const auto at = by_port_.find(port);
  by_key_.erase(at->second.key);
  by_port_.erase(at);
}

std::optional<std::uint16_t> Nat::free_port(Protocol protocol, std::uint16_t wish, Time now) {
  const auto is_free = [&](std::uint16_t port) {
    const auto at = by_port_.find({protocol, port});
    if (at == by_port_.end()) return true;
    if (at->second.expires > now) return false;
    forget(at->first);
    return true;
  };
  if (shape_.keeps_port && shape_.kind != NatKind::symmetric && wish >= first_port && is_free(wish)) return wish;
  for (int i = 0; i < port_attempts; ++i) {
    const auto port = static_cast<std::uint16_t>(std::uniform_int_distribution<unsigned>(first_port, UINT16_MAX)(random_));
    if (is_free(port)) return port;
  }
  return std::nullopt;
}

Nat::Mapping* Nat::mapping(const Flow& flow, Time now) {
  const Key key{flow.protocol, flow.from, shape_.kind == NatKind::symmetric ? flow.to : Endpoint{}};
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    Mapping& found = by_port_.at(known->second);
    if (found.expires > now) return &found;
    forget(Port(known->second));
  }
  const auto port = free_port(flow.protocol, flow.from.port, now);
  if (!port) return nullptr;
  by_key_[key] = {flow.protocol, *port};
  Mapping& made = by_port_[{flow.protocol, *port}];
  made = {.key = key, .port = *port, .sent_to = {}, .expires = Time{}};
  return &made;
}

void Nat::keep(Mapping& mapping, ByteSpan packet, Time now) const {
  if (ends_connection(packet)) {
    mapping.expires = now + shape_.closed_timeout;
    return;
  }
  mapping.expires = std::max(mapping.expires, now + (mapping.key.protocol == Protocol::tcp ? shape_.tcp_timeout : shape_.udp_timeout));
}

bool Nat::lets_in(const Mapping& mapping, Endpoint from) const {
  switch (shape_.kind) {
    case NatKind::full_cone:
      return true;
    case NatKind::address_restricted:
      return std::ranges::any_of(mapping.sent_to, [&](const Endpoint& to) { return to.address == from.address; });
    case NatKind::port_restricted:
    case NatKind::symmetric:
      return mapping.sent_to.contains(from);
  }
  return false;
}

void Nat::renumber(Address outside) {
  shape_.outside = outside;
  by_key_.clear();
  by_port_.clear();
}

bool Nat::outbound(std::span<std::byte> packet, Time now) {
  const auto flow = flow_of(packet);
  Mapping* found = flow ? mapping(*flow, now) : nullptr;
  if (found == nullptr) {
    ++refused_;
    return false;
  }
  found->sent_to.insert(flow->to);
  keep(*found, packet, now);
  set_source(packet, {shape_.outside, found->port});
  return true;
}

bool Nat::inbound(std::span<std::byte> packet, Time now) {
  const auto flow = flow_of(packet);
  const auto found = flow ? by_port_.find({flow->protocol, flow->to.port}) : by_port_.end();
  // For ICMP echo both ends have the identifier as port; whoever was pinged may answer.
  const Endpoint from = flow && flow->protocol == Protocol::icmp && found != by_port_.end()
                            ? Endpoint{flow->from.address, found->second.key.inner.port}
                            : (flow ? flow->from : Endpoint{});
  if (found == by_port_.end() || found->second.expires <= now || !lets_in(found->second, from)) {
    ++refused_;
    return false;
  }
  // Answers keep a TCP mapping alive, but not a UDP one (RFC 4787, REQ-6: outbound refresh is what one can rely on).
  if (flow->protocol == Protocol::tcp) keep(found->second, packet, now);
  set_destination(packet, found->second.key.inner);
  return true;
}

}  // namespace linkcpp::lab
