#include "swarm/config.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace linkcpp::swarm {
namespace {

using Json = nlohmann::json;

std::chrono::milliseconds milliseconds(const Json& json, const char* key, std::chrono::milliseconds otherwise) {
  const auto value = json.value(key, otherwise.count());
  if (value < 1 || value > 86'400'000) throw std::out_of_range(std::string(key) + " must lie between 1 and 86400000 milliseconds");
  return std::chrono::milliseconds(value);
}

Result<Config> parse(const Json& json, const std::string& file) {
  static const std::set<std::string> known{"model",        "home",      "name",    "listen",     "workers",     "mode",
                                           "wire",         "base",      "overlap", "repack",     "deadline_ms", "resend_floor_ms",
                                           "keep_warm_ms", "status_fd", "index",   "slice_port", "sources",     "path"};
  for (const auto& [key, value] : json.items()) {
    if (!known.contains(key)) return fail(ErrorKind::invalid_input, "{}: unknown key '{}'", file, key);
  }
  Config config;
  config.model = json.at("model").get<std::string>();
  config.home = json.value("home", config.home);
  config.name = json.value("name", config.name);
  if (const auto listen = json.find("listen"); listen != json.end() && listen->is_string()) {
    if (!listen->get<std::string>().empty()) config.listen = {listen->get<std::string>()};
  } else {
    config.listen = json.value("listen", config.listen);
  }
  config.session.find_direct = json.value("path", "auto") != "fixed";
  config.session.finder.map_port = config.session.find_direct;
  config.workers = json.value("workers", config.workers);
  auto mode = wire::parse_combine_mode(json.value("mode", "raw"));
  if (!mode) return pass(mode);
  config.mode = *mode;
  auto type = wire::parse_row_type(json.value("wire", "f32"));
  if (!type) return pass(type);
  config.wire = *type;
  config.base = json.value("base", config.base);
  config.overlap = json.value("overlap", config.overlap);
  config.repack = json.value("repack", config.repack);
  config.deadline = milliseconds(json, "deadline_ms", config.deadline);
  config.resend_floor = milliseconds(json, "resend_floor_ms", config.resend_floor);
  config.keep_warm = milliseconds(json, "keep_warm_ms", config.keep_warm);
  config.index = json.value("index", std::string());
  const int port = json.value("slice_port", 0);
  if (port < 0 || port > UINT16_MAX) return fail(ErrorKind::invalid_input, "{}: slice_port {} is no port", file, port);
  config.slice_port = static_cast<std::uint16_t>(port);
  config.sources = json.value("sources", config.sources);
  config.status_fd = json.value("status_fd", config.status_fd);
  return config;
}

}  // namespace

Result<Config> Config::read(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) return fail(ErrorKind::not_found, "cannot read the configuration file '{}' (from LINKCPP_CONFIG)", file.string());
  try {
    return parse(Json::parse(in), file.string());
  } catch (const std::exception& error) {
    return fail(ErrorKind::invalid_input, "{}: {}", file.string(), error.what());
  }
}

}  // namespace linkcpp::swarm
