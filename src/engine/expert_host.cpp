#include "engine/expert_host.h"

#include <algorithm>
#include <list>
#include <optional>

#include "engine/expert_batch.h"
#include "engine/expert_device.h"
#include "engine/expert_graph.h"
#include "engine/expert_program.h"
#include "engine/expert_weights.h"

namespace linkcpp::engine {
namespace {

constexpr std::size_t max_programs = 256;     // remembered with what was found about them
constexpr std::size_t max_cached_pairs = 64;  // graphs up to this size are kept: decoding needs the same few again and again
constexpr std::size_t max_cached_graphs = 64;
constexpr std::uint64_t max_cached_bytes = 256u << 20;
constexpr std::size_t max_graph_pairs = 4096;  // of rows that do not depend on their neighbours; bounds memory

/// Layers whose weights have these types and shapes can share a graph.
struct WeightShape {
  ggml_type type;
  std::int64_t n_in, n_out, n;
  bool local_ids;
  ggml_backend_buffer_type_t place;
  bool operator==(const WeightShape&) const = default;
};
using Signature = std::vector<WeightShape>;

Signature signature_of(const BoundProgram& bound) {
  Signature signature;
  for (const ExpertWeight* w : bound.weights) {
    signature.push_back({w->tensor->type, w->n_in, w->n_out, w->is_bias ? w->tensor->ne[1] : w->tensor->ne[2], w->local_ids,
                         ggml_backend_buffer_get_type(w->tensor->buffer)});
  }
  return signature;
}

/// Whether a result row is the same bits whatever other rows are computed beside it. ggml's CPU kernels for super-blocks of 256
/// switch to another order of additions where enough rows of a batch select the same expert; repacked layouts and other devices may do
/// so for any type.
bool rows_are_independent(const BoundProgram& bound, const ExpertDevice& device) {
  const auto independent = [&](const ExpertWeight* weight) {
    return weight->is_bias || (ggml_blck_size(weight->tensor->type) < 256 && ggml_backend_buffer_is_host(weight->tensor->buffer));
  };
  return device.is_cpu() && std::ranges::all_of(bound.weights, independent);
}

/// A program in one layer, checked.
struct Prepared {
  LayerKey key = 0;
  const ExpertLayer* layer = nullptr;
  BoundProgram bound;
  std::size_t signature = 0;  ///< index into KnownProgram::signatures
  bool independent_rows = true;
  std::size_t max_pairs = 0;  ///< in one graph
};

struct KnownProgram {
  std::uint64_t serial = 0;
  wire::Program program;
  std::vector<Signature> signatures;
  std::list<Prepared> layers;  ///< addresses stay
};

struct CachedGraph {
  std::uint64_t program = 0;  ///< KnownProgram::serial
  std::size_t signature = 0;
  PairForm form;
  std::unique_ptr<ExpertGraph> graph;
  AllocatorPtr allocator;
  std::uint64_t bytes = 0;
  const Prepared* bound_to = nullptr;
};

class GgmlExpertHost final : public ExpertHost {
 public:
  GgmlExpertHost(HostOptions options, std::unique_ptr<ExpertDevice> device, std::unique_ptr<ExpertWeights> weights)
      : options_(std::move(options)), device_(std::move(device)), weights_(std::move(weights)) {}

  [[nodiscard]] std::vector<wire::LayerHolding> holdings() const override { return weights_->holdings(); }
  [[nodiscard]] std::string device_description() const override { return device_->description(); }
  [[nodiscard]] int n_threads() const override { return device_->n_threads(); }
  [[nodiscard]] std::uint64_t held_bytes() const override { return weights_->held_bytes(); }
  void interrupt() noexcept override { device_->interrupt(); }

  Result<> hold(const MoeLayer& layer, const wire::LayerHolding& experts, const SliceReader& read) override {
    if (experts.layer != layer.key || experts.n_expert != layer.n_expert || experts.count() == 0)
      return fail(ErrorKind::invalid_input, "experts of layer {} cannot be held: none is named, or they are those of another layer",
                  layer.key);
    // Programs and graphs point into the weights that go.
    if (weights_->find(layer.key) != nullptr) forget_everything();
    return weights_->hold(layer, experts, read, options_, *device_);
  }

  Result<> validate(const wire::Program& program, LayerKey layer) override {
    auto prepared = prepare(program, layer);
    if (!prepared) return pass(prepared);
    return {};
  }

  Result<> check(const wire::Program& program, LayerKey layer, const HostRequest& request) override {
    auto prepared = prepare(program, layer);
    if (!prepared) return pass(prepared);
    return check_request(program, *(*prepared)->layer, request);
  }

