// The model's own GGUF files as a place where slices lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "store/file.h"
#include "store/index.h"

namespace linkcpp::store {

/// Threading: all functions from any thread.
class ModelFiles {
 public:
  /// `paths` in the order of index->files. Fails with `not_found` or `invalid_input` if a file is missing or of another size than the index
  /// says.
  static Result<ModelFiles> open(std::shared_ptr<const SliceIndex> index, std::vector<std::filesystem::path> paths);

  [[nodiscard]] const SliceIndex& index() const { return *index_; }
  [[nodiscard]] const std::vector<std::filesystem::path>& paths() const { return paths_; }
  /// Bytes of a slice's object from `offset` on, put together from the files.
  Result<> read(const LayerSlices& layer, std::uint32_t expert, std::uint64_t offset, std::span<std::byte> to) const;

 private:
  ModelFiles(std::shared_ptr<const SliceIndex> index, std::vector<std::filesystem::path> paths, std::vector<File> files)
      : index_(std::move(index)), paths_(std::move(paths)), files_(std::move(files)) {}
  std::shared_ptr<const SliceIndex> index_;
  std::vector<std::filesystem::path> paths_;
  std::vector<File> files_;
};

}  // namespace linkcpp::store
