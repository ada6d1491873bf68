// What an interrupted cut has found out: digests of slices, so that the next run need not read them again.
//
// A text file: a line that names the model and its files, then "LAYER EXPERT DIGEST" for each slice. A last line that a killed
// process left half written is ignored.
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "store/index.h"

namespace linkcpp::slice {

class Journal {
 public:
  /// Opens or begins the journal of a cut. One of another model (or of files that have changed since) begins anew. `stamp`: a line
  /// that names the model and its files.
  static Result<Journal> open(const std::filesystem::path& path, const std::string& stamp);
  /// Digests of runs before.
  [[nodiscard]] const std::map<store::SliceKey, store::Digest>& known() const { return known_; }
  /// Adds a slice. A journal that cannot be written costs time in the next run, no more.
  void add(store::SliceKey key, const store::Digest& digest);
  /// The cut is done.
  void remove();

 private:
  explicit Journal(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
  std::map<store::SliceKey, store::Digest> known_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, &std::fclose};
};

}  // namespace linkcpp::slice
