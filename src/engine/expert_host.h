// The worker's engine: holds expert slices of a model on a ggml device and replays region programs over them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/anatomy.h"
#include "wire/messages.h"
#include "wire/program.h"

namespace linkcpp::engine {

/// Experts [first, last] of layers [first_layer, last_layer]. Layers are block numbers: a block's chunk experts go with it.
struct ExpertRange {
  LayerKey first_layer = 0, last_layer = 0x7FFF;
  std::uint32_t first = 0, last = UINT32_MAX;
};
/// Parses "all", "0-11", "0-3,8-11", "2/3" (second third), each optionally limited to layers: "L0-3:0-11;L4-7:all".
/// Fails with `invalid_input`, naming the part that is wrong.
Result<std::vector<ExpertRange>> parse_expert_ranges(const std::string& text, std::uint32_t n_expert);
/// Whether one of the ranges has this expert.
bool selects(const std::vector<ExpertRange>& ranges, LayerKey key, std::uint32_t expert);

/// Names of the ggml devices that can compute experts, with descriptions, for --help and errors.
std::vector<std::pair<std::string, std::string>> list_devices();

struct HostOptions {
  std::string device = "CPU";  ///< a ggml device name as list_devices() shows it
  int n_threads = 0;           ///< 0: as many as cores
  bool repack = false;         ///< CPU: copy slices into the engine's repacked layout (faster, not zero-copy)
  bool copy = false;           ///< CPU: copy slices into memory instead of mapping the file
  std::vector<ExpertRange> experts;
  std::uint64_t max_graph_bytes = 8ull << 30;  ///< a program that may need more for one token is refused; batches are cut to it
};

/// One part of a batch: what a single request wants computed. All parts of a batch share layer and program.
struct HostRequest {
  std::uint32_t n_tokens = 0;
  std::span<const wire::WirePair> pairs;       ///< grouped by token, tokens ascending
  std::vector<std::span<const float>> inputs;  ///< per program input: n_tokens or pairs.size() rows of Input::n floats
  wire::CombineMode mode = wire::CombineMode::raw;
  /// Result rows: pairs.size() (raw) or n_tokens (sum) rows of program.n_out() floats. A token without pairs sums to zero.
  std::span<float> output;
};

/// Reads one expert's slice of a stacked tensor, tensor.slice_bytes bytes, from wherever slices are kept.
using SliceReader = std::function<Result<>(const ExpertTensor& tensor, std::uint32_t expert, std::span<std::byte> to)>;

/// Threading: all calls from one thread at a time, except interrupt(). The CPU device keeps a team of threads for each thread
/// that ever called run(): call it from one thread.
class ExpertHost {
 public:
  /// Maps (CPU) or uploads (other devices) the slices. Only bytes of held slices are touched.
  static Result<std::unique_ptr<ExpertHost>> open(const Anatomy& anatomy, HostOptions options);
  /// A host that holds nothing until hold() is called. `options.experts` does not matter.
  static Result<std::unique_ptr<ExpertHost>> open_empty(HostOptions options);
  virtual ~ExpertHost() = default;

  /// Copies these experts of a layer to the device, in place of what it held of that layer before. On failure the layer is held as before:
  /// `unavailable` if there is no room, `invalid_input` if the device cannot compute with such a tensor, or the reader's error.
  /// `layer` needs no files: key, n_expert and the tensors' names, types and shapes count.
  virtual Result<> hold(const MoeLayer& layer, const wire::LayerHolding& experts, const SliceReader& read) = 0;

  [[nodiscard]] virtual std::vector<wire::LayerHolding> holdings() const = 0;
  [[nodiscard]] virtual std::string device_description() const = 0;
  [[nodiscard]] virtual int n_threads() const = 0;
  [[nodiscard]] virtual std::uint64_t held_bytes() const = 0;
  /// Checks a program against the shapes of one layer's weights (hostile backbones exist): row lengths match, weights exist,
  /// op parameters are finite and known. Called once for each (program, layer); run() calls it if it was not.
  virtual Result<> validate(const wire::Program& program, LayerKey layer) = 0;
  /// What run() would refuse a request for: the program, a span of the wrong length, pairs out of order, an expert that is not held.
  virtual Result<> check(const wire::Program& program, LayerKey layer, const HostRequest& request) = 0;
  /// Computes a batch, in one graph where that leaves each request's bits as if it were alone. Fails without computing if check() refuses
  /// one of its requests; on any failure the outputs are undefined.
  virtual Result<> run(const wire::Program& program, LayerKey layer, std::span<HostRequest> batch) = 0;
  /// Makes a run() in progress, and all later ones, fail with `unavailable` soon. From any thread.
  virtual void interrupt() noexcept = 0;
};

}  // namespace linkcpp::engine
