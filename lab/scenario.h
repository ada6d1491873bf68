// What a scenario file says, after lab/run has read it (TOML) and handed it on as JSON. lab/README.md describes the members.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "firewall.h"
#include "line.h"
#include "nat.h"
#include "packet6.h"

namespace linkcpp::lab {

/// Where an address counts: behind a NAT (its number), or in the public network.
using Realm = std::optional<std::size_t>;

/// A node, or a NAT with nodes (or NATs) behind it.
struct Site {
  std::string name;
  Address address = 0;               ///< in the realm it lies in; a NAT's outside
  std::optional<Address6> address6;  ///< everywhere the same; nodes only
  Realm behind;                      ///< the NAT whose inner realm it lies in
  LineShape up, down;                ///< its access line
  Filter filter;                     ///< on that line
  std::optional<NatShape> nat;       ///< it is a NAT
};

/// A way between two neighbours that is longer than their lines, in one direction.
struct Path {
  std::size_t from = 0, to = 0;
  Time delay{};
};

struct Scenario {
  std::uint64_t seed = 1;
  std::vector<Site> sites;  ///< NATs come before what is behind them
  std::vector<Path> paths;
};

/// The addresses of a realm, one after the other: public ones from the ranges for such tests (RFC 2544, RFC 5180), private ones a network
/// for each NAT.
Address address_of(Realm realm, std::size_t number);
Address6 address6_of(Realm realm, std::size_t number);

/// `invalid_input` with the member and what is wrong: unknown members, shares outside 0 to 1, names that are there twice or not at all,
/// more than 200 sites.
Result<Scenario> parse_scenario(std::string_view json);

}  // namespace linkcpp::lab
