#include "scenario.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "table.h"

namespace linkcpp::lab {
namespace {

using nlohmann::json;

constexpr std::size_t max_sites = 200;

std::optional<NatKind> nat_kind(const std::string& text) {
  if (text == "full-cone") return NatKind::full_cone;
  if (text == "address-restricted") return NatKind::address_restricted;
  if (text == "port-restricted") return NatKind::port_restricted;
  if (text == "symmetric") return NatKind::symmetric;
  return std::nullopt;
}

class Reader {
 public:
  Result<Scenario> read(const json& all) {
    Table top(all, "the file", error_);
    scenario_.seed = static_cast<std::uint64_t>(top.number("seed", 1, 0, 9e15));
    Lines missing;
    if (const json* defaults = top.find("defaults"); defaults != nullptr) {
      Table table(*defaults, "[defaults]", error_);
      missing = read_lines(table, {}, error_);
      table.end();
    }
    // A NAT's line is its own; what lies behind has a line of no length unless it says otherwise.
    each(top, "nat", [&](Table& table) { add_nat(table, missing); });
    each(top, "node", [&](Table& table) { add_nodes(table, missing); });
    each(top, "path", [&](Table& table) { add_path(table); });
    top.end();
    if (nodes_ == 0) top.wrong(" has no [[node]]");
    if (error_) return std::unexpected(*error_);
    return std::move(scenario_);
  }

 private:
  template <class Use>
  void each(Table& top, const char* name, Use use) {
    const json* found = top.find(name);
    if (found == nullptr) return;
    if (!found->is_array()) return top.wrong(std::format(".{} is not a list of tables; write [[{}]]", name, name));
    for (std::size_t i = 0; i < found->size() && !error_; ++i) {
      Table table((*found)[i], std::format("{} {}", name, i + 1), error_);
      use(table);
      table.end();
    }
  }

  void add_nat(Table& table, const Lines& missing) {
    Site site = placed(table, missing);
    NatShape nat{.outside = site.address};
    const std::string kind = table.text("kind", "port-restricted");
    if (const auto known = nat_kind(kind))
      nat.kind = *known;
    else
      table.wrong(std::format(".kind '{}' is none of full-cone, address-restricted, port-restricted, symmetric", kind));
    nat.udp_timeout = seconds(table.number("udp_timeout_s", 120, 0.001, 1e6));
    nat.tcp_timeout = seconds(table.number("tcp_timeout_s", 7200, 0.001, 1e6));
    nat.keeps_port = table.truth("keeps_port", true);
    nat.hairpin = table.truth("hairpin", false);
    nat.firewall6 = table.truth("ipv6_firewall", true);
    site.nat = nat;
    add(table, std::move(site), table.text("name", ""));
  }

  void add_nodes(Table& table, const Lines& missing) {
    const auto count = static_cast<std::size_t>(table.number("count", 1, 1, max_sites));
    const std::string name = table.text("name", "");
    for (std::size_t i = 1; i <= count && !error_; ++i) {
      Site site = placed(table, missing);
      if (table.truth("ipv6", false)) site.address6 = address6_of(site.behind, neighbours(site.behind));
      add(table, std::move(site), count == 1 ? name : name + std::to_string(i));
      ++nodes_;
    }
  }

  Site placed(Table& table, const Lines& missing) {
    Site site;
    const std::string behind = table.text("behind", "");
    if (!behind.empty()) {
      const auto at = std::ranges::find(scenario_.sites, behind, &Site::name);
      if (at == scenario_.sites.end() || !at->nat)
        table.wrong(std::format(".behind names no [[nat]] above it: '{}'", behind));
      else
        site.behind = static_cast<std::size_t>(at - scenario_.sites.begin());
    }
    const Lines lines = read_lines(table, site.behind ? Lines{} : missing, error_);
    site.up = lines.up, site.down = lines.down;
    site.filter = {.blocks_udp = table.truth("blocks_udp", false), .only_ports = table.ports("only_ports")};
    site.address = address_of(site.behind, neighbours(site.behind));
    return site;
  }

  void add(Table& table, Site site, std::string name) {
    const bool sound = !name.empty() && name.size() <= 32 && std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    });
    if (!sound) return table.wrong(std::format(".name '{}' is not of 1 to 32 letters, digits, - and _", name));
    if (std::ranges::contains(scenario_.sites, name, &Site::name)) return table.wrong(std::format(".name '{}' is there already", name));
    if (scenario_.sites.size() == max_sites) return table.wrong(std::format(": more than {} sites", max_sites));
    site.name = std::move(name);
    scenario_.sites.push_back(std::move(site));
  }

  [[nodiscard]] std::size_t neighbours(Realm realm) const {
    return static_cast<std::size_t>(std::ranges::count(scenario_.sites, realm, &Site::behind));
  }

  std::optional<std::size_t> named(Table& table, const char* member) {
    const std::string name = table.text(member, "");
    const auto at = std::ranges::find(scenario_.sites, name, &Site::name);
    if (at != scenario_.sites.end()) return static_cast<std::size_t>(at - scenario_.sites.begin());
    table.wrong(std::format(".{} names no node and no NAT: '{}'", member, name));
    return std::nullopt;
  }

  void add_path(Table& table) {
    const auto from = named(table, "from"), to = named(table, "to");
    const Time delay = milliseconds(table, "delay_ms", Time{});
    if (!from || !to) return;
    if (from == to || scenario_.sites[*from].behind != scenario_.sites[*to].behind)
      return table.wrong(": its two ends are not two neighbours; for what lies behind a NAT, name the NAT");
    scenario_.paths.push_back({*from, *to, delay});
  }

  Scenario scenario_;
  std::optional<Error> error_;
  std::size_t nodes_ = 0;
};

}  // namespace

Address address_of(Realm realm, std::size_t number) {
  const Address first = realm ? (10u << 24) + (static_cast<Address>(*realm + 1) << 8) : (198u << 24) + (18u << 16);
  return first + 2 + static_cast<Address>(number);
}

Address6 address6_of(Realm realm, std::size_t number) {
  const std::size_t network = realm ? *realm + 1 : 0, host = number + 2;
  return {0x20,
          0x01,
          0,
          2,
          0,
          0,
          static_cast<std::uint8_t>(network >> 8),
          static_cast<std::uint8_t>(network),
          0,
          0,
          0,
          0,
          static_cast<std::uint8_t>(host >> 24),
          static_cast<std::uint8_t>(host >> 16),
          static_cast<std::uint8_t>(host >> 8),
          static_cast<std::uint8_t>(host)};
}

Result<Scenario> parse_scenario(std::string_view text) {
  const json all = json::parse(text, nullptr, false);
  if (all.is_discarded()) return fail(ErrorKind::invalid_input, "the scenario is not JSON");
  return Reader().read(all);
}

}  // namespace linkcpp::lab
