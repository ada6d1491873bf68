// The dispatch hook: a ggml backend whose one device, LINKCPP0, wraps a base device and sends routed-expert regions to workers.
// A thin boundary between the engine's C interface and engine/runner; no exception leaves it.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "engine/abi.h"
#include "engine/runner.h"
#include "swarm/backbone.h"

namespace linkcpp::plugin {
namespace {

struct State {
  abi::Reg reg{};
  abi::Device device{};
  std::unique_ptr<swarm::Backbone> backbone;  ///< null without a configuration: then LINKCPP0 is just the base device
  std::string base_name = "CPU";
  std::string description;
  bool repack = true;
  std::atomic<int> live_backends{0};
};

/// Never destroyed: a server may exit while a graph still computes, and then nothing here may be pulled from under it.
State& state() {
  static State& only = *new State;
  return only;
}

void complain(const std::string& text) { std::fprintf(stderr, "linkcpp: error: %s\n", text.c_str()); }

/// The base is resolved lazily: backends may be registered in any order.
ggml_backend_dev_t base() {
  static ggml_backend_dev_t device = nullptr;
  if (device == nullptr) device = ggml_backend_dev_by_name(state().base_name.c_str());
  if (device == nullptr)
    complain("the base device '" + state().base_name + "' does not exist; llama-server --list-devices shows what does");
  return device;
}

template <class Function>
Function base_function(const char* name) {
  const ggml_backend_dev_t device = base();
  return device == nullptr ? nullptr
                           : reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

// ---- backend ---------------------------------------------------------------------------------------------------------

struct Context {
  ggml_backend_t base = nullptr;
  std::unique_ptr<engine::Runner> runner;
  ggml_abort_callback abort = nullptr;
  void* abort_data = nullptr;
  ~Context() { ggml_backend_free(base); }
};

Context& context(ggml_backend_t backend) { return *static_cast<Context*>(abi::layout(backend).context); }

const char* backend_name(ggml_backend_t) { return "LINKCPP0"; }

void backend_free(ggml_backend_t backend) {
  const std::unique_ptr<abi::Backend> owned(&abi::layout(backend));
  const std::unique_ptr<Context> context(static_cast<Context*>(owned->context));
  if (state().backbone != nullptr && --state().live_backends == 0) state().backbone->flush_status();
}

void backend_synchronize(ggml_backend_t backend) { ggml_backend_synchronize(context(backend).base); }

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  Context& self = context(backend);
  try {
    const ggml_status status =
        self.runner->compute(graph, self.abort == nullptr ? std::function<bool()>() : [&self] { return self.abort(self.abort_data); });
    if (status == GGML_STATUS_FAILED) complain("the graph could not be computed: " + self.runner->error());
    return status;
  } catch (const std::exception& error) {
    complain(std::string("the graph could not be computed: ") + error.what());
    return GGML_STATUS_FAILED;
  }
}

void set_n_threads(ggml_backend_t backend, int n_threads) {
  if (const auto forward = base_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads"))
    forward(context(backend).base, n_threads);
}

void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void* data) {
  context(backend).abort = callback;
  context(backend).abort_data = data;
  if (const auto forward = base_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback")) {
    forward(context(backend).base, callback, data);
  }
}

// ---- device ----------------------------------------------------------------------------------------------------------

const char* device_name(ggml_backend_dev_t) { return "LINKCPP0"; }
const char* device_description(ggml_backend_dev_t) { return state().description.c_str(); }

void device_memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
  *free = *total = 0;
  if (base() != nullptr) ggml_backend_dev_memory(base(), free, total);
}

/// Graphics devices get the layers of a model by default; the base's own kind would leave them to the CPU.
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

/// Bases with memory of their own, as graphics cards have.
bool base_is_host() { return ggml_backend_buft_is_host(ggml_backend_dev_buffer_type(base())); }

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  *props = {};
  if (base() != nullptr) ggml_backend_dev_get_props(base(), props);
  props->name = device_name(device);
  props->description = device_description(device);
  props->type = device_type(device);
  props->device_id = nullptr;
  props->caps.async = false;
  props->caps.events = false;
  // Experts stay in the mapped file; the loader would not map it for a base that wants every byte uploaded.
  if (base() != nullptr && !base_is_host()) props->caps.mmap_support = true;
}

ggml_guid_t guid() {
  static ggml_guid id = {0x6c, 0x69, 0x6e, 0x6b, 0x63, 0x70, 0x70, 0x00, 0x9d, 0x41, 0x4e, 0x0a, 0x8c, 0x1f, 0x77, 0x01};
  return &id;
}

engine::ExpertFilter expert_filter() {
  const swarm::Backbone* backbone = state().backbone.get();
  return [backbone](const engine::ExpertName& name, const ggml_tensor& leaf) {
    const engine::MoeLayer* layer = backbone->anatomy().find(name.layer);
    if (layer == nullptr) return false;
    for (const engine::ExpertTensor& tensor : layer->tensors) {
      if (tensor.role == name.role) return tensor.fits(leaf);
    }
    return false;
  };
}

