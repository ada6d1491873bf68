// The expert slices that a worker holds, as ggml tensors on its device.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/anatomy.h"
#include "engine/expert_device.h"
#include "engine/expert_host.h"

namespace linkcpp::engine {

/// A stacked expert tensor. Mapped ones are the file's own [n_in, n_out, n_expert] and are indexed by global expert numbers;
/// uploaded ones have only the held slices [n_in, n_out, n_held], indexed by local numbers. A bias is [n_out, n].
struct ExpertWeight {
  ggml_tensor* tensor = nullptr;
  bool is_bias = false;
  bool local_ids = false;
  std::int64_t n_in = 0;  ///< 0 for a bias
  std::int64_t n_out = 0;
};

struct ExpertLayer {
  LayerKey key = 0;
  std::uint32_t n_expert = 0;
  std::vector<std::int32_t> local;                           ///< by global expert number: place among the held ones, or -1
  std::map<std::string, ExpertWeight, std::less<>> weights;  ///< by role
  ContextPtr context;                                        ///< of the tensors' descriptions
  std::vector<BufferPtr> buffers;                            ///< of uploaded tensors
  std::uint64_t bytes = 0;                                   ///< of held slices

  [[nodiscard]] bool holds(std::uint32_t expert) const { return expert < n_expert && local[expert] >= 0; }
};

/// A file's bytes, mapped on demand and read-only.
class FileMapping {
 public:
  static Result<std::unique_ptr<FileMapping>> open(const std::filesystem::path& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// madvise() on the pages of a range.
  void advise(std::size_t offset, std::size_t bytes, int advice) const;
  /// A host buffer around the whole mapping, made on first use.
  Result<ggml_backend_buffer_t> buffer();

 private:
  FileMapping(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  std::byte* data_;
  std::size_t size_;
  BufferPtr buffer_;
};

class ExpertWeights {
 public:
  /// Fails with `not_found` if the ranges select nothing, with `invalid_input` where a tensor cannot be computed on this device.
  static Result<std::unique_ptr<ExpertWeights>> open(const Anatomy& anatomy, const HostOptions& options, const ExpertDevice& device);

  [[nodiscard]] const ExpertLayer* find(LayerKey key) const;
  [[nodiscard]] std::vector<wire::LayerHolding> holdings() const;
  [[nodiscard]] std::uint64_t held_bytes() const;
  /// ExpertHost::hold(). Pointers to the layer's former weights end with it.
  Result<> hold(const MoeLayer& layer, const wire::LayerHolding& experts, const SliceReader& read, const HostOptions& options,
                const ExpertDevice& device);

 private:
  friend class WeightLoader;
  std::vector<std::unique_ptr<FileMapping>> files_;
  std::map<LayerKey, ExpertLayer> layers_;
};

}  // namespace linkcpp::engine
