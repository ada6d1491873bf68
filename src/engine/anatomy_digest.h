// The model digest: names a model's routed experts and what selects them, so that a worker never computes for another model.
#pragma once

#include <span>
#include <string_view>

#include "engine/anatomy.h"

namespace linkcpp::engine {

/// A range of bytes in one of the model's files.
struct FileRange {
  std::string name;  ///< tensor that it belongs to
  std::string type_name;
  std::uint32_t file = 0;  ///< index into Anatomy::files
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Digest of an anatomy whose other fields are filled in. `whole`: the tensors whose every byte counts (routers, output norm).
/// See Anatomy::digest for the definition. Reads those ranges and the samples; fails with io if a file cannot be read.
Result<wire::Digest> model_digest(const Anatomy& anatomy, std::vector<FileRange> whole);

}  // namespace linkcpp::engine
