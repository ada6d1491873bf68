#include "engine/expert_weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

namespace linkcpp::engine {

// ---- FileMapping -----------------------------------------------------------------------------------------------------

Result<std::unique_ptr<FileMapping>> FileMapping::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(ErrorKind::io, "cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat status{};
  void* data = MAP_FAILED;
  std::size_t size = 0;
  if (::fstat(fd, &status) == 0 && status.st_size > 0) {
    size = static_cast<std::size_t>(status.st_size);
    // No MAP_POPULATE: a worker holds a part of a file that may be larger than its memory.
    data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) return fail(ErrorKind::io, "cannot map {}: {}", path.string(), size == 0 ? "it is empty" : std::strerror(error));
  return std::unique_ptr<FileMapping>(new FileMapping(static_cast<std::byte*>(data), size));
}

FileMapping::~FileMapping() {
  buffer_.reset();
  ::munmap(data_, size_);
}

void FileMapping::advise(std::size_t offset, std::size_t bytes, int advice) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = offset / page * page;
  ::madvise(data_ + first, std::min(size_, offset + bytes) - first, advice);
}

Result<ggml_backend_buffer_t> FileMapping::buffer() {
  if (!buffer_) {
    buffer_.reset(ggml_backend_cpu_buffer_from_ptr(data_, size_));
    if (!buffer_) return fail(ErrorKind::internal, "the engine refused a buffer around a mapped file");
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  }
  return buffer_.get();
}

// ---- loading ---------------------------------------------------------------------------------------------------------

namespace {

constexpr std::size_t tensor_alignment = 32;  // what the engine's host buffers promise their tensors

/// Types that are storage formats of weights, as opposed to intermediate and integer types: the engine has no kernels for those.
bool is_weight_type(ggml_type type) {
  if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) return true;
  return type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K && ggml_is_quantized(type);
}

/// A run of held experts that follow each other in the file.
struct Run {
  std::uint32_t first = 0, count = 0;
};
std::vector<Run> runs_of(const ExpertLayer& layer) {
  std::vector<Run> runs;
  for (std::uint32_t e = 0; e < layer.n_expert; ++e) {
    if (layer.local[e] < 0) continue;
    if (!runs.empty() && runs.back().first + runs.back().count == e) {
      ++runs.back().count;
    } else {
      runs.push_back({e, 1});
    }
  }
  return runs;
}

