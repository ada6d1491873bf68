#include "engine/expert_device.h"

#include <algorithm>
#include <cstdio>
#include <format>
#include <string_view>
#include <thread>

#include "engine/expert_host.h"

namespace linkcpp::engine {
namespace {

/// Other processors round otherwise, so that they are another kind of device. x86-64 is the one that goes without saying.
#if defined(__x86_64__)
constexpr std::string_view architecture;
#elif defined(__aarch64__)
constexpr std::string_view architecture = " arm64";
#else
constexpr std::string_view architecture = " of another architecture";
#endif

constexpr int max_threads = 512;  // more than any machine has; ggml keeps arrays of this size

/// Warnings and errors of the engine are for people, its reports on every tensor are not.
void log_problems_only(ggml_log_level level, const char* text, void*) {
  static thread_local bool shown = false;  // lines may come in pieces
  if (level != GGML_LOG_LEVEL_CONT) shown = level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR;
  if (shown) std::fputs(text, stderr);
}

void load_backends_once() {
  static const bool loaded = [] {
    if (ggml_backend_dev_count() > 0) return true;  // this process has a host that did it
    ggml_log_set(log_problems_only, nullptr);
    ggml_backend_load_all();
    return true;
  }();
  (void)loaded;
}

/// Devices that can hold weights and compute a whole graph; accelerators that only help the CPU cannot, nor can our own dispatch hook.
bool can_host(ggml_backend_dev_t device) {
  const auto type = ggml_backend_dev_type(device);
  return type != GGML_BACKEND_DEVICE_TYPE_ACCEL && type != GGML_BACKEND_DEVICE_TYPE_META &&
         !std::string_view(ggml_backend_dev_name(device)).starts_with("LINKCPP");
}

template <class Function>
Function function_of(ggml_backend_dev_t device, const char* name) {
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

std::string device_names() {
  std::string names;
  for (const auto& [name, description] : list_devices()) names += std::format("{}{} ({})", names.empty() ? "" : ", ", name, description);
  return names.empty() ? "none" : names;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> list_devices() {
  load_backends_once();
  std::vector<std::pair<std::string, std::string>> devices;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    const ggml_backend_dev_t device = ggml_backend_dev_get(i);
    if (can_host(device)) devices.emplace_back(ggml_backend_dev_name(device), ggml_backend_dev_description(device));
  }
  return devices;
}

Result<std::unique_ptr<ExpertDevice>> ExpertDevice::open(const std::string& name, int n_threads) {
  load_backends_once();
  if (n_threads < 0 || n_threads > max_threads)
    return fail(ErrorKind::invalid_input, "{} threads are not possible: choose 1 to {}, or 0 for all cores", n_threads, max_threads);
  std::unique_ptr<ExpertDevice> result(new ExpertDevice);
  result->device_ = ggml_backend_dev_by_name(name.c_str());
  if (result->device_ == nullptr || !can_host(result->device_)) {
    return fail(ErrorKind::not_found, "there is no device '{}' that can compute experts; there are: {}", name, device_names());
  }
  result->backend_.reset(ggml_backend_dev_init(result->device_, nullptr));
  if (!result->backend_) return fail(ErrorKind::unavailable, "the device '{}' could not be initialised: see its driver's messages", name);
  result->n_threads_ = n_threads != 0 ? n_threads : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, max_threads);
  if (const auto set = function_of<ggml_backend_set_n_threads_t>(result->device_, "ggml_backend_set_n_threads")) {
    set(result->backend_.get(), result->n_threads_);
  }
  if (const auto set = function_of<ggml_backend_set_abort_callback_t>(result->device_, "ggml_backend_set_abort_callback")) {
    set(
        result->backend_.get(), [](void* flag) { return static_cast<std::atomic<bool>*>(flag)->load(std::memory_order_relaxed); },
        &result->interrupted_);
  }
  return result;
}

std::vector<ggml_backend_buffer_type_t> ExpertDevice::extra_buffer_types() const {
  std::vector<ggml_backend_buffer_type_t> types;
  const auto get = function_of<ggml_backend_dev_get_extra_bufts_t>(device_, "ggml_backend_dev_get_extra_bufts");
  if (get == nullptr) return types;
  for (auto* type = get(device_); type != nullptr && *type != nullptr; ++type) types.push_back(*type);
  return types;
}

std::string ExpertDevice::description() const {
  const std::string text = std::format("{}{} ({})", ggml_backend_dev_name(device_), is_cpu() ? architecture : std::string_view(),
                                       ggml_backend_dev_description(device_));
  return is_cpu() ? std::format("{}, {} threads", text, n_threads_) : text;
}

Result<> ExpertDevice::compute(ggml_cgraph* graph) {
  const ggml_status status = interrupted_ ? GGML_STATUS_ABORTED : ggml_backend_graph_compute(backend_.get(), graph);
  switch (status) {
    case GGML_STATUS_SUCCESS:
      return {};
    case GGML_STATUS_ABORTED:
      return fail(ErrorKind::unavailable, "the worker is stopping");
    case GGML_STATUS_ALLOC_FAILED:
      return fail(ErrorKind::unavailable, "the device is out of memory for this batch");
    default:
      return fail(ErrorKind::internal, "the device failed to compute (status {})", static_cast<int>(status));
  }
}

}  // namespace linkcpp::engine
