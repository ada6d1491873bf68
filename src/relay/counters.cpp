#include "relay/counters.h"

#include <array>
#include <format>
#include <nlohmann/json.hpp>

namespace linkcpp::relay {
namespace {

struct Field {
  const char* name;
  const char* help;
  std::uint64_t Counters::* value;
  bool gauge = false;
};

constexpr std::array fields = {
    Field{"connections", "TCP connections accepted", &Counters::connections},
    Field{"web_requests", "HTTP requests that asked for no WebSocket", &Counters::web_requests},
    Field{"handshakes_failed", "Connections that ended before they showed whose they are", &Counters::handshakes_failed},
    Field{"nodes_refused", "Nodes that were not allowed, or had a wrong token, or were too many", &Counters::nodes_refused},
    Field{"floods", "Nodes that said too much and addresses that connected too often", &Counters::floods},
    Field{"introductions", "Pairs of tickets given", &Counters::introductions},
    Field{"connects_failed", "Connects that led to nobody", &Counters::connects_failed},
    Field{"tickets_unknown", "Data connections with invented tickets", &Counters::tickets_unknown},
    Field{"tickets_expired", "Data connections that came too late", &Counters::tickets_expired},
    Field{"tickets_replayed", "Data connections with used tickets", &Counters::tickets_replayed},
    Field{"peers_missing", "Data connections whose other side did not come", &Counters::peers_missing},
    Field{"links", "Data connections joined", &Counters::links},
    Field{"bytes", "Bytes passed on", &Counters::bytes},
    Field{"stun_answers", "STUN requests answered", &Counters::stun_answers},
    Field{"stun_ignored", "Datagrams not answered", &Counters::stun_ignored},
    Field{"nodes_now", "Nodes with a control connection", &Counters::nodes_now, true},
    Field{"swarms_now", "Backbones with nodes here", &Counters::swarms_now, true},
    Field{"links_now", "Links that are passed on", &Counters::links_now, true},
};

}  // namespace

std::string prometheus_text(const Counters& counters) {
  std::string text;
  for (const Field& field : fields) {
    const auto name = std::format("linkcpp_relay_{}{}", field.name, field.gauge ? "" : "_total");
    text += std::format("# HELP {} {}\n# TYPE {} {}\n{} {}\n", name, field.help, name, field.gauge ? "gauge" : "counter", name,
                        counters.*field.value);
  }
  return text;
}

std::string json_text(const Counters& counters) {
  nlohmann::json json;
  for (const Field& field : fields) json[field.name] = counters.*field.value;
  return json.dump();
}

}  // namespace linkcpp::relay
