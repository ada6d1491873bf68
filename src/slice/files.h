// Small files, whole or not there.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"

namespace linkcpp::slice {

inline constexpr std::string_view index_file_name = "index.json";

/// Reads a file of at most `most` bytes. `not_found`, `io`, or `invalid_input` if it is larger.
Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t most);
/// Writes a file under a temporary name, then renames it into place.
Result<> write_text(const std::filesystem::path& path, std::string_view text);
/// Makes a folder and those above it.
Result<> make_folder(const std::filesystem::path& path);

}  // namespace linkcpp::slice
