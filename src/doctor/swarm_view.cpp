#include "doctor/swarm_view.h"

#include "serve/status.h"

namespace linkcpp::doctor {
namespace {

using nlohmann::json;
using serve::number_of;
using serve::text_of;

const json& member(const json& object, const char* key) {
  static const json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

bool flag_of(const json& object, const char* key) {
  const json& value = member(object, key);
  return value.is_boolean() && value.get<bool>();
}

WorkerFinding::Path read_path(const json& path) {
  return {.kind = text_of(path, "kind"),
          .endpoint = text_of(path, "endpoint"),
          .rtt_ms = number_of(path, "rtt_ms"),
          .preferred = flag_of(path, "preferred")};
}

WorkerFinding read_worker(const json& worker, const json& tallies) {
  WorkerFinding finding{.name = text_of(worker, "name"),
                        .state = text_of(worker, "state"),
                        .transport = text_of(worker, "transport"),
                        .endpoint = text_of(worker, "endpoint"),
                        .reason = text_of(worker, "reason")};
  if (const json& tally = member(tallies, finding.name.c_str()); tally.is_object()) finding.rtt_ms = number_of(tally, "rtt_us") / 1000;
  for (const json& path : member(worker, "paths")) {
    if (path.is_object()) finding.paths.push_back(read_path(path));
  }
  finding.why = text_of(worker, "why");
  return finding;
}

}  // namespace

void read_swarm(const json& swarm, SwarmFinding& finding) {
  const json& tallies = member(member(swarm, "account"), "workers");
  const json& workers = member(swarm, "workers");
  if (workers.is_array()) {
    for (const json& worker : workers) {
      if (worker.is_object()) finding.workers.push_back(read_worker(worker, tallies));
    }
  }
  if (const json& coverage = member(swarm, "coverage"); coverage.is_object()) finding.missing = text_of(coverage, "missing");
}

}  // namespace linkcpp::doctor