  Result<> run(const wire::Program& program, LayerKey layer, std::span<HostRequest> batch) override {
    auto prepared = prepare(program, layer);
    if (!prepared) return pass(prepared);
    const Prepared& p = **prepared;
    for (const HostRequest& request : batch) {
      if (auto fits = check_request(program, *p.layer, request); !fits) return fits;
    }
    if (p.independent_rows) return compute_all(p, batch);
    // Neighbours from other requests would change a request's bits: each is computed as it came.
    for (HostRequest& request : batch) {
      if (auto done = compute_all(p, {&request, 1}); !done) return done;
    }
    return {};
  }

 private:
  // ---- programs ------------------------------------------------------------------------------------------------------

  KnownProgram& known(const wire::Program& program) {
    const auto found = std::ranges::find_if(programs_, [&](const KnownProgram& k) { return k.program == program; });
    if (found != programs_.end()) {
      programs_.splice(programs_.begin(), programs_, found);
      return programs_.front();
    }
    if (programs_.size() >= max_programs) forget_program(programs_.back().serial);
    programs_.push_front({.serial = ++last_serial_, .program = program, .signatures = {}, .layers = {}});
    return programs_.front();
  }

  void forget_everything() {
    graphs_.clear();
    cached_bytes_ = 0;
    programs_.clear();
    current_ = nullptr;
  }

  void forget_program(std::uint64_t serial) {
    std::erase_if(graphs_, [&](const CachedGraph& g) {
      if (g.program == serial) cached_bytes_ -= g.bytes;
      return g.program == serial;
    });
    programs_.remove_if([&](const KnownProgram& k) { return k.serial == serial; });
  }

  Result<Prepared*> prepare(const wire::Program& program, LayerKey key) {
    if (programs_.empty() || programs_.front().program != program) {
      // Nothing hostile is remembered: the structure is checked before the program is copied.
      if (auto sound = wire::check_program(program); !sound) return pass(sound);
    }
    KnownProgram& k = known(program);
    const auto found = std::ranges::find(k.layers, key, &Prepared::key);
    current_ = &k;
    if (found != k.layers.end()) return &*found;
    auto prepared = prepare_layer(k, key);
    if (!prepared) return pass(prepared);
    k.layers.push_back(std::move(*prepared));
    return &k.layers.back();
  }

  Result<Prepared> prepare_layer(KnownProgram& k, LayerKey key) {
    const ExpertLayer* layer = weights_->find(key);
    if (layer == nullptr) return fail(ErrorKind::not_found, "this worker holds no expert of layer {}", key);
    auto bound = bind_program(k.program, *layer);
    if (!bound) return pass(bound);
    if (bound->pair_bytes * wire::max_token_pairs > options_.max_graph_bytes) {
      return fail(ErrorKind::invalid_input, "invalid program for layer {}: it needs {} bytes a pair, too many for a limit of {} MiB", key,
                  bound->pair_bytes, options_.max_graph_bytes >> 20);
    }
    if (auto able = check_device(k.program, *bound, key); !able) return pass(able);
    Prepared prepared{.key = key, .layer = layer, .bound = std::move(*bound)};
    prepared.independent_rows = rows_are_independent(prepared.bound, *device_);
    const std::size_t cut = prepared.independent_rows ? max_graph_pairs : wire::max_dispatch_pairs;
    prepared.max_pairs = std::clamp<std::size_t>(options_.max_graph_bytes / std::max<std::uint64_t>(prepared.bound.pair_bytes, 1), 1, cut);
    Signature signature = signature_of(prepared.bound);
    const auto same = std::ranges::find(k.signatures, signature);
    prepared.signature = static_cast<std::size_t>(same - k.signatures.begin());
    if (same == k.signatures.end()) k.signatures.push_back(std::move(signature));
    return prepared;
  }

  /// Asks the device about every op of the graphs that this program leads to.
  Result<> check_device(const wire::Program& program, const BoundProgram& bound, LayerKey key) const {
    for (const PairForm form : {PairForm{false, 1, 2}, PairForm{true, 2, 2}}) {
      if (form.grid && !bound.grid) continue;
      const ExpertGraph probe(program, bound, form);
      if (const ggml_tensor* node = probe.unsupported(*device_)) {
        return fail(ErrorKind::incompatible, "the device {} cannot compute {} as layer {} needs it", device_->description(),
                    ggml_op_desc(node), key);
      }
    }
    return {};
  }

  // ---- graphs --------------------------------------------------------------------------------------------------------

  Result<> compute_all(const Prepared& p, std::span<HostRequest> requests) {
    batch_.assign(current_->program, *p.layer, requests);
    std::size_t first = 0, n = 0;
    for (; first < batch_.n_tokens(); first += n) {
      const PairForm form = batch_.piece(first, p.max_pairs, p.bound.grid, n);
      if (auto done = compute(p, form, first, n); !done) return done;
    }
    return {};
  }

