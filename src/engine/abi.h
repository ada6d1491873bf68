// The binary interface of a ggml backend, API version 3 (ggml 0.27): layouts that no installed header declares.
//
// ggml's public headers name these types but keep their layout to themselves; an out-of-tree backend must know it. The
// facts here were established by observing the running library (shared knowledge of the interface, not its source text) and
// hold for abi::api_version only: the plugin checks the version that the engine reports before it touches any of them.
// We define no buffer type of our own, since that structure changes most between versions; we return the base device's.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>

namespace linkcpp::abi {

inline constexpr int api_version = 3;
/// The engine that this layout was proved with.
inline constexpr const char* proved_with = "0.27.0";

struct RegInterface {
  const char* (*get_name)(ggml_backend_reg_t);
  std::size_t (*get_device_count)(ggml_backend_reg_t);
  ggml_backend_dev_t (*get_device)(ggml_backend_reg_t, std::size_t);
  void* (*get_proc_address)(ggml_backend_reg_t, const char*);
};
struct Reg {
  int version;
  RegInterface iface;
  void* context;
};

struct DeviceInterface {
  const char* (*get_name)(ggml_backend_dev_t);
  const char* (*get_description)(ggml_backend_dev_t);
  void (*get_memory)(ggml_backend_dev_t, std::size_t* free, std::size_t* total);
  enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
  void (*get_props)(ggml_backend_dev_t, ggml_backend_dev_props*);
  ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char* params);
  ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
  ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t);
  ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void*, std::size_t size, std::size_t max_tensor_size);
  bool (*supports_op)(ggml_backend_dev_t, const ggml_tensor*);
  bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
  bool (*offload_op)(ggml_backend_dev_t, const ggml_tensor*);
  ggml_backend_event_t (*event_new)(ggml_backend_dev_t);
  void (*event_free)(ggml_backend_dev_t, ggml_backend_event_t);
  void (*event_synchronize)(ggml_backend_dev_t, ggml_backend_event_t);
};
struct Device {
  DeviceInterface iface;
  ggml_backend_reg_t reg;
  void* context;
};

struct GraphOptimizeParams;
struct BackendInterface {
  const char* (*get_name)(ggml_backend_t);
  void (*free)(ggml_backend_t);
  void (*set_tensor_async)(ggml_backend_t, ggml_tensor*, const void*, std::size_t offset, std::size_t size);
  void (*get_tensor_async)(ggml_backend_t, const ggml_tensor*, void*, std::size_t offset, std::size_t size);
  void (*set_tensor_2d_async)(ggml_backend_t, ggml_tensor*, const void*, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t);
  void (*get_tensor_2d_async)(ggml_backend_t, const ggml_tensor*, void*, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t);
  bool (*cpy_tensor_async)(ggml_backend_t, ggml_backend_t, const ggml_tensor*, ggml_tensor*);
  void (*synchronize)(ggml_backend_t);
  ggml_backend_graph_plan_t (*graph_plan_create)(ggml_backend_t, const ggml_cgraph*);
  void (*graph_plan_free)(ggml_backend_t, ggml_backend_graph_plan_t);
  void (*graph_plan_update)(ggml_backend_t, ggml_backend_graph_plan_t, const ggml_cgraph*);
  ggml_status (*graph_plan_compute)(ggml_backend_t, ggml_backend_graph_plan_t);
  ggml_status (*graph_compute)(ggml_backend_t, ggml_cgraph*);
  void (*event_record)(ggml_backend_t, ggml_backend_event_t);
  void (*event_wait)(ggml_backend_t, ggml_backend_event_t);
  void (*graph_optimize)(ggml_backend_t, ggml_cgraph*, GraphOptimizeParams*);
};
struct Backend {
  ggml_guid_t guid;
  BackendInterface iface;
  ggml_backend_dev_t device;
  void* context;
};

struct HashSet {
  std::size_t size;
  std::uint32_t* used;  ///< bit set
  ggml_tensor** keys;
};
struct Graph {
  int size;
  int n_nodes;
  int n_leafs;
  ggml_tensor** nodes;
  ggml_tensor** grads;
  ggml_tensor** grad_accs;
  ggml_tensor** leafs;
  std::int32_t* use_counts;  ///< by slot of visited_hash_set
  HashSet visited_hash_set;
  int order;
  std::uint64_t uid;  ///< 0: unset
};

static_assert(sizeof(RegInterface) == 4 * sizeof(void*) && sizeof(Reg) == 6 * sizeof(void*));
static_assert(sizeof(DeviceInterface) == 15 * sizeof(void*) && sizeof(Device) == 17 * sizeof(void*));
static_assert(sizeof(BackendInterface) == 16 * sizeof(void*) && sizeof(Backend) == 19 * sizeof(void*));
static_assert(offsetof(Graph, nodes) == 16 && offsetof(Graph, use_counts) == 48 && offsetof(Graph, uid) == 88);

inline const Graph& view(const ggml_cgraph* graph) { return *reinterpret_cast<const Graph*>(graph); }
inline ggml_cgraph* opaque(Graph* graph) { return reinterpret_cast<ggml_cgraph*>(graph); }
inline ggml_backend_t opaque(Backend* backend) { return reinterpret_cast<ggml_backend_t>(backend); }
inline ggml_backend_dev_t opaque(Device* device) { return reinterpret_cast<ggml_backend_dev_t>(device); }
inline ggml_backend_reg_t opaque(Reg* reg) { return reinterpret_cast<ggml_backend_reg_t>(reg); }
inline Backend& layout(ggml_backend_t backend) { return *reinterpret_cast<Backend*>(backend); }
inline Device& layout(ggml_backend_dev_t device) { return *reinterpret_cast<Device*>(device); }
inline Reg& layout(ggml_backend_reg_t reg) { return *reinterpret_cast<Reg*>(reg); }

/// A graph of the nodes [first, first + n), which share the parent's use counts. It has no identity of its own (uid 0).
inline Graph subgraph(const Graph& parent, ggml_tensor** first, int n) {
  Graph part = parent;
  part.size = part.n_leafs = 0;
  part.n_nodes = n;
  part.nodes = first;
  part.grads = part.grad_accs = part.leafs = nullptr;
  part.uid = 0;
  return part;
}

}  // namespace linkcpp::abi
