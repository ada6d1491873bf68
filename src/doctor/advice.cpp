#include "doctor/advice.h"

#include <algorithm>
#include <format>
#include <ranges>
#include <utility>

namespace linkcpp::doctor {
namespace {

using net::NatKind;

bool any_works(const Destination& to) { return std::ranges::any_of(to.ways, &Way::works); }

bool tcp_reaches(const Destination& to) {
  return std::ranges::any_of(to.ways, [](const Way& way) { return way.connected.has_value(); });
}

const Way* find_way(const Destination& to, std::string_view transport) {
  const auto found = std::ranges::find(to.ways, transport, &Way::transport);
  return found == to.ways.end() ? nullptr : &*found;
}

bool refused(const Way& way) { return way.error && (way.error->kind == ErrorKind::unauthorized); }

/// Collects, the broken first.
class Adviser {
 public:
  explicit Adviser(const Examination& findings) : findings_(findings) {}

  std::vector<Advice> run() {
    token();
    for (const Destination& worker : findings_.workers) destination(worker, "the worker");
    for (const RelayFinding& one : findings_.relays) relay(one);
    for (const FamilyFinding& family : findings_.families) nat(family);
    router();
    swarm();
    if (advice_.empty())
      say(Level::hint, "nothing was asked about: name a join token (--token), relays (--relay) or STUN servers (--stun)");
    std::ranges::stable_sort(advice_, std::greater{}, &Advice::level);
    return std::move(advice_);
  }

 private:
  void say(Level level, std::string text) { advice_.push_back({level, std::move(text)}); }

  void token() {
    if (findings_.token.empty()) return;
    const bool works = std::ranges::any_of(findings_.token, any_works);
    for (const Destination& to : findings_.token) {
      if (const auto refusal = std::ranges::find_if(to.ways, refused); refusal != to.ways.end()) {
        say(Level::broken, refusal_words(*refusal));
      } else if (any_works(to)) {
        quic_of(to);
      } else if (works) {
        say(Level::hint, std::format("{} does not work from here; another address of the token does. {}", to.address, reason(to)));
      } else {
        say(Level::broken, std::format("{} does not work: {}", to.address, reason(to)));
      }
    }
    if (works) return say(Level::good, "the backbone can be reached with this token");
    if (std::ranges::none_of(findings_.token, [](const Destination& to) { return to.global || tcp_reaches(to); })) {
      say(Level::broken,
          "the token names only private addresses, which mean something in the backbone's own network alone: make one there with `linkcpp "
          "token --address HOST:PORT`, with an address that is reachable from here, or with a relay's");
    }
  }

  void destination(const Destination& to, const char* what) {
    if (const auto refusal = std::ranges::find_if(to.ways, refused); refusal != to.ways.end()) {
      return say(Level::broken, refusal_words(*refusal));
    }
    if (!any_works(to)) return say(Level::broken, std::format("{} {} does not work: {}", what, to.address, reason(to)));
    quic_of(to);
    say(Level::good, std::format("{} {} can be reached", what, to.address));
  }

  /// TCP works where UDP does not.
  void quic_of(const Destination& to) {
    const Way* quic = find_way(to, "quic");
    if (quic == nullptr || quic->works() || !any_works(to)) return;
    if (udp_blocked()) return;  // said once for all
    say(Level::hint,
        std::format("TCP to {} works, but UDP to the same port is not answered: open the UDP port as well, on the firewall there or "
                    "here; until then links use TCP, which suffers more from loss",
                    to.address));
  }

  [[nodiscard]] static std::string refusal_words(const Way& way) {
    return std::format(
        "{} answers, but is not whom it should be, or does not accept this node: {}. Is the token the backbone's newest "
        "(`linkcpp token` there), and is the address still the backbone's?",
        way.address, way.error->message);
  }

  [[nodiscard]] static std::string reason(const Destination& to) {
    std::string text;
    for (const Way& way : to.ways) {
      if (way.error) text += std::format("{}{}: {}", text.empty() ? "" : "; ", way.transport, way.error->message);
    }
    if (tcp_reaches(to)) return text + " (something listens there, but no link came about)";
    return text + " (does it run, is the address right, and does a firewall let the port in?)";
  }

  void relay(const RelayFinding& one) {
    if (!one.connected) {
      const std::string why = one.error ? one.error->message : "no answer";
      return say(Level::broken, std::format("the relay {} is not reachable: {}. Does `linkcpp relay` run there, and is its TCP port open?",
                                            one.address, why));
    }
    if (one.error) {
      return say(Level::broken, std::format("the relay {} is there, but does not let this node in: {}", one.address, one.error->message));
    }
    if (!one.asked_in) {
      return say(Level::hint,
                 std::format("the relay {} is there; whether it lets this swarm in is not known without --token", one.address));
    }
    say(Level::good, std::format("the relay {} lets this node in", one.address));
  }

  [[nodiscard]] bool udp_blocked() const {
    return !findings_.families.empty() &&
           std::ranges::all_of(findings_.families, [](const FamilyFinding& family) { return family.nat.kind == NatKind::no_udp; });
  }

  /// Somebody who was asked by UDP in vain answers by TCP.
  [[nodiscard]] bool tcp_leaves() const {
    return std::ranges::any_of(findings_.token, tcp_reaches) || std::ranges::any_of(findings_.workers, tcp_reaches) ||
           std::ranges::any_of(findings_.relays, [](const RelayFinding& one) { return one.connected.has_value(); });
  }