ExpertLayer empty_layer(const MoeLayer& from) {
  ExpertLayer layer{.key = from.key,
                    .n_expert = from.n_expert,
                    .local = std::vector<std::int32_t>(from.n_expert, -1),
                    .weights = {},
                    .context = nullptr,
                    .buffers = {}};
  layer.context.reset(ggml_init({.mem_size = (from.tensors.size() + 1) * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  return layer;
}

/// Writes the held slices of a tensor to the device, in the order of their local numbers.
using Fill = std::function<Result<>(const ExpertTensor& from, const ExpertLayer& layer, ggml_tensor* to)>;

/// In one piece, as repacking buffers want it.
Result<> set_gathered(const ExpertTensor& from, const ExpertLayer& layer, const SliceReader& read, ggml_tensor* to) {
  std::vector<std::byte> gathered(ggml_nbytes(to));
  for (std::uint32_t e = 0; e < layer.n_expert; ++e) {
    if (layer.local[e] < 0) continue;
    const auto at = static_cast<std::size_t>(layer.local[e]) * from.slice_bytes;
    if (auto done = read(from, e, std::span(gathered).subspan(at, from.slice_bytes)); !done) return done;
  }
  ggml_backend_tensor_set(to, gathered.data(), 0, gathered.size());
  return {};
}

/// Straight into the tensor: no second copy of what may be most of a machine's memory.
Result<> read_in_place(const ExpertTensor& from, const ExpertLayer& layer, const SliceReader& read, ggml_tensor* to) {
  for (std::uint32_t e = 0; e < layer.n_expert; ++e) {
    if (layer.local[e] < 0) continue;
    auto* at = static_cast<std::byte*>(to->data) + static_cast<std::size_t>(layer.local[e]) * from.slice_bytes;
    if (auto done = read(from, e, {at, from.slice_bytes}); !done) return done;
  }
  return {};
}

}  // namespace

class WeightLoader {
 public:
  WeightLoader(const HostOptions& options, const ExpertDevice& device, ExpertWeights& to) : options_(options), device_(device), to_(to) {
    if (device_.is_cpu() && options_.repack) extra_ = device_.extra_buffer_types();
  }

  Result<> load(const Anatomy& anatomy) {
    to_.files_.resize(anatomy.files.size());
    for (const MoeLayer& from : anatomy.layers) {
      ExpertLayer layer = empty_layer(from);
      std::int32_t n = 0;
      for (std::uint32_t e = 0; e < from.n_expert; ++e) {
        if (selects(options_.experts, from.key, e)) layer.local[e] = n++;
      }
      if (n == 0) continue;
      for (const ExpertTensor& tensor : from.tensors) {
        if (auto done = add_from_file(anatomy, tensor, layer); !done) return done;
      }
      to_.layers_.emplace(from.key, std::move(layer));
    }
    if (to_.layers_.empty()) return fail(ErrorKind::not_found, "the chosen experts do not exist in this model: it would hold nothing");
    return {};
  }

  Result<> hold(const MoeLayer& from, const wire::LayerHolding& experts, const SliceReader& read) {
    ExpertLayer layer = empty_layer(from);
    std::int32_t n = 0;
    for (std::uint32_t e = 0; e < from.n_expert; ++e) {
      if (experts.has(e)) layer.local[e] = n++;
    }
    const Fill fill = [&](const ExpertTensor& tensor, const ExpertLayer& to, ggml_tensor* weight) {
      const bool plain =
          ggml_backend_buffer_is_host(weight->buffer) && ggml_backend_buffer_get_type(weight->buffer) == device_.buffer_type();
      return plain ? read_in_place(tensor, to, read, weight) : set_gathered(tensor, to, read, weight);
    };
    for (const ExpertTensor& tensor : from.tensors) {
      if (auto known = check_type(tensor); !known) return known;
      layer.bytes += static_cast<std::uint64_t>(n) * tensor.slice_bytes;
      const ggml_backend_buffer_type_t place = preferred(tensor);
      ExpertWeight weight{.is_bias = tensor.is_bias, .n_in = tensor.n_in, .n_out = tensor.n_out};
      if (auto done = upload(tensor, layer, fill, place == nullptr ? device_.buffer_type() : place, weight); !done) return done;
      layer.weights.emplace(tensor.role, weight);
    }
    to_.layers_.insert_or_assign(from.key, std::move(layer));
    return {};
  }

 private:
  Result<FileMapping*> mapping(const Anatomy& anatomy, const ExpertTensor& tensor) {
    auto& file = to_.files_.at(tensor.file);
    if (!file) {
      auto opened = FileMapping::open(anatomy.files[tensor.file]);
      if (!opened) return pass(opened);
      file = std::move(*opened);
    }
    const std::uint64_t bytes = tensor.slice_bytes * tensor.n_expert;
    if (tensor.offset > file->size() || bytes > file->size() - tensor.offset) {
      return fail(ErrorKind::invalid_input, "{} has become shorter than its header says: '{}' ends behind it",
                  anatomy.files[tensor.file].string(), tensor.name);
    }
    return file.get();
  }

  static Result<> check_type(const ExpertTensor& from) {
    const auto type = static_cast<ggml_type>(from.type);
    if (from.is_bias ? type == GGML_TYPE_F32 : is_weight_type(type)) return {};
    return fail(ErrorKind::invalid_input, "'{}' is of type {}, which experts cannot be computed with", from.name, from.type_name);
  }

  Result<> add_from_file(const Anatomy& anatomy, const ExpertTensor& from, ExpertLayer& layer) {
    if (auto known = check_type(from); !known) return known;
    auto file = mapping(anatomy, from);
    if (!file) return pass(file);
    const std::vector<Run> runs = runs_of(layer);
    for (const Run& run : runs) {
      layer.bytes += run.count * from.slice_bytes;
      (*file)->advise(from.offset + run.first * from.slice_bytes, run.count * from.slice_bytes, MADV_WILLNEED);
    }
    ExpertWeight weight{.is_bias = from.is_bias, .n_in = from.n_in, .n_out = from.n_out};
    const ggml_backend_buffer_type_t place = destination(from);
    auto done = place == nullptr ? map(from, **file, layer, weight) : upload_from_file(from, **file, runs, place, layer, weight);
    if (!done) return done;
    layer.weights.emplace(from.role, weight);
    return {};
  }

  static ggml_tensor* describe(const ExpertTensor& from, const ExpertLayer& layer, std::int64_t n) {
    const auto type = static_cast<ggml_type>(from.type);
    ggml_tensor* tensor = from.is_bias ? ggml_new_tensor_2d(layer.context.get(), type, from.n_out, n)
                                       : ggml_new_tensor_3d(layer.context.get(), type, from.n_in, from.n_out, n);
    ggml_set_name(tensor, from.name.c_str());
    return tensor;
  }

  /// The layout that the device prefers for this weight; null: none in particular.
  ggml_backend_buffer_type_t preferred(const ExpertTensor& from) const {
    if (from.is_bias) return nullptr;
    const auto found = std::ranges::find_if(extra_, [&](const auto type) { return multiplies(from, type, from.n_expert); });
    return found == extra_.end() ? nullptr : *found;
  }

  /// Where a tensor's slices go; null: they stay in the mapped file.
  ggml_backend_buffer_type_t destination(const ExpertTensor& from) const {
    if (const auto type = preferred(from); type != nullptr) return type;
    const bool mapped = device_.is_cpu() && !options_.copy && from.offset % tensor_alignment == 0;
    return mapped ? nullptr : device_.buffer_type();
  }

  /// Whether the device multiplies by such a weight of n experts in such a buffer. Devices limit the size of a tensor, too.
  bool multiplies(const ExpertTensor& from, ggml_backend_buffer_type_t type, std::int64_t n) const {
    const ContextPtr context(ggml_init({.mem_size = 8 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
    ggml_tensor* weight = ggml_new_tensor_3d(context.get(), static_cast<ggml_type>(from.type), from.n_in, from.n_out, n);
    ggml_tensor* rows = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, from.n_in, 1, 2);
    ggml_tensor* ids = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 1, 2);
    const BufferPtr empty(ggml_backend_buft_alloc_buffer(type, 0));  // tells the device where the weight would lie
    weight->buffer = empty.get();
    return device_.supports(ggml_mul_mat_id(context.get(), weight, rows, ids));
  }

  Result<> map(const ExpertTensor& from, FileMapping& file, const ExpertLayer& layer, ExpertWeight& weight) {
    auto buffer = file.buffer();
    if (!buffer) return pass(buffer);
    weight.tensor = describe(from, layer, from.n_expert);
    if (auto fits = check_bytes(from, weight.tensor, from.n_expert); !fits) return fits;
    if (ggml_backend_tensor_alloc(*buffer, weight.tensor, file.data() + from.offset) != GGML_STATUS_SUCCESS) {
      return fail(ErrorKind::internal, "the engine refused to map '{}'", from.name);
    }
    return {};
  }

  Result<> upload(const ExpertTensor& from, ExpertLayer& layer, const Fill& fill, ggml_backend_buffer_type_t place, ExpertWeight& weight) {
    const auto n_held = static_cast<std::uint32_t>(std::ranges::count_if(layer.local, [](std::int32_t at) { return at >= 0; }));
    if (auto able = check_device(from, place, n_held); !able) return able;
    weight.local_ids = true;
    weight.tensor = describe(from, layer, n_held);
    if (auto fits = check_bytes(from, weight.tensor, n_held); !fits) return fits;
    const std::size_t bytes = ggml_backend_buft_get_alloc_size(place, weight.tensor), most = ggml_backend_buft_get_max_size(place);
    if (bytes > most) {
      return fail(ErrorKind::unavailable,
                  "the {} experts in '{}' need {} MiB in one piece, {} allows {} MiB: hold at most {} experts of a layer", n_held,
                  from.name, bytes >> 20, device_.description(), most >> 20, most / from.slice_bytes);
    }
    BufferPtr buffer(ggml_backend_buft_alloc_buffer(place, bytes));
    if (!buffer ||
        ggml_backend_tensor_alloc(buffer.get(), weight.tensor, ggml_backend_buffer_get_base(buffer.get())) != GGML_STATUS_SUCCESS) {
      return fail(ErrorKind::unavailable, "no room for {} MiB of '{}' on {}: hold fewer experts", bytes >> 20, from.name,
                  device_.description());
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (auto filled = fill(from, layer, weight.tensor); !filled) return filled;
    layer.buffers.push_back(std::move(buffer));
    return {};
  }

  Result<> upload_from_file(const ExpertTensor& from, const FileMapping& file, const std::vector<Run>& runs,
                            ggml_backend_buffer_type_t place, ExpertLayer& layer, ExpertWeight& weight) {
    const Fill fill = [&](const ExpertTensor& tensor, const ExpertLayer&, ggml_tensor* to) {
      fill_from_file(tensor, file, runs, to);
      return Result<>();
    };
    if (auto done = upload(from, layer, fill, place, weight); !done) return done;
    for (const Run& run : runs) file.advise(from.offset + run.first * from.slice_bytes, run.count * from.slice_bytes, MADV_DONTNEED);
    return {};
  }

  /// Fails if the device cannot multiply by the held experts of a tensor; tells its type from its size as the reason.
  Result<> check_device(const ExpertTensor& from, ggml_backend_buffer_type_t place, std::uint32_t n_held) const {
    if (from.is_bias || multiplies(from, place, n_held)) return {};
    if (multiplies(from, place, 1)) {
      return fail(ErrorKind::unavailable, "the device {} cannot compute with {} experts in one tensor ('{}', {} MiB): hold fewer experts",
                  device_.description(), n_held, from.name, (from.slice_bytes * n_held) >> 20);
    }
    return fail(ErrorKind::invalid_input,
                "the device {} cannot compute experts of type {} ('{}'): choose another --device, or requantise the model",
                device_.description(), from.type_name, from.name);
  }

  /// In one piece, as repacking buffers want it; gathered first if the slices lie apart.
  static void fill_from_file(const ExpertTensor& from, const FileMapping& file, const std::vector<Run>& runs, ggml_tensor* tensor) {
    const auto slices = [&](const Run& run) { return file.data() + from.offset + run.first * from.slice_bytes; };
    if (runs.size() == 1) {
      ggml_backend_tensor_set(tensor, slices(runs[0]), 0, ggml_nbytes(tensor));
      return;
    }
    std::vector<std::byte> gathered;
    gathered.reserve(ggml_nbytes(tensor));
    for (const Run& run : runs) gathered.insert(gathered.end(), slices(run), slices(run) + run.count * from.slice_bytes);
    ggml_backend_tensor_set(tensor, gathered.data(), 0, gathered.size());
  }

  static Result<> check_bytes(const ExpertTensor& from, const ggml_tensor* tensor, std::uint64_t n) {
    if (ggml_nbytes(tensor) == from.slice_bytes * n) return {};
    return fail(ErrorKind::internal, "'{}' should have {} bytes an expert, the engine counts {}", from.name, from.slice_bytes,
                ggml_nbytes(tensor) / n);
  }

  const HostOptions& options_;
  const ExpertDevice& device_;
  ExpertWeights& to_;
  std::vector<ggml_backend_buffer_type_t> extra_;
};

Result<std::unique_ptr<ExpertWeights>> ExpertWeights::open(const Anatomy& anatomy, const HostOptions& options, const ExpertDevice& device) {
  auto weights = std::make_unique<ExpertWeights>();
  if (auto loaded = WeightLoader(options, device, *weights).load(anatomy); !loaded) return pass(loaded);
  return weights;
}

Result<> ExpertWeights::hold(const MoeLayer& layer, const wire::LayerHolding& experts, const SliceReader& read, const HostOptions& options,
                             const ExpertDevice& device) {
  return WeightLoader(options, device, *this).hold(layer, experts, read);
}

std::uint64_t ExpertWeights::held_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, layer] : layers_) bytes += layer.bytes;
  return bytes;
}

const ExpertLayer* ExpertWeights::find(LayerKey key) const {
  const auto found = layers_.find(key);
  return found == layers_.end() ? nullptr : &found->second;
}

std::vector<wire::LayerHolding> ExpertWeights::holdings() const {
  std::vector<wire::LayerHolding> result;
  for (const auto& [key, layer] : layers_) {
    wire::LayerHolding& holding = result.emplace_back(wire::empty_holding(key, static_cast<std::uint16_t>(layer.n_expert)));
    for (std::uint32_t e = 0; e < layer.n_expert; ++e) {
      if (layer.local[e] >= 0) holding.add(e);
    }
  }
  return result;
}

}  // namespace linkcpp::engine