  Result<> compute(const Prepared& p, PairForm form, std::size_t first, std::size_t n_tokens) {
    if (form.n_pairs() > max_cached_pairs) return compute_once(p, form, first, n_tokens);
    auto graph = cached_graph(p, form);
    if (!graph) return pass(graph);
    return compute_with(**graph, form, first, n_tokens);
  }

  /// Large batches: the graph is cheap beside its computation, the memory is kept for the next one.
  Result<> compute_once(const Prepared& p, PairForm form, std::size_t first, std::size_t n_tokens) {
    ExpertGraph graph(current_->program, p.bound, form);
    if (!large_allocator_) large_allocator_.reset(ggml_gallocr_new(device_->buffer_type()));
    if (auto allocated = graph.allocate(large_allocator_.get()); !allocated) {
      large_allocator_.reset();
      return allocated;
    }
    return compute_with(graph, form, first, n_tokens);
  }

  Result<> compute_with(const ExpertGraph& graph, PairForm form, std::size_t first, std::size_t n_tokens) {
    batch_.fill(graph, form, first, n_tokens);
    if (auto done = device_->compute(graph.graph()); !done) return done;
    batch_.collect(graph, first, n_tokens);
    return {};
  }

  Result<ExpertGraph*> cached_graph(const Prepared& p, PairForm form) {
    const auto found = std::ranges::find_if(
        graphs_, [&](const CachedGraph& g) { return g.form == form && g.program == current_->serial && g.signature == p.signature; });
    if (found != graphs_.end()) {
      graphs_.splice(graphs_.begin(), graphs_, found);
    } else if (auto added = add_graph(p, form); !added) {
      return pass(added);
    }
    CachedGraph& cached = graphs_.front();
    if (cached.bound_to != &p) {
      cached.graph->bind(p.bound);
      cached.bound_to = &p;
    }
    return cached.graph.get();
  }

  Result<> add_graph(const Prepared& p, PairForm form) {
    CachedGraph cached{.program = current_->serial, .signature = p.signature, .form = form, .graph = nullptr, .allocator = nullptr};
    cached.graph = std::make_unique<ExpertGraph>(current_->program, p.bound, form);
    cached.allocator.reset(ggml_gallocr_new(device_->buffer_type()));
    if (auto allocated = cached.graph->allocate(cached.allocator.get()); !allocated) return allocated;
    cached.bytes = ggml_gallocr_get_buffer_size(cached.allocator.get(), 0);
    cached.bound_to = &p;
    cached_bytes_ += cached.bytes;
    graphs_.push_front(std::move(cached));
    while (graphs_.size() > 1 && (graphs_.size() > max_cached_graphs || cached_bytes_ > max_cached_bytes)) {
      cached_bytes_ -= graphs_.back().bytes;
      graphs_.pop_back();
    }
    return {};
  }

  HostOptions options_;
  std::unique_ptr<ExpertDevice> device_;
  std::unique_ptr<ExpertWeights> weights_;
  std::list<KnownProgram> programs_;  ///< most recently used first
  KnownProgram* current_ = nullptr;   ///< of the call in progress
  std::uint64_t last_serial_ = 0;
  std::list<CachedGraph> graphs_;  ///< most recently used first
  std::uint64_t cached_bytes_ = 0;
  AllocatorPtr large_allocator_;
  ExpertBatch batch_;
};

}  // namespace

namespace {

Result<std::unique_ptr<ExpertDevice>> open_device(const HostOptions& options) {
  auto device = ExpertDevice::open(options.device, options.n_threads);
  if (!device) return device;
  if ((options.repack || options.copy) && !(*device)->is_cpu()) {
    return fail(ErrorKind::invalid_input, "repacking and copying concern the CPU only: {} keeps its own copy anyway", options.device);
  }
  return device;
}

}  // namespace

Result<std::unique_ptr<ExpertHost>> ExpertHost::open_empty(HostOptions options) {
  auto device = open_device(options);
  if (!device) return pass(device);
  return std::make_unique<GgmlExpertHost>(std::move(options), std::move(*device), std::make_unique<ExpertWeights>());
}

Result<std::unique_ptr<ExpertHost>> ExpertHost::open(const Anatomy& anatomy, HostOptions options) {
  auto device = open_device(options);
  if (!device) return pass(device);
  auto weights = ExpertWeights::open(anatomy, options, **device);
  if (!weights) return pass(weights);
  return std::make_unique<GgmlExpertHost>(std::move(options), std::move(*device), std::move(*weights));
}

}  // namespace linkcpp::engine
