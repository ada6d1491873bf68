#include "store/model_files.h"

#include <algorithm>

namespace linkcpp::store {

Result<ModelFiles> ModelFiles::open(std::shared_ptr<const SliceIndex> index, std::vector<std::filesystem::path> paths) {
  if (paths.empty() || paths.size() != index->files.size()) {
    return fail(ErrorKind::invalid_input, "the model has {} files, and {} were given", index->files.size(), paths.size());
  }
  std::vector<File> files;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    auto file = open_to_read(paths[i]);
    if (!file) return pass(file);
    auto bytes = size_of(*file, paths[i]);
    if (!bytes) return pass(bytes);
    if (*bytes != index->files[i].bytes) {
      return fail(ErrorKind::invalid_input, "{} has {} bytes, and the index says {}: it is another file, or not whole", paths[i].string(),
                  *bytes, index->files[i].bytes);
    }
    files.push_back(std::move(*file));
  }
  return ModelFiles(std::move(index), std::move(paths), std::move(files));
}

Result<> ModelFiles::read(const LayerSlices& layer, std::uint32_t expert, std::uint64_t offset, std::span<std::byte> to) const {
  std::ranges::fill(to, std::byte{0});  // gaps are zeros
  for (const auto& piece : pieces_of(layer, expert, offset, to.size())) {
    const auto part = to.subspan(static_cast<std::size_t>(piece.object_offset - offset), static_cast<std::size_t>(piece.bytes));
    if (auto read = read_at(files_[piece.file], piece.file_offset, part, paths_[piece.file]); !read) return read;
  }
  return {};
}

}  // namespace linkcpp::store
