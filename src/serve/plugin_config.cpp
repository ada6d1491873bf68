#include "serve/plugin_config.h"

namespace linkcpp::serve {

nlohmann::json to_json(const PluginConfig& config) {
  nlohmann::json json{{"model", config.model.string()},
                      {"home", config.home},
                      {"name", config.name},
                      {"workers", config.workers},
                      {"mode", config.mode},
                      {"wire", config.wire},
                      {"base", config.base},
                      {"overlap", config.overlap},
                      {"repack", config.repack},
                      {"deadline_ms", config.deadline_ms},
                      {"resend_floor_ms", config.resend_floor_ms},
                      {"status_fd", config.status_fd}};
  if (!config.index.empty()) {
    json["index"] = config.index.string();
    json["slice_port"] = config.slice_port;
    json["sources"] = config.sources;
  }
  if (!config.listen.empty()) json["listen"] = config.listen;
  if (!config.find_direct) json["path"] = "fixed";
  return json;
}

}  // namespace linkcpp::serve