  void nat(const FamilyFinding& family) {
    const char* name = family.v6 ? "IPv6: " : "";
    switch (family.nat.kind) {
      case NatKind::no_udp:
        no_udp(family, name);
        break;
      case NatKind::symmetric:
        say(Level::hint,
            std::format("{}UDP leaves, but your NAT gives each peer another port (symmetric): peers behind a symmetric NAT reach you by "
                        "relay only, and those behind a port-restricted one as well. Forward a UDP port to this machine, or run the "
                        "backbone on a public machine",
                        name));
        break;
      case NatKind::cone:
        say(Level::good,
            std::format("{}your NAT keeps its mappings (cone): peers reach you directly by hole punching, unless theirs is symmetric",
                        name));
        break;
      case NatKind::open:
        say(Level::good, std::format("{}no NAT stands before this machine: peers reach it directly, if no firewall forbids it", name));
        break;
      case NatKind::unknown:
        if (family.nat.asked > 0) say(Level::hint, std::format("{}{}", name, family.nat.why));
        break;
    }
    if (family.nat.carrier_grade) {
      say(Level::hint,
          std::format("your provider translates addresses as well ({}): a port that your own router opens leads nowhere. Ask the provider "
                      "for IPv6 or a public address, or use a relay",
                      family.nat.carrier_why));
    }
  }

  void no_udp(const FamilyFinding& family, const char* name) {
    if (tcp_leaves()) {
      return say(Level::hint,
                 std::format("{}UDP does not get out of here, or its answers do not get in: {} though TCP works. No QUIC and no direct "
                             "paths then: TCP to public machines, the relay for all others. Let UDP out on the firewall here",
                             name, family.nat.why));
    }
    say(Level::hint, std::format("{}{}: UDP is blocked, or none of them is there", name, family.nat.why));
  }

  void router() {
    if (!findings_.router || !findings_.router->error.empty()) return;
    const auto& router = *findings_.router;
    const bool behind_carrier =
        std::ranges::any_of(findings_.families, [](const FamilyFinding& family) { return family.nat.carrier_grade; });
    if (behind_carrier) return;
    say(Level::good, std::format("the router opens ports when asked ({} at {}): peers can then reach this machine from everywhere",
                                 router.protocol, router.where));
  }

  void swarm() {
    if (!findings_.swarm) return;
    const SwarmFinding& swarm = *findings_.swarm;
    if (swarm.error) {
      if (swarm.asked_for) say(Level::broken, std::format("the backbone's account {} cannot be read: {}", swarm.url, swarm.error->message));
      return;
    }
    if (!swarm.missing.empty()) say(Level::broken, std::format("experts that no worker holds now: {}", swarm.missing));
    for (const WorkerFinding& worker : swarm.workers) {
      if (worker.state == "left" || worker.transport != "relay") continue;
      say(Level::hint,
          std::format("worker {} is connected through a relay, which makes each token slower: run `linkcpp doctor` there to see why",
                      worker.name));
    }
  }

  const Examination& findings_;
  std::vector<Advice> advice_;
};

std::optional<Choice> choose(const Destination& to, Nanoseconds far) {
  const Way* tcp = find_way(to, "tcp");
  const Way* quic = find_way(to, "quic");
  if (to.any_transport && tcp != nullptr && tcp->connected) {
    const bool is_far = *tcp->connected >= far;
    if (is_far && quic != nullptr && quic->works()) {
      return Choice{to.address, "quic", std::format("it is far ({:.1f} ms) and UDP passes", milliseconds(*tcp->connected))};
    }
    if (tcp->works()) {
      return Choice{to.address, "tcp",
                    is_far ? std::format("it is far ({:.1f} ms), but UDP does not pass", milliseconds(*tcp->connected))
                           : std::format("it is near ({:.1f} ms)", milliseconds(*tcp->connected))};
    }
    return std::nullopt;
  }
  const auto works = std::ranges::find_if(to.ways, &Way::works);
  if (works == to.ways.end() || to.any_transport) return std::nullopt;
  return Choice{to.address, works->transport, "the address names this transport"};
}

}  // namespace

const char* level_name(Level level) {
  switch (level) {
    case Level::good:
      return "good";
    case Level::hint:
      return "hint";
    case Level::broken:
      return "broken";
  }
  return "?";
}

std::vector<Advice> advise(const Examination& findings) { return Adviser(findings).run(); }

bool something_broken(const std::vector<Advice>& advice) {
  return std::ranges::any_of(advice, [](const Advice& one) { return one.level == Level::broken; });
}

std::optional<Choice> chosen_way(const std::vector<Destination>& token, Nanoseconds far) {
  std::size_t failed = 0;
  for (const Destination& to : token) {
    if (auto choice = choose(to, far)) {
      if (failed > 0) choice->why += std::format(", and {} before it in the token {} not work", failed, failed == 1 ? "does" : "do");
      return choice;
    }
    ++failed;
  }
  return std::nullopt;
}

std::vector<std::string> expectations(const Examination& findings) {
  if (findings.families.empty()) return {};
  const NatKind own = findings.families.front().nat.kind;
  if (own == NatKind::unknown) return {};
  std::vector<std::string> lines;
  for (const auto& [kind, who] : {std::pair(NatKind::open, "public"),
                                  {NatKind::cone, "behind a cone NAT"},
                                  {NatKind::symmetric, "behind a symmetric NAT"},
                                  {NatKind::no_udp, "without UDP"}}) {
    lines.push_back(std::format("peers {}: {}", who, net::direct_chance_words(net::direct_chance(own, kind))));
  }
  return lines;
}

}  // namespace linkcpp::doctor
