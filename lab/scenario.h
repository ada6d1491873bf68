// What a scenario file says, after lab/run has read it (TOML) and handed it on as JSON. lab/README.md describes the members.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "line.h"
#include "nat.h"

namespace linkcpp::lab {

/// A node, or a NAT with nodes (or NATs) behind it.
struct Site {
  std::string name;
  Address address = 0;                ///< in the realm it lies in; a NAT's outside
  std::optional<std::size_t> behind;  ///< the NAT whose inner realm it lies in; none: the public network
  LineShape up, down;                 ///< its access line
  std::optional<NatShape> nat;        ///< it is a NAT
};

struct Scenario {
  std::uint64_t seed = 1;
  std::vector<Site> sites;  ///< NATs come before what is behind them
};

/// `invalid_input` with the member and what is wrong: unknown members, shares outside 0 to 1, names that are there twice or not at all,
/// more than 200 sites.
Result<Scenario> parse_scenario(std::string_view json);

}  // namespace linkcpp::lab
