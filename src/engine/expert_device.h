// The ggml device that a worker computes on.
#pragma once

#include <ggml-backend.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace linkcpp::engine {

struct BackendFree {
  void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct BufferFree {
  void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
struct ContextFree {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
struct AllocatorFree {
  void operator()(ggml_gallocr_t allocator) const { ggml_gallocr_free(allocator); }
};
using BackendPtr = std::unique_ptr<ggml_backend, BackendFree>;
using BufferPtr = std::unique_ptr<ggml_backend_buffer, BufferFree>;
using ContextPtr = std::unique_ptr<ggml_context, ContextFree>;
using AllocatorPtr = std::unique_ptr<ggml_gallocr, AllocatorFree>;

/// One opened device. Threading: one thread at a time, except interrupt().
class ExpertDevice {
 public:
  /// `n_threads` 0: as many as cores. The error for an unknown name lists those that exist.
  static Result<std::unique_ptr<ExpertDevice>> open(const std::string& name, int n_threads);

  [[nodiscard]] ggml_backend_dev_t device() const { return device_; }
  [[nodiscard]] ggml_backend_buffer_type_t buffer_type() const { return ggml_backend_dev_buffer_type(device_); }
  /// Layouts that the device prefers for weights (the CPU's repacked ones).
  [[nodiscard]] std::vector<ggml_backend_buffer_type_t> extra_buffer_types() const;
  [[nodiscard]] bool is_cpu() const { return ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU; }
  [[nodiscard]] int n_threads() const { return n_threads_; }
  /// "Vulkan0 (a card)", "CPU (a processor), 2 threads", "CPU arm64 (a processor), 2 threads".
  [[nodiscard]] std::string description() const;
  [[nodiscard]] bool supports(const ggml_tensor* op) const { return ggml_backend_dev_supports_op(device_, op); }

  Result<> compute(ggml_cgraph* graph);
  void interrupt() noexcept { interrupted_ = true; }

 private:
  ExpertDevice() = default;
  ggml_backend_dev_t device_ = nullptr;
  BackendPtr backend_;
  int n_threads_ = 1;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace linkcpp::engine
