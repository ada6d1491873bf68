#include "store/source.h"

#include <algorithm>
#include <atomic>

#include "store/file.h"

namespace linkcpp::store {
namespace {

constexpr std::size_t read_block = 1u << 20;

std::unexpected<Error> cancelled() { return fail(ErrorKind::unavailable, "reading was stopped"); }

class StoreSource final : public SliceSource {
 public:
  explicit StoreSource(std::shared_ptr<const Store> store) : store_(std::move(store)) {}
  [[nodiscard]] std::string describe() const override { return std::format("the store {}", store_->folder().string()); }

  Result<> read(const Wanted& wanted, std::uint64_t offset, const Sink& sink) override {
    // Not has(): that removes damaged objects, and this store may be somebody else's.
    const auto path = store_->path_of(wanted.digest);
    auto file = open_to_read(path, true);
    if (!file) return pass(file);
    auto bytes = size_of(*file, path);
    if (!bytes) return pass(bytes);
    if (*bytes != wanted.bytes) return fail(ErrorKind::not_found, "{} has {} bytes, not {}", path.string(), *bytes, wanted.bytes);
    Bytes block(static_cast<std::size_t>(std::min<std::uint64_t>(wanted.bytes, read_block)));
    while (offset < wanted.bytes) {
      if (cancelled_) return cancelled();
      const auto part = std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), wanted.bytes - offset)));
      if (auto read = read_at(*file, offset, part, path); !read) return read;
      if (auto taken = sink(part); !taken) return taken;
      offset += part.size();
    }
    return {};
  }
  void cancel() noexcept override { cancelled_ = true; }

 private:
  std::shared_ptr<const Store> store_;
  std::atomic<bool> cancelled_{false};
};

class GgufSource final : public SliceSource {
 public:
  GgufSource(std::shared_ptr<const SliceIndex> index, std::vector<std::filesystem::path> paths, std::vector<File> files)
      : index_(std::move(index)), paths_(std::move(paths)), files_(std::move(files)) {}
  [[nodiscard]] std::string describe() const override {
    return paths_.size() == 1 ? paths_[0].string() : std::format("{} and its other parts", paths_[0].string());
  }

  Result<> read(const Wanted& wanted, std::uint64_t offset, const Sink& sink) override {
    const LayerSlices* layer = index_->find(wanted.key.layer);
    if (layer == nullptr || wanted.key.expert >= layer->slices.size() || layer->slices[wanted.key.expert] != wanted.digest ||
        layer->slice_bytes() != wanted.bytes) {
      return fail(ErrorKind::not_found, "slice {} is not one of {}", wire::to_hex(wanted.digest), describe());
    }
    Bytes block;
    while (offset < wanted.bytes) {
      if (cancelled_) return cancelled();
      block.assign(static_cast<std::size_t>(std::min<std::uint64_t>(read_block, wanted.bytes - offset)), std::byte{0});  // gaps are zeros
      for (const auto& piece : pieces_of(*layer, wanted.key.expert, offset, block.size())) {
        const auto to =
            std::span(block).subspan(static_cast<std::size_t>(piece.object_offset - offset), static_cast<std::size_t>(piece.bytes));
        if (auto read = read_at(files_[piece.file], piece.file_offset, to, paths_[piece.file]); !read) return read;
      }
      if (auto taken = sink(block); !taken) return taken;
      offset += block.size();
    }
    return {};
  }
  void cancel() noexcept override { cancelled_ = true; }

 private:
  std::shared_ptr<const SliceIndex> index_;
  std::vector<std::filesystem::path> paths_;
  std::vector<File> files_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

std::unique_ptr<SliceSource> store_source(std::shared_ptr<const Store> store) { return std::make_unique<StoreSource>(std::move(store)); }

Result<std::unique_ptr<SliceSource>> gguf_source(std::shared_ptr<const SliceIndex> index, std::vector<std::filesystem::path> paths) {
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
  return std::make_unique<GgufSource>(std::move(index), std::move(paths), std::move(files));
}

}  // namespace linkcpp::store
