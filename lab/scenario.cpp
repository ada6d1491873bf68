#include "scenario.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace linkcpp::lab {
namespace {

using nlohmann::json;

constexpr std::size_t max_sites = 200;
constexpr double max_seconds = 3600;

/// Reads members of one table and remembers the first thing that is wrong.
class Table {
 public:
  Table(const json& table, std::string place, std::optional<Error>& error) : table_(table), place_(std::move(place)), error_(error) {
    if (!table.is_object()) wrong("is not a table");
  }
  double number(const char* name, double missing, double least, double most) {
    const json* value = find(name);
    if (value == nullptr) return missing;
    const double found = value->is_number() ? value->get<double>() : std::nan("");
    if (found >= least && found <= most) return found;
    wrong(std::format(".{} is not a number from {} to {}", name, least, most));
    return missing;
  }
  std::string text(const char* name, std::string missing) {
    const json* value = find(name);
    if (value == nullptr) return missing;
    if (!value->is_string()) wrong(std::format(".{} is not a text", name));
    return value->is_string() ? value->get<std::string>() : missing;
  }
  bool truth(const char* name, bool missing) {
    const json* value = find(name);
    if (value == nullptr) return missing;
    if (!value->is_boolean()) wrong(std::format(".{} is neither true nor false", name));
    return value->is_boolean() ? value->get<bool>() : missing;
  }
  const json* find(const char* name) {
    known_.insert(name);
    return table_.is_object() && table_.contains(name) ? &table_.at(name) : nullptr;
  }
  /// Members that nobody asked for are mistakes.
  void end() {
    if (!table_.is_object()) return;
    for (const auto& [name, value] : table_.items()) {
      if (!known_.contains(name)) wrong(std::format(" has no member '{}'", name));
    }
  }
  void wrong(const std::string& what) {
    if (!error_) error_ = Error{ErrorKind::invalid_input, std::format("the scenario is wrong: {}{}", place_, what)};
  }
  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  const json& table_;
  std::string place_;
  std::optional<Error>& error_;
  std::set<std::string> known_;
};

Time seconds(double value) { return Time(static_cast<std::int64_t>(value * 1e9)); }

LineShape line(Table& table, const LineShape& missing) {
  LineShape shape;
  shape.delay = seconds(table.number("delay_ms", static_cast<double>(missing.delay.count()) * 1e-6, 0, max_seconds * 1000) * 1e-3);
  shape.jitter = seconds(table.number("jitter_ms", static_cast<double>(missing.jitter.count()) * 1e-6, 0, max_seconds * 1000) * 1e-3);
  shape.loss = table.number("loss", missing.loss, 0, 1);
  shape.burst = table.number("burst", missing.burst, 1, 1e6);
  shape.bytes_per_second = table.number("rate_mbit", missing.bytes_per_second * 8e-6, 0, 1e6) * 1e6 / 8;
  shape.queue_bytes = static_cast<std::uint64_t>(table.number("queue_kb", static_cast<double>(missing.queue_bytes) / 1024, 1, 1e7) * 1024);
  return shape;
}

/// The members of a line in a table itself are for both directions, its tables `up` and `down` for one.
void lines(Table& table, const Site& missing, Site& site, std::optional<Error>& error) {
  site.up = line(table, missing.up);
  site.down = line(table, missing.down);
  for (auto [name, shape] : {std::pair<const char*, LineShape*>{"up", &site.up}, {"down", &site.down}}) {
    const json* found = table.find(name);
    if (found == nullptr) continue;
    Table own(*found, table.place() + "." + name, error);
    *shape = line(own, *shape);
    own.end();
  }
}

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
    Site missing;
    if (const json* defaults = top.find("defaults"); defaults != nullptr) {
      Table table(*defaults, "[defaults]", error_);
      lines(table, {}, missing, error_);
      table.end();
    }
    // A NAT's line is its own; what lies behind has a line of no length unless it says otherwise.
    each(top, "nat", [&](Table& table) { add_nat(table, missing); });
    each(top, "node", [&](Table& table) { add_nodes(table, missing); });
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

  void add_nat(Table& table, const Site& missing) {
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
    site.nat = nat;
    add(table, std::move(site), table.text("name", ""));
  }

  void add_nodes(Table& table, const Site& missing) {
    const auto count = static_cast<std::size_t>(table.number("count", 1, 1, max_sites));
    const std::string name = table.text("name", "");
    for (std::size_t i = 1; i <= count && !error_; ++i) {
      add(table, placed(table, missing), count == 1 ? name : name + std::to_string(i));
      ++nodes_;
    }
  }

  Site placed(Table& table, const Site& missing) {
    Site site;
    const std::string behind = table.text("behind", "");
    if (!behind.empty()) {
      const auto at = std::ranges::find(scenario_.sites, behind, &Site::name);
      if (at == scenario_.sites.end() || !at->nat)
        table.wrong(std::format(".behind names no [[nat]] above it: '{}'", behind));
      else
        site.behind = static_cast<std::size_t>(at - scenario_.sites.begin());
    }
    lines(table, site.behind ? Site{} : missing, site, error_);
    // Public addresses from the range for such tests (RFC 2544), private ones a network for each NAT.
    const auto neighbours = static_cast<Address>(std::ranges::count(scenario_.sites, site.behind, &Site::behind));
    site.address = site.behind ? (10u << 24) + (static_cast<Address>(*site.behind + 1) << 8) + 2 + neighbours
                               : (198u << 24) + (18u << 16) + 2 + neighbours;
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

  Scenario scenario_;
  std::optional<Error> error_;
  std::size_t nodes_ = 0;
};

}  // namespace

Result<Scenario> parse_scenario(std::string_view text) {
  const json all = json::parse(text, nullptr, false);
  if (all.is_discarded()) return fail(ErrorKind::invalid_input, "the scenario is not JSON");
  return Reader().read(all);
}

}  // namespace linkcpp::lab
