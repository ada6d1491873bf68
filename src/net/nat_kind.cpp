#include "net/nat_kind.h"

#include <algorithm>
#include <format>
#include <ranges>
#include <set>

#include "net/socket.h"

namespace linkcpp::net {
namespace {

namespace ip = boost::asio::ip;
using Sights = std::vector<StunSight>;

bool in_v4(const ip::address& address, std::uint32_t network, int bits) {
  return address.is_v4() && (address.to_v4().to_uint() >> (32 - bits)) == (network >> (32 - bits));
}

bool is_own(const ip::address& address, std::span<const ip::address> own) {
  return address.is_loopback() || std::ranges::find(own, address) != own.end();
}

Sights answers_of(std::span<const StunSight> sights) {
  Sights answered;
  std::ranges::copy_if(sights, std::back_inserter(answered), [](const StunSight& sight) { return sight.seen.has_value(); });
  // Servers in the own network, on this side of the NAT, say nothing about it if others do.
  Sights outside;
  std::ranges::copy_if(answered, std::back_inserter(outside), [](const StunSight& sight) { return is_global(sight.server.address()); });
  return outside.empty() ? answered : outside;
}

std::size_t different_servers(const Sights& answers) {
  std::set<ip::address> servers;
  for (const StunSight& sight : answers) servers.insert(sight.server.address());
  return servers.size();
}

bool all_see_the_same(const Sights& answers) {
  return std::ranges::all_of(answers, [&](const StunSight& sight) { return sight.seen == answers.front().seen; });
}

/// Two ports of one server saw different addresses.
bool depends_on_port(const Sights& answers) {
  for (const StunSight& one : answers) {
    for (const StunSight& other : answers) {
      if (one.server.address() == other.server.address() && one.seen != other.seen) return true;
    }
  }
  return false;
}

void judge_open(NatVerdict& verdict, const Sights& answers) {
  verdict.kind = NatKind::open;
  verdict.why = std::format("no NAT: others see {}, an address of this machine", to_text(*verdict.outside));
  if (!is_global(verdict.outside->address()) && !is_global(answers.front().server.address())) {
    verdict.not_known.emplace_back("only servers in the own network answered: whether there is a NAT between it and the Internet");
  }
  verdict.not_known.emplace_back("whether a firewall lets in what was not asked for");
}

void judge_mapping(NatVerdict& verdict, const Sights& answers) {
  if (!all_see_the_same(answers)) {
    verdict.kind = NatKind::symmetric;
    verdict.why =
        std::format("a symmetric NAT: {} servers see {} different addresses of one socket (its mapping depends on {})", answers.size(),
                    std::set(std::from_range, std::views::transform(answers, [](const auto& s) { return *s.seen; })).size(),
                    depends_on_port(answers) ? "address and port" : "the destination");
    return;
  }
  if (answers.size() == 1) {
    verdict.why = std::format("a NAT: others see {}; one server alone cannot tell of which kind it is", to_text(*verdict.outside));
    verdict.not_known.emplace_back("whether other peers see the same port: name a second server with --stun or --relay");
    return;
  }
  verdict.kind = NatKind::cone;
  verdict.why =
      std::format("an endpoint-independent NAT (cone): {} servers see the same address, {}", answers.size(), to_text(*verdict.outside));
  if (different_servers(answers) == 1) {
    verdict.not_known.emplace_back("whether the mapping depends on the address: all answers came from one, at several ports");
  }
  verdict.not_known.emplace_back("whom its filter lets in; hole punching does not depend on it");
}

void judge_carrier(NatVerdict& verdict, std::span<const ip::address> own, const std::optional<ip::address>& router) {
  const auto say = [&](std::string why) {
    verdict.carrier_grade = true;
    verdict.carrier_why = std::move(why);
  };
  if (router && is_carrier_shared(*router)) {
    return say(std::format("the router's outside address {} is one of those that providers use behind their own NAT", router->to_string()));
  }
  if (router && router->is_v4() && verdict.outside && verdict.outside->address().is_v4() && *router != verdict.outside->address()) {
    return say(std::format("the router's outside address is {}, but others see {}: another NAT follows behind the router",
                           router->to_string(), verdict.outside->address().to_string()));
  }
  const auto shared = std::ranges::find_if(own, is_carrier_shared);
  if (shared != own.end() && (!verdict.outside || verdict.outside->address() != *shared)) {
    return say(std::format("this machine's address {} is one of those that providers use behind their own NAT", shared->to_string()));
  }
}

}  // namespace

const char* nat_kind_name(NatKind kind) {
  switch (kind) {
    case NatKind::unknown:
      return "unknown";
    case NatKind::no_udp:
      return "no-udp";
    case NatKind::open:
      return "open";
    case NatKind::cone:
      return "cone";
    case NatKind::symmetric:
      return "symmetric";
  }
  return "?";
}

bool is_carrier_shared(const ip::address& address) { return in_v4(address, 0x64400000, 10); }

bool is_global(const ip::address& address) {
  if (address.is_unspecified() || address.is_loopback() || address.is_multicast()) return false;
  if (address.is_v6()) {
    const auto bytes = address.to_v6().to_bytes();
    return !address.to_v6().is_link_local() && (bytes[0] & 0xFE) != 0xFC;  // RFC 4193
  }
  return !in_v4(address, 0x0A000000, 8) && !in_v4(address, 0xAC100000, 12) && !in_v4(address, 0xC0A80000, 16) &&
         !in_v4(address, 0xA9FE0000, 16) && !is_carrier_shared(address);
}

NatVerdict judge_nat(std::span<const StunSight> sights, std::span<const ip::address> own, std::uint16_t local_port,
                     const std::optional<ip::address>& router) {
  NatVerdict verdict;
  verdict.asked = sights.size();
  verdict.answered = static_cast<std::size_t>(std::ranges::count_if(sights, [](const StunSight& sight) { return sight.seen.has_value(); }));
  const Sights answers = answers_of(sights);
  if (sights.empty()) {
    verdict.why = "no server was asked from where it sees this machine";
    verdict.not_known.emplace_back("everything about NATs: name servers with --relay, --stun or --token");
  } else if (answers.empty()) {
    verdict.kind = NatKind::no_udp;
    verdict.why = std::format("none of {} servers answers by UDP", sights.size());
  } else {
    verdict.outside = answers.front().seen;
    verdict.keeps_port = verdict.outside->port() == local_port;
    if (std::ranges::all_of(answers, [&](const StunSight& sight) { return is_own(sight.seen->address(), own); })) {
      judge_open(verdict, answers);
    } else {
      judge_mapping(verdict, answers);
    }
  }
  judge_carrier(verdict, own, router);
  return verdict;
}

DirectChance direct_chance(NatKind one, NatKind other) {
  using enum NatKind;
  if (one == no_udp || other == no_udp) return DirectChance::no;
  if (one == open || other == open) return DirectChance::yes;
  if (one == unknown || other == unknown) return DirectChance::unknown;
  if (one == symmetric && other == symmetric) return DirectChance::no;
  return one == symmetric || other == symmetric ? DirectChance::rarely : DirectChance::yes;
}

std::string direct_chance_words(DirectChance chance) {
  switch (chance) {
    case DirectChance::no:
      return "not directly: the relay remains";
    case DirectChance::rarely:
      return "seldom directly: only if the cone lets in every port of an address that it has sent to, else by relay";
    case DirectChance::yes:
      return "directly, by hole punching where it is needed";
    case DirectChance::unknown:
      return "not known";
  }
  return "?";
}

}  // namespace linkcpp::net
