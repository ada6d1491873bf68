// How workers are connected, out of a backbone's GET /v1/swarm. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "doctor/examination.h"

namespace linkcpp::doctor {

/// Members that are missing or of a wrong type are left empty: the backbone may be older or newer than this program.
void read_swarm(const nlohmann::json& swarm, SwarmFinding& finding);

}  // namespace linkcpp::doctor
