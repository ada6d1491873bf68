// The plugin's configuration: a JSON file named by $LINKCPP_CONFIG, written by `linkcpp serve` (or by hand, or by tests).
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/session_link.h"
#include "wire/messages.h"

namespace linkcpp::swarm {

struct Config {
  std::filesystem::path model;  ///< the GGUF that the engine loads too; names the experts and gives the digest
  std::string home;             ///< identity and swarm secret; empty: the default folder
  std::string name = "backbone";
  std::vector<std::string> listen;   ///< for workers that dial in: "host:port", "relay://…"; empty: none
  std::vector<std::string> workers;  ///< addresses of workers that listen
  wire::CombineMode mode = wire::CombineMode::raw;
  wire::RowType wire = wire::RowType::f32;
  std::string base = "CPU";  ///< ggml device to wrap
  bool overlap = true;
  bool repack = true;  ///< keep the CPU's repacked layout for everything that is not an expert
  std::chrono::milliseconds deadline{10'000};
  std::chrono::milliseconds resend_floor{250};
  std::chrono::milliseconds keep_warm{100};
  std::filesystem::path index;       ///< slice index of the model, for workers that offer room; may come to be later; empty: none
  std::uint16_t slice_port = 0;      ///< where this machine gives slices; 0: it does not
  std::vector<std::string> sources;  ///< URLs of web servers that have the slices or the model
  net::SessionKnobs session;
  int status_fd = -1;  ///< events as JSON lines; -1: none

  /// Fails with a sentence that names the file and the key.
  static Result<Config> read(const std::filesystem::path& file);
};

}  // namespace linkcpp::swarm