std::unique_ptr<engine::Runner> make_runner(ggml_backend_t base_backend) {
  const swarm::Backbone* backbone = state().backbone.get();
  if (backbone == nullptr) return std::make_unique<engine::Runner>(base_backend, nullptr, nullptr, engine::RunnerOptions{});
  const engine::RunnerOptions options{.overlap = backbone->config().overlap, .sum = backbone->config().mode == wire::CombineMode::sum};
  return std::make_unique<engine::Runner>(base_backend, state().backbone.get(), expert_filter(), options);
}

ggml_backend_t device_init(ggml_backend_dev_t device, const char* params) {
  if (base() == nullptr) return nullptr;
  if (const int version = abi::layout(ggml_backend_dev_backend_reg(base())).version; version != abi::api_version) {
    complain("the base device speaks backend API version " + std::to_string(version) + ", this plugin knows version " +
             std::to_string(abi::api_version));
    return nullptr;
  }
  try {
    auto context = std::make_unique<Context>();
    context->base = ggml_backend_dev_init(base(), params);
    if (context->base == nullptr) return nullptr;
    context->runner = make_runner(context->base);
    if (state().backbone != nullptr) {
      if (auto covered = state().backbone->wait_for_coverage({}); !covered) {
        complain(covered.error().message);
        return nullptr;
      }
      ++state().live_backends;
    }
    auto backend = std::make_unique<abi::Backend>();
    backend->guid = guid();
    backend->iface = {.get_name = backend_name, .free = backend_free, .synchronize = backend_synchronize, .graph_compute = backend_compute};
    backend->device = device;
    backend->context = context.release();
    return abi::opaque(backend.release());
  } catch (const std::exception& error) {
    complain(error.what());
    return nullptr;
  }
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
  return base() == nullptr ? nullptr : ggml_backend_dev_buffer_type(base());
}
ggml_backend_buffer_type_t device_host_buffer_type(ggml_backend_dev_t) {
  return base() == nullptr ? nullptr : ggml_backend_dev_host_buffer_type(base());
}
ggml_backend_buffer_t device_buffer_from_host_ptr(ggml_backend_dev_t, void* ptr, std::size_t size, std::size_t max_tensor_size) {
  return ggml_backend_dev_buffer_from_host_ptr(base(), ptr, size, max_tensor_size);
}

/// The model loader asks, with an empty buffer in place of the weight's, whether the device would compute on that buffer type.
/// It asks for our default type first, so quantised matmuls are refused there to let the base's repacked layout be tried next;
/// stacked expert tensors stay as they are: they are not computed here.
bool is_loader_query_for_default(const ggml_tensor* weight) {
  return weight != nullptr && weight->buffer != nullptr && ggml_backend_buffer_get_size(weight->buffer) == 0 &&
         ggml_backend_buffer_get_type(weight->buffer) == ggml_backend_dev_buffer_type(base());
}

ggml_backend_buffer_type_t* extra_buffer_types(ggml_backend_dev_t) {
  const auto forward = base_function<ggml_backend_dev_get_extra_bufts_t>("ggml_backend_dev_get_extra_bufts");
  return forward == nullptr ? nullptr : forward(base());
}

/// The type of buffers around mapped files, which the engine does not export by name.
ggml_backend_buffer_type_t mapped_file_type() {
  static const ggml_backend_buffer_type_t type = [] {
    alignas(64) static std::array<std::byte, 64> bytes;
    const ggml_backend_buffer_t mapped = ggml_backend_cpu_buffer_from_ptr(bytes.data(), bytes.size());
    const ggml_backend_buffer_type_t found = ggml_backend_buffer_get_type(mapped);
    ggml_backend_buffer_free(mapped);
    return found;
  }();
  return type;
}

bool in_mapped_file(const ggml_tensor* tensor) {
  if (tensor == nullptr) return false;
  const ggml_backend_buffer_t buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
  return buffer != nullptr && ggml_backend_buffer_get_type(buffer) == mapped_file_type();
}

bool is_expert(const ggml_tensor* weight) {
  if (state().backbone == nullptr || weight == nullptr) return false;
  const auto name = engine::parse_expert_name(weight->name);
  static const engine::ExpertFilter held_by_workers = expert_filter();
  return name && held_by_workers(*name, *weight);
}

