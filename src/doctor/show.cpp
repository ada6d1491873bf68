#include "doctor/show.h"

#include <format>

#include "net/socket.h"
#include "net/transport.h"
#include "serve/text.h"

namespace linkcpp::doctor {
namespace {

using nlohmann::json;
using serve::printable;

json milliseconds_or_null(const std::optional<Nanoseconds>& time) { return time ? json(milliseconds(*time)) : json(); }
json error_or_null(const std::optional<Error>& error) { return error ? json(error->message) : json(); }

/// QUIC from here on, as dialers do it by default.
Nanoseconds far() { return net::LinkKnobs().quic_above; }

// ---- JSON ------------------------------------------------------------------------------------------------------------

json family_json(const FamilyFinding& family) {
  json servers = json::array();
  for (const net::StunSight& sight : family.sights) {
    servers.push_back({{"server", net::to_text(sight.server)},
                       {"seen", sight.seen ? json(net::to_text(*sight.seen)) : json()},
                       {"rtt_ms", sight.seen ? json(milliseconds(sight.round_trip)) : json()}});
  }
  const net::NatVerdict& nat = family.nat;
  return {{"family", family.v6 ? "ipv6" : "ipv4"},
          {"kind", net::nat_kind_name(nat.kind)},
          {"outside", nat.outside ? json(net::to_text(*nat.outside)) : json()},
          {"keeps_port", nat.keeps_port},
          {"asked", nat.asked},
          {"answered", nat.answered},
          {"carrier_grade", nat.carrier_grade},
          {"why", nat.why},
          {"carrier_why", nat.carrier_why},
          {"not_known", nat.not_known},
          {"servers", std::move(servers)}};
}

json destinations_json(const std::vector<Destination>& destinations) {
  json list = json::array();
  for (const Destination& to : destinations) {
    json ways = json::array();
    for (const Way& way : to.ways) {
      ways.push_back({{"address", way.address},
                      {"transport", way.transport},
                      {"works", way.works()},
                      {"tcp_ms", milliseconds_or_null(way.connected)},
                      {"rtt_ms", milliseconds_or_null(way.round_trip)},
                      {"error", error_or_null(way.error)}});
    }
    list.push_back({{"address", to.address}, {"ways", std::move(ways)}});
  }
  return list;
}

json relays_json(const std::vector<RelayFinding>& relays) {
  json list = json::array();
  for (const RelayFinding& one : relays) {
    list.push_back({{"address", one.address},
                    {"tcp_ms", milliseconds_or_null(one.connected)},
                    {"asked_in", one.asked_in},
                    {"rtt_ms", milliseconds_or_null(one.round_trip)},
                    {"error", error_or_null(one.error)}});
  }
  return list;
}

json router_json(const std::optional<RouterFinding>& router) {
  if (!router) return {};
  return {{"opens_ports", router->error.empty()},
          {"protocol", router->protocol},
          {"where", router->where},
          {"outside", router->outside ? json(router->outside->to_string()) : json()},
          {"error", router->error}};
}

json swarm_json(const std::optional<SwarmFinding>& swarm) {
  if (!swarm) return {};
  json workers = json::array();
  for (const WorkerFinding& worker : swarm->workers) {
    json paths = json::array();
    for (const auto& path : worker.paths) {
      paths.push_back({{"kind", path.kind}, {"endpoint", path.endpoint}, {"rtt_ms", path.rtt_ms}, {"preferred", path.preferred}});
    }
    workers.push_back({{"name", worker.name},
                       {"state", worker.state},
                       {"transport", worker.transport},
                       {"endpoint", worker.endpoint},
                       {"rtt_ms", worker.rtt_ms},
                       {"paths", std::move(paths)},
                       {"why", worker.why},
                       {"reason", worker.reason}});
  }
  return {{"url", swarm->url}, {"error", error_or_null(swarm->error)}, {"missing", swarm->missing}, {"workers", std::move(workers)}};
}

// ---- text ------------------------------------------------------------------------------------------------------------

class Page {
 public:
  void heading(std::string_view text) { text_ += std::format("{}{}\n", text_.empty() ? "" : "\n", printable(text)); }
  void line(std::string_view name, std::string_view what) { text_ += std::format("  {:<12}  {}\n", printable(name), printable(what)); }
  void more(std::string_view what) { line("", what); }
  void item(std::string_view mark, std::string_view what) { text_ += std::format("  {:<6}  {}\n", mark, printable(what)); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text.empty() ? "none" : text;
}

std::string way_words(const Way& way) {
  const std::string tcp = way.connected && way.transport != "quic" ? std::format("TCP in {:.1f} ms", milliseconds(*way.connected)) : "";
  if (way.error) return std::format("no link{}: {}", tcp.empty() ? "" : ", " + tcp, way.error->message);
  const std::string link =
      way.round_trip && way.round_trip->count() > 0 ? std::format("round trip {:.1f} ms", milliseconds(*way.round_trip)) : "";
  return std::format("works{}{}{}{}", tcp.empty() && link.empty() ? "" : ": ", tcp, !tcp.empty() && !link.empty() ? ", " : "", link);
}

void show_machine(Page& page, const Examination& findings) {
  page.heading("This machine");
  page.line("addresses", joined(findings.own_addresses));
  if (findings.families.empty()) page.line("NAT", "not known: no server was asked from where it sees this machine");
  for (const FamilyFinding& family : findings.families) {
    const net::NatVerdict& nat = family.nat;
    page.line(family.v6 ? "UDP, IPv6" : "UDP, IPv4",
              nat.answered == 0 ? "no answer" : std::format("leaves: {} of {} servers answer", nat.answered, nat.asked));
    if (nat.kind != net::NatKind::no_udp) page.line(family.v6 ? "NAT, IPv6" : "NAT, IPv4", nat.why);
    if (nat.carrier_grade) page.more("behind a NAT of the provider: " + nat.carrier_why);
    for (const std::string& one : nat.not_known) page.more("not known: " + one);
  }
  if (!findings.router) return;
  const RouterFinding& router = *findings.router;
  page.line("router", router.error.empty() ? std::format("opens ports when asked: {} at {}{}", router.protocol, router.where,
                                                         router.outside ? ", outside " + router.outside->to_string() : "")
                                           : "opens no ports: " + router.error);
}

void show_destinations(Page& page, const std::vector<Destination>& destinations) {
  for (const Destination& to : destinations) {
    for (const Way& way : to.ways)
      page.line(way.transport, std::format("{}  {}", to.any_transport ? way.address : to.address, way_words(way)));
  }
}

void show_relays(Page& page, const std::vector<RelayFinding>& relays) {
  if (relays.empty()) return;
  page.heading("Relays");
  for (const RelayFinding& one : relays) {
    std::string what = one.connected ? std::format("TCP in {:.1f} ms", milliseconds(*one.connected)) : "not reachable";
    if (one.round_trip) what += std::format(", lets this node in, round trip {:.1f} ms", milliseconds(*one.round_trip));
    if (one.error) what += ": " + one.error->message;
    page.line("relay", one.address + "  " + what);
  }
}

void show_expectations(Page& page, const Examination& findings) {
  const auto choice = chosen_way(findings.token, far());
  const auto expected = expectations(findings);
  if (!choice && expected.empty()) return;
  page.heading("What to expect");
  if (choice) page.line("backbone", std::format("{} by {}: {}", choice->address, choice->transport, choice->why));
  for (const std::string& line : expected) page.more(line);
}

void show_swarm(Page& page, const std::optional<SwarmFinding>& swarm) {
  if (!swarm || swarm->error) return;
  page.heading("Workers of " + swarm->url);
  if (swarm->workers.empty()) page.more("none has joined");
  for (const WorkerFinding& worker : swarm->workers) {
    const std::string rtt = worker.rtt_ms > 0 ? std::format(", round trip {:.1f} ms", worker.rtt_ms) : "";
    page.line(worker.name, worker.state == "left" ? "left: " + worker.reason
                                                  : std::format("by {} from {}{}{}", worker.transport, worker.endpoint, rtt,
                                                                worker.why.empty() ? "" : ": " + worker.why));
    for (const auto& path : worker.paths) {
      page.more(std::format("{} {} {}{}", path.preferred ? "*" : "-", path.kind, path.endpoint,
                            path.rtt_ms > 0 ? std::format(", round trip {:.1f} ms", path.rtt_ms) : ""));
    }
  }
}

}  // namespace

json to_json(const Examination& findings, const std::vector<Advice>& advice) {
  json families = json::array(), words = json::array();
  for (const FamilyFinding& family : findings.families) families.push_back(family_json(family));
  for (const Advice& one : advice) words.push_back({{"level", level_name(one.level)}, {"text", one.text}});
  const auto choice = chosen_way(findings.token, far());
  return {{"ok", !something_broken(advice)},
          {"addresses", findings.own_addresses},
          {"nat", std::move(families)},
          {"router", router_json(findings.router)},
          {"backbone", findings.backbone},
          {"token", destinations_json(findings.token)},
          {"workers", destinations_json(findings.workers)},
          {"relays", relays_json(findings.relays)},
          {"choice", choice ? json{{"address", choice->address}, {"transport", choice->transport}, {"why", choice->why}} : json()},
          {"expect", expectations(findings)},
          {"swarm", swarm_json(findings.swarm)},
          {"advice", std::move(words)}};
}

std::string to_text(const Examination& findings, const std::vector<Advice>& advice) {
  Page page;
  show_machine(page, findings);
  if (!findings.token.empty()) page.heading("Backbone " + findings.backbone);
  show_destinations(page, findings.token);
  if (!findings.workers.empty()) page.heading("Workers to dial");
  show_destinations(page, findings.workers);
  show_relays(page, findings.relays);
  show_expectations(page, findings);
  show_swarm(page, findings.swarm);
  page.heading("Advice");
  for (const Advice& one : advice) page.item(one.level == Level::good ? "ok" : level_name(one.level), one.text);
  return page.take();
}

}  // namespace linkcpp::doctor
