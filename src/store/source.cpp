#include "store/source.h"

#include <algorithm>
#include <atomic>

#include "store/file.h"
#include "store/model_files.h"

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
  explicit GgufSource(ModelFiles files) : files_(std::move(files)) {}
  [[nodiscard]] std::string describe() const override {
    const auto& paths = files_.paths();
    return paths.size() == 1 ? paths[0].string() : std::format("{} and its other parts", paths[0].string());
  }

  Result<> read(const Wanted& wanted, std::uint64_t offset, const Sink& sink) override {
    const LayerSlices* layer = layer_with(files_.index(), wanted);
    if (layer == nullptr) return fail(ErrorKind::not_found, "slice {} is not one of {}", wire::to_hex(wanted.digest), describe());
    Bytes block(static_cast<std::size_t>(std::min<std::uint64_t>(wanted.bytes, read_block)));
    while (offset < wanted.bytes) {
      if (cancelled_) return cancelled();
      const auto part = std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), wanted.bytes - offset)));
      if (auto read = files_.read(*layer, wanted.key.expert, offset, part); !read) return read;
      if (auto taken = sink(part); !taken) return taken;
      offset += part.size();
    }
    return {};
  }
  void cancel() noexcept override { cancelled_ = true; }

 private:
  ModelFiles files_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

std::unique_ptr<SliceSource> store_source(std::shared_ptr<const Store> store) { return std::make_unique<StoreSource>(std::move(store)); }

Result<std::unique_ptr<SliceSource>> gguf_source(std::shared_ptr<const SliceIndex> index, std::vector<std::filesystem::path> paths) {
  auto files = ModelFiles::open(std::move(index), std::move(paths));
  if (!files) return pass(files);
  return std::make_unique<GgufSource>(std::move(*files));
}

const LayerSlices* layer_with(const SliceIndex& index, const Wanted& wanted) {
  const LayerSlices* layer = index.find(wanted.key.layer);
  const bool same = layer != nullptr && wanted.key.expert < layer->slices.size() && layer->slices[wanted.key.expert] == wanted.digest &&
                    layer->slice_bytes() == wanted.bytes;
  return same ? layer : nullptr;
}

}  // namespace linkcpp::store
