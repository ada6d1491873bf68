// Starting an engine on a backbone without experts, whose second file is a hole.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace linkcpp::serve {

/// What to add to an engine's environment so that mapping `files` does not make them resident: LINKCPP_HOLES names them, LD_PRELOAD the
/// library (behind what is preloaded already). Fails with `not_found` if the library is not installed, `io` if a file cannot be seen.
Result<std::map<std::string, std::optional<std::string>>> holes_environment(const std::vector<std::filesystem::path>& files);

}  // namespace linkcpp::serve
