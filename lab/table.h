// Reading tables of a scenario (or of a change to it): every member is checked, and those that nobody asked for are mistakes.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "line.h"

namespace linkcpp::lab {

/// Reads members of one table and remembers in `error` the first thing that is wrong. Both must outlive it.
class Table {
 public:
  Table(const nlohmann::json& table, std::string place, std::optional<Error>& error);
  double number(const char* name, double missing, double least, double most);
  std::string text(const char* name, std::string missing);
  bool truth(const char* name, bool missing);
  /// A list of TCP or UDP ports.
  std::vector<std::uint16_t> ports(const char* name);
  const nlohmann::json* find(const char* name);
  /// Members that nobody asked for are mistakes.
  void end();
  void wrong(const std::string& what);
  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  const nlohmann::json& table_;
  std::string place_;
  std::optional<Error>& error_;
  std::set<std::string> known_;
};

/// Both directions of a line.
struct Lines {
  LineShape up, down;
};
/// The members of a line in a table itself are for both directions, its tables `up` and `down` for one.
Lines read_lines(Table& table, const Lines& missing, std::optional<Error>& error);

/// Longest time in a scenario.
inline constexpr double max_seconds = 3600;
Time seconds(double value);
/// "delay_ms" and the like.
Time milliseconds(Table& table, const char* name, Time missing);

}  // namespace linkcpp::lab
