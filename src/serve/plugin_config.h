// What `linkcpp serve` tells the plugin: the file named by $LINKCPP_CONFIG.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace linkcpp::serve {

struct PluginConfig {
  std::filesystem::path model;
  std::string home, name;
  std::vector<std::string> listen;   ///< addresses, also of relays; empty: none
  bool find_direct = true;           ///< from relays to direct paths
  std::vector<std::string> workers;  ///< to dial
  std::string mode = "raw", wire = "f32", base = "CPU";
  bool overlap = true, repack = true;
  int deadline_ms = 10'000, resend_floor_ms = 250;
  std::filesystem::path index;       ///< slice index; empty: experts are not assigned
  std::uint16_t slice_port = 0;      ///< where slices are given
  std::vector<std::string> sources;  ///< web servers
  int status_fd = -1;
};

nlohmann::json to_json(const PluginConfig& config);

}  // namespace linkcpp::serve
