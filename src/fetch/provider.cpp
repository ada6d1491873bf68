#include <algorithm>
#include <unordered_map>

#include "fetch/server.h"
#include "store/file.h"
#include "store/model_files.h"

namespace linkcpp::fetch {
namespace {

using store::Digest;

class StoreProvider final : public SliceProvider {
 public:
  explicit StoreProvider(std::shared_ptr<const store::Store> store) : store_(std::move(store)) {}
  [[nodiscard]] std::optional<std::uint64_t> bytes_of(const Digest& digest) const override {
    const auto path = store_->path_of(digest);
    auto file = store::open_to_read(path, true);
    if (!file) return std::nullopt;
    auto bytes = store::size_of(*file, path);
    if (!bytes) return std::nullopt;
    return *bytes;
  }
  Result<> read(const Digest& digest, std::uint64_t offset, std::span<std::byte> to) const override {
    return store_->read(digest, offset, to);
  }
  [[nodiscard]] Result<std::string> index(const Digest& digest) const override { return store_->index(digest); }

 private:
  std::shared_ptr<const store::Store> store_;
};

struct DigestHash {
  std::size_t operator()(const Digest& digest) const {
    std::size_t value = 0;
    std::copy_n(digest.begin(), sizeof value, reinterpret_cast<unsigned char*>(&value));
    return value;
  }
};

class GgufProvider final : public SliceProvider {
 public:
  explicit GgufProvider(store::ModelFiles files) : files_(std::move(files)) {
    for (const auto& layer : files_.index().layers) {
      for (std::size_t expert = 0; expert < layer.slices.size(); ++expert) {
        places_.try_emplace(layer.slices[expert], Place{&layer, static_cast<std::uint32_t>(expert)});
      }
    }
    text_ = encode_index(files_.index());
    digest_ = store::index_digest(text_);
  }

  [[nodiscard]] std::optional<std::uint64_t> bytes_of(const Digest& digest) const override {
    const auto place = places_.find(digest);
    if (place == places_.end()) return std::nullopt;
    return place->second.layer->slice_bytes();
  }

  Result<> read(const Digest& digest, std::uint64_t offset, std::span<std::byte> to) const override {
    const auto place = places_.find(digest);
    if (place == places_.end()) return fail(ErrorKind::not_found, "slice {} is not one of the model's", wire::to_hex(digest));
    return files_.read(*place->second.layer, place->second.expert, offset, to);
  }

  [[nodiscard]] Result<std::string> index(const Digest& digest) const override {
    if (digest != digest_) return fail(ErrorKind::not_found, "the index {} is not here", wire::to_hex(digest));
    return text_;
  }

 private:
  struct Place {
    const store::LayerSlices* layer;
    std::uint32_t expert;
  };
  store::ModelFiles files_;
  std::unordered_map<Digest, Place, DigestHash> places_;
  std::string text_;
  Digest digest_{};
};

}  // namespace

std::shared_ptr<SliceProvider> provide_store(std::shared_ptr<const store::Store> store) {
  return std::make_shared<StoreProvider>(std::move(store));
}

Result<std::shared_ptr<SliceProvider>> provide_gguf(std::shared_ptr<const store::SliceIndex> index,
                                                    const std::vector<std::filesystem::path>& paths) {
  auto files = store::ModelFiles::open(std::move(index), paths);
  if (!files) return pass(files);
  return std::make_shared<GgufProvider>(std::move(*files));
}

}  // namespace linkcpp::fetch
