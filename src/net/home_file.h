// Secrets in a node's home folder: files that only their owner may read, created once whoever comes first.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"

namespace linkcpp::net {

/// Returns the contents of `folder/name`, which is created with what `make` returns if it does not exist: mode 0600, folder 0700,
/// complete or not at all. Of several processes that start at once one creates the file and all return its contents.
/// Fails with `invalid_input` if others can read the file, and with `io` if the system refuses.
Result<std::string> load_or_create_private_file(const std::filesystem::path& folder, const std::string& name,
                                                const std::function<Result<std::string>()>& make);

}  // namespace linkcpp::net
