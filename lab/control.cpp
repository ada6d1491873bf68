#include "control.h"

#include <nlohmann/json.hpp>

#include "table.h"

namespace linkcpp::lab {
namespace {

using nlohmann::json;

json shown(const Network& network, const Site& site) {
  json text{{"name", site.name}, {"address", text_of(site.address)}};
  if (site.address6) text["address6"] = text_of(*site.address6);
  if (site.behind) text["behind"] = network.site(*site.behind).name;
  return text;
}

Result<Realm> wished_realm(const Network& network, const Site& site, Table& table) {
  if (table.find("behind") == nullptr) return site.behind;
  const std::string name = table.text("behind", "");
  if (site.nat) return fail(ErrorKind::invalid_input, "'{}' is a NAT: it can get another address, but not another place", site.name);
  if (name.empty()) return Realm{};
  const auto nat = network.find(name);
  if (!nat || !network.site(*nat).nat) return fail(ErrorKind::invalid_input, "there is no NAT '{}'", name);
  return Realm{nat};
}

}  // namespace

Result<std::string> obey(Network& network, std::string_view request) {
  const json parsed = json::parse(request, nullptr, false);
  if (parsed.is_discarded()) return fail(ErrorKind::invalid_input, "the request is not JSON");
  std::optional<Error> error;
  Table table(parsed, "the request", error);
  const std::string what = table.text("do", ""), name = table.text("site", "");
  const auto number = network.find(name);
  if (!error && !number) return fail(ErrorKind::not_found, "there is no node or NAT '{}'", name);
  if (error) return std::unexpected(*error);
  const Site& site = network.site(*number);
  const bool moves = what == "move";
  const json before = shown(network, site);
  Lines lines{.up = site.up, .down = site.down};
  if (const json* found = moves || what == "set" ? table.find("lines") : nullptr; found != nullptr) {
    Table asked(*found, name, error);
    lines = read_lines(asked, lines, error);
    asked.end();
  }
  Result<Realm> realm = moves ? wished_realm(network, site, table) : Result<Realm>(site.behind);
  table.end();
  if (error) return std::unexpected(*error);
  if (!realm) return pass(realm);
  if (what == "cut" || what == "mend")
    network.cut(*number, what == "cut");
  else if (moves)
    network.move(*number, *realm);
  else if (what != "set" && what != "show")
    return fail(ErrorKind::invalid_input, "'{}' is none of set, cut, mend, move, show", what);
  network.reshape(*number, lines.up, lines.down);
  json answer = shown(network, network.site(*number));
  if (moves) answer["before"] = before;
  return answer.dump();
}

}  // namespace linkcpp::lab
