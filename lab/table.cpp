#include "table.h"

#include <cmath>
#include <format>

namespace linkcpp::lab {
namespace {

using nlohmann::json;

constexpr std::size_t max_ports = 100;

LineShape read_line(Table& table, const LineShape& missing) {
  LineShape shape;
  shape.delay = milliseconds(table, "delay_ms", missing.delay);
  shape.jitter = milliseconds(table, "jitter_ms", missing.jitter);
  shape.loss = table.number("loss", missing.loss, 0, 1);
  shape.burst = table.number("burst", missing.burst, 1, 1e6);
  shape.bytes_per_second = table.number("rate_mbit", missing.bytes_per_second * 8e-6, 0, 1e6) * 1e6 / 8;
  shape.queue_bytes = static_cast<std::uint64_t>(table.number("queue_kb", static_cast<double>(missing.queue_bytes) / 1024, 1, 1e7) * 1024);
  return shape;
}

}  // namespace

Table::Table(const json& table, std::string place, std::optional<Error>& error) : table_(table), place_(std::move(place)), error_(error) {
  if (!table.is_object()) wrong("is not a table");
}

double Table::number(const char* name, double missing, double least, double most) {
  const json* value = find(name);
  if (value == nullptr) return missing;
  const double found = value->is_number() ? value->get<double>() : std::nan("");
  if (found >= least && found <= most) return found;
  wrong(std::format(".{} is not a number from {} to {}", name, least, most));
  return missing;
}

std::string Table::text(const char* name, std::string missing) {
  const json* value = find(name);
  if (value == nullptr) return missing;
  if (!value->is_string()) wrong(std::format(".{} is not a text", name));
  return value->is_string() ? value->get<std::string>() : missing;
}

bool Table::truth(const char* name, bool missing) {
  const json* value = find(name);
  if (value == nullptr) return missing;
  if (!value->is_boolean()) wrong(std::format(".{} is neither true nor false", name));
  return value->is_boolean() ? value->get<bool>() : missing;
}

std::vector<std::uint16_t> Table::ports(const char* name) {
  const json* value = find(name);
  std::vector<std::uint16_t> ports;
  if (value == nullptr) return ports;
  if (!value->is_array() || value->empty() || value->size() > max_ports) {
    wrong(std::format(".{} is not a list of 1 to {} ports", name, max_ports));
    return ports;
  }
  for (const json& port : *value) {
    const double number = port.is_number_integer() ? port.get<double>() : 0;
    if (number < 1 || number > UINT16_MAX)
      wrong(std::format(".{} holds what is no port", name));
    else
      ports.push_back(static_cast<std::uint16_t>(number));
  }
  return ports;
}

const json* Table::find(const char* name) {
  known_.insert(name);
  return table_.is_object() && table_.contains(name) ? &table_.at(name) : nullptr;
}

void Table::end() {
  if (!table_.is_object()) return;
  for (const auto& [name, value] : table_.items()) {
    if (!known_.contains(name)) wrong(std::format(" has no member '{}'", name));
  }
}

void Table::wrong(const std::string& what) {
  if (!error_) error_ = Error{ErrorKind::invalid_input, std::format("the scenario is wrong: {}{}", place_, what)};
}

Lines read_lines(Table& table, const Lines& missing, std::optional<Error>& error) {
  Lines lines{.up = read_line(table, missing.up), .down = {}};
  // Once more for the other direction: what is missing may differ between them.
  lines.down = read_line(table, missing.down);
  for (auto [name, shape] : {std::pair<const char*, LineShape*>{"up", &lines.up}, {"down", &lines.down}}) {
    const json* found = table.find(name);
    if (found == nullptr) continue;
    Table own(*found, table.place() + "." + name, error);
    *shape = read_line(own, *shape);
    own.end();
  }
  return lines;
}

Time seconds(double value) { return Time(static_cast<std::int64_t>(value * 1e9)); }

Time milliseconds(Table& table, const char* name, Time missing) {
  return seconds(table.number(name, static_cast<double>(missing.count()) * 1e-6, 0, max_seconds * 1000) * 1e-3);
}

}  // namespace linkcpp::lab
