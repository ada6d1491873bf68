#include "slice/index_file.h"

#include <unistd.h>

#include <cstdlib>

#include "slice/files.h"

namespace linkcpp::slice {
namespace {

namespace fs = std::filesystem;

fs::path beside(const engine::Anatomy& anatomy) { return anatomy.files[0].string() + ".slices.json"; }

fs::path in_cache(const engine::Anatomy& anatomy) {
  const auto environment = [](const char* name) { return std::string(std::getenv(name) != nullptr ? std::getenv(name) : ""); };
  fs::path cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = fs::path(environment("HOME")) / ".cache";
  return cache / "linkcpp" / "indexes" / (wire::to_hex(anatomy.digest) + ".json");
}

/// Whether an index was written after the last change of every file of the model.
bool is_newer(const fs::path& index, const std::vector<fs::path>& files) {
  std::error_code error;
  const auto written = fs::last_write_time(index, error);
  if (error) return false;
  for (const auto& file : files) {
    if (fs::last_write_time(file, error) > written || error) return false;
  }
  return true;
}

/// The same model, files and places: all but the slices' digests.
bool same_layout(store::SliceIndex index, const store::SliceIndex& planned) {
  for (auto& layer : index.layers) layer.slices.assign(layer.slices.size(), {});
  return index == planned;
}

std::optional<IndexFile> load(const fs::path& path, const engine::Anatomy& anatomy, const store::SliceIndex& planned) {
  if (!is_newer(path, anatomy.files)) return std::nullopt;
  auto text = read_text(path, store::max_index_bytes);
  if (!text) return std::nullopt;
  auto index = store::decode_index(*text);
  if (!index || !same_layout(*index, planned)) return std::nullopt;
  const auto digest = store::index_digest(*text);
  return IndexFile{.index = std::move(*index), .text = std::move(*text), .digest = digest, .path = path, .made = false};
}

}  // namespace

fs::path index_path_of(const engine::Anatomy& anatomy) {
  const fs::path path = beside(anatomy), folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  return ::access(folder.c_str(), W_OK) == 0 ? path : in_cache(anatomy);
}

Result<IndexFile> load_or_make_index(const engine::Anatomy& anatomy, const Options& options) {
  auto planned = plan_index(anatomy);
  if (!planned) return pass(planned);
  for (const fs::path& path : {beside(anatomy), in_cache(anatomy)}) {
    if (auto loaded = load(path, anatomy, *planned)) return std::move(*loaded);
  }
  auto index = make_index(anatomy, options);
  if (!index) return pass(index);
  IndexFile file{.index = std::move(*index), .text = {}, .digest = {}, .path = index_path_of(anatomy), .made = true};
  file.text = store::encode_index(file.index);
  file.digest = store::index_digest(file.text);
  if (!make_folder(fs::absolute(file.path).parent_path()) || !write_text(file.path, file.text)) file.path.clear();
  return file;
}

}  // namespace linkcpp::slice
