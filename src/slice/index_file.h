// The slice index of a model, kept beside it: hashing a large model takes minutes, and it need be done only once.
#pragma once

#include <filesystem>
#include <string>

#include "slice/cutter.h"

namespace linkcpp::slice {

/// An index and where it was found.
struct IndexFile {
  store::SliceIndex index;
  std::string text;
  store::Digest digest{};
  std::filesystem::path path;  ///< empty if it could not be kept
  bool made = false;           ///< anew, not loaded
};

/// Where a model's index is kept: MODEL.slices.json beside its first file, or, if that folder is not writable,
/// $XDG_CACHE_HOME/linkcpp/indexes (default ~/.cache/linkcpp/indexes), named by the model digest.
std::filesystem::path index_path_of(const engine::Anatomy& anatomy);

/// Loads the index that is kept, if it is this model's and its files are as they were when it was made: the same layout, sizes and times
/// (an index older than one of the files is made again); else makes it and keeps it. Not being able to keep it is no error.
Result<IndexFile> load_or_make_index(const engine::Anatomy& anatomy, const Options& options);

}  // namespace linkcpp::slice