/// On a base with memory of its own, experts stay where they cost none of it: in the mapped file, whose bytes nobody here reads.
/// The loader offers the base's memory first and host memory next. The scheduler hands an op to the device that takes the buffer of its
/// weights as it is, so that mapped weights of experts are ours, and everything else that reads a mapped file is not.
bool supports_beside_host_memory(const ggml_tensor* op) {
  const bool multiplies_experts = op->op == GGML_OP_MUL_MAT_ID && is_expert(op->src[0]);
  if (multiplies_experts && op->src[0]->buffer != nullptr) {
    return ggml_backend_buft_is_host(ggml_backend_buffer_get_type(op->src[0]->buffer));
  }
  if (in_mapped_file(op)) return op->op == GGML_OP_NONE && is_expert(op);
  for (int i = 0; i < GGML_MAX_SRC; ++i) {
    const bool expert = is_expert(op->src[i]) && (multiplies_experts || op->op == GGML_OP_ADD_ID);
    if (in_mapped_file(op->src[i]) && !expert) return false;
  }
  return multiplies_experts || ggml_backend_dev_supports_op(base(), op);
}

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
  if (base() == nullptr) return false;
  if (!base_is_host()) return supports_beside_host_memory(op);
  if (state().repack && op->op == GGML_OP_MUL_MAT && ggml_is_quantized(op->src[0]->type) && is_loader_query_for_default(op->src[0]))
    return false;
  if (op->op == GGML_OP_MUL_MAT_ID && op->src[0]->buffer != nullptr) {
    // Mapped files have a buffer type of their own, which is host memory; the repacked layout is not.
    const ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(op->src[0]->buffer);
    if (type != ggml_backend_dev_buffer_type(base()) && !ggml_backend_buft_is_host(type)) return false;
  }
  return ggml_backend_dev_supports_op(base(), op);
}

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  if (base() == nullptr) return false;
  // Experts only: supports_op refuses whatever else lies there.
  if (state().backbone != nullptr && !base_is_host() && type == mapped_file_type()) return true;
  return ggml_backend_dev_supports_buft(base(), type);
}

bool device_offload_op(ggml_backend_dev_t, const ggml_tensor*) { return false; }

// ---- registration ----------------------------------------------------------------------------------------------------

const char* reg_name(ggml_backend_reg_t) { return "linkcpp"; }
std::size_t reg_device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t reg_device(ggml_backend_reg_t, std::size_t index) { return index == 0 ? abi::opaque(&state().device) : nullptr; }

void* reg_proc_address(ggml_backend_reg_t, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void*>(set_n_threads);
  if (std::strcmp(name, "ggml_backend_set_abort_callback") == 0) return reinterpret_cast<void*>(set_abort_callback);
  if (std::strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0 && state().repack) return reinterpret_cast<void*>(extra_buffer_types);
  return nullptr;
}

/// The version that the backends which are already registered speak; 0 if there is none to ask.
int engine_api_version() { return ggml_backend_reg_count() == 0 ? 0 : abi::layout(ggml_backend_reg_get(0)).version; }

Result<> configure() {
  const char* file = std::getenv("LINKCPP_CONFIG");
  if (file == nullptr || *file == '\0') {
    state().description = "linkcpp without a configuration: computes everything on " + state().base_name;
    return {};
  }
  auto config = swarm::Config::read(file);
  if (!config) return pass(config);
  state().base_name = config->base;
  state().repack = config->repack;
  state().description = "routed experts on linkcpp workers, the rest on " + config->base;
  auto backbone = swarm::Backbone::open(std::move(*config));
  if (!backbone) return pass(backbone);
  state().backbone = std::move(*backbone);
  return {};
}

ggml_backend_reg_t init() {
  if (const int version = engine_api_version(); version != 0 && version != abi::api_version) {
    complain("this engine (ggml " + std::string(ggml_version()) + ") speaks backend API version " + std::to_string(version) +
             ", this plugin knows version " + std::to_string(abi::api_version) + " (proved with ggml " + abi::proved_with +
             "); install the linkcpp that was built for it");
    return nullptr;
  }
  try {
    if (auto configured = configure(); !configured) {
      complain(configured.error().message);
      return nullptr;
    }
  } catch (const std::exception& error) {
    complain(error.what());
    return nullptr;
  }
  State& s = state();
  s.reg = {abi::api_version, {reg_name, reg_device_count, reg_device, reg_proc_address}, nullptr};
  s.device.reg = abi::opaque(&s.reg);
  s.device.iface = {.get_name = device_name,
                    .get_description = device_description,
                    .get_memory = device_memory,
                    .get_type = device_type,
                    .get_props = device_props,
                    .init_backend = device_init,
                    .get_buffer_type = device_buffer_type,
                    .get_host_buffer_type = device_host_buffer_type,
                    .buffer_from_host_ptr = device_buffer_from_host_ptr,
                    .supports_op = device_supports_op,
                    .supports_buft = device_supports_buft,
                    .offload_op = device_offload_op};
  return abi::opaque(&s.reg);
}

}  // namespace
}  // namespace linkcpp::plugin

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() { return linkcpp::plugin::init(); }
