// The findings for people and for programs. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "doctor/advice.h"
#include "doctor/examination.h"

namespace linkcpp::doctor {

/// {"ok", "addresses", "nat": […], "router", "backbone", "token": […], "workers": […], "relays": […], "choice", "expect": […], "swarm",
/// "advice": [{"level", "text"}]}; what was not asked is null or empty.
nlohmann::json to_json(const Examination& findings, const std::vector<Advice>& advice);

/// Lines for a terminal.
std::string to_text(const Examination& findings, const std::vector<Advice>& advice);

}  // namespace linkcpp::doctor
