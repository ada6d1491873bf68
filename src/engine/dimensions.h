// A model's dimensions, written down in a JSON file, as an anatomy: what `linkcpp inspect` computes of a model that is not here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/anatomy.h"

namespace linkcpp::engine {

/// A model as its dimensions make it. The anatomy is that of a GGUF with these dimensions and tensor types, except that it has
/// no files, no offsets and no digest; total_bytes equals expert_bytes if the file does not list the backbone's matrices.
struct Dimensions {
  Anatomy anatomy;
  std::uint64_t published_parameters = 0;  ///< 0 if not given
  std::uint64_t parameters = 0;            ///< counted from all matrices; 0 if the backbone's are not listed
};

/// Reads a file such as models/dimensions/NAME.json; models/dimensions/README.md describes the keys. Fails with a sentence that
/// names the file, the key and what is wrong: unknown, missing, of the wrong type, out of range, contradictory or without source.
Result<Dimensions> read_dimensions(const std::filesystem::path& path);

/// The same from text; `name` stands for the file in errors.
Result<Dimensions> parse_dimensions(std::string_view text, std::string_view name);

}  // namespace linkcpp::engine
