// Cuts a model into content-addressed expert slices: one pass over the experts, each read once, hashed and (if wanted) written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/anatomy.h"
#include "engine/expert_host.h"
#include "store/index.h"

namespace linkcpp::slice {

/// Called on the calling thread, about ten times a second, with bytes done and of all; false cancels.
using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

struct Options {
  int threads = 0;    ///< that read and hash; 0: as many as cores, at most 8
  Progress progress;  ///< may be empty
};

/// The index of a model whose digests are still zero: where every slice lies. Fails with `invalid_input`, with the reason, if the model
/// cannot be cut: a backbone without experts, slices that are no whole blocks, more experts than slices can be named.
Result<store::SliceIndex> plan_index(const engine::Anatomy& anatomy);

/// The index of a model: reads and hashes every expert. Fails with `unavailable` if cancelled.
Result<store::SliceIndex> make_index(const engine::Anatomy& anatomy, const Options& options);

struct CutRequest {
  std::filesystem::path folder;
  std::vector<engine::ExpertRange> experts;  ///< whose objects are written; all are hashed, for the index
  bool backbone = true;
};

struct CutResult {
  std::string index;  ///< its text
  store::Digest digest{};
  std::uint64_t written = 0, written_bytes = 0;  ///< objects
  std::uint64_t kept = 0;                        ///< objects that a run before has written
};

/// Cuts into a folder (docs/slices.md). A run that was interrupted, even by SIGKILL, goes on where it stopped. Fails with `invalid_input`
/// if the folder holds something else or another model, `io` (a full disk is seen before anything is written), `unavailable` if cancelled.
Result<CutResult> cut(const engine::Anatomy& anatomy, const CutRequest& request, const Options& options);

struct Verified {
  std::uint64_t objects = 0, bytes = 0;  ///< sound ones
  std::vector<std::string> damaged;      ///< "layer 3, expert 5: objects/ab/… …": removed, so that another cut writes them again
  std::uint64_t missing = 0;             ///< of the wanted experts
  std::string first_missing;
};
/// Hashes the objects of a sliced folder against its index. `experts`: which must be there (the language of --experts; the folder's index
/// says how many there are).
Result<Verified> verify(const std::filesystem::path& folder, const std::string& experts, const Options& options);

}  // namespace linkcpp::slice
