// A private folder that goes away with its owner.
#pragma once

#include <filesystem>

#include "base/error.h"

namespace linkcpp::serve {

/// A fresh folder with mode 0700 under the system's folder for temporary files, removed with all it holds on destruction.
class TempDir {
 public:
  static Result<TempDir> make(const std::string& prefix);
  TempDir(TempDir&& other) noexcept;
  TempDir& operator=(TempDir&& other) noexcept;
  ~TempDir();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Leaves the folder in place.
  void keep();

 private:
  explicit TempDir(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
  bool keep_ = false;
};

/// Writes a file with mode 0600 under a name that does not exist yet.
Result<> write_private_file(const std::filesystem::path& path, const std::string& text);

}  // namespace linkcpp::serve
