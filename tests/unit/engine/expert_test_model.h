// A random small MoE model in a GGUF, its region programs, and what llama.cpp's own graph computes on it.
#pragma once

#include <fcntl.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <format>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/anatomy.h"
#include "engine/expert_host.h"
#include "wire/program.h"

namespace linkcpp::test {

struct ModelShape {
  ggml_type type = GGML_TYPE_F16;
  ggml_type down_type = GGML_TYPE_COUNT;  ///< COUNT: as `type`
  std::int64_t n_embd = 64, n_ff = 96, n_expert = 8, top_k = 3;
  int n_layers = 2;
  bool merged = false;  ///< gate and up in one tensor
  bool bias = false;
  std::uint32_t seed = 1;
};

inline std::vector<float> random_floats(std::size_t n, std::uint32_t seed, float width = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, width);
  std::vector<float> values(n);
  for (float& v : values) v = normal(generator);
  return values;
}

/// A folder that goes with its contents.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "linkcpp-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot create a temporary folder");
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Writes the model's GGUF.
class ModelWriter {
 public:
  ModelWriter(const ModelShape& shape, const std::filesystem::path& path) : s_(shape), seed_(shape.seed) {
    context_.reset(ggml_init({.mem_size = most_bytes(shape), .mem_buffer = nullptr, .no_alloc = false}));
    gguf_.reset(gguf_init_empty());
    gguf_set_val_str(gguf_.get(), "general.architecture", "qwen3moe");
    const auto count = [&](const char* key, std::int64_t n) { gguf_set_val_u32(gguf_.get(), key, static_cast<std::uint32_t>(n)); };
    count("qwen3moe.block_count", s_.n_layers);
    count("qwen3moe.embedding_length", s_.n_embd);
    count("qwen3moe.expert_count", s_.n_expert);
    count("qwen3moe.expert_used_count", s_.top_k);
    count("qwen3moe.vocab_size", 32);
    for (int layer = 0; layer < s_.n_layers; ++layer) add_layer(layer);
    if (!gguf_write_to_file(gguf_.get(), path.c_str(), false)) throw std::runtime_error("cannot write the test model");
  }

 private:
  /// As if all were floats. (A generous fixed size would be mapped and cleared for every test.)
  static std::size_t most_bytes(const ModelShape& s) {
    const auto rows = static_cast<std::size_t>(s.n_expert * (2 * s.n_ff + 2));
    const std::size_t layer =
        (rows * static_cast<std::size_t>(s.n_embd) + static_cast<std::size_t>(s.n_expert * s.n_ff * (s.n_embd + 2))) * sizeof(float);
    return static_cast<std::size_t>(s.n_layers) * (layer + 16 * ggml_tensor_overhead()) + (std::size_t{1} << 16);
  }

  struct GgufFree {
    void operator()(gguf_context* g) const { gguf_free(g); }
  };
  struct ContextFree {
    void operator()(ggml_context* c) const { ggml_free(c); }
  };

  void add_layer(int layer) {
    const ggml_type down = s_.down_type == GGML_TYPE_COUNT ? s_.type : s_.down_type;
    add(layer, "gate_inp.weight", GGML_TYPE_F32, s_.n_embd, s_.n_expert, 1);
    if (s_.merged) {
      add(layer, "gate_up_exps.weight", s_.type, s_.n_embd, 2 * s_.n_ff, s_.n_expert);
    } else {
      add(layer, "gate_exps.weight", s_.type, s_.n_embd, s_.n_ff, s_.n_expert);
      add(layer, "up_exps.weight", s_.type, s_.n_embd, s_.n_ff, s_.n_expert);
    }
    add(layer, "down_exps.weight", down, s_.n_ff, s_.n_embd, s_.n_expert);
    if (!s_.bias) return;
    add(layer, "gate_exps.bias", GGML_TYPE_F32, s_.n_ff, s_.n_expert, 1);
    add(layer, "up_exps.bias", GGML_TYPE_F32, s_.n_ff, s_.n_expert, 1);
    add(layer, "down_exps.bias", GGML_TYPE_F32, s_.n_embd, s_.n_expert, 1);
  }

  void add(int layer, const char* role, ggml_type type, std::int64_t n, std::int64_t rows, std::int64_t depth) {
    ggml_tensor* t =
        depth == 1 ? ggml_new_tensor_2d(context_.get(), type, n, rows) : ggml_new_tensor_3d(context_.get(), type, n, rows, depth);
    ggml_format_name(t, "blk.%d.ffn_%s", layer, role);
    const std::vector<float> values = random_floats(static_cast<std::size_t>(n * rows * depth), ++seed_, 0.2f);
    if (type == GGML_TYPE_F32) {
      std::memcpy(t->data, values.data(), values.size() * sizeof(float));
    } else {
      ggml_quantize_chunk(type, values.data(), t->data, 0, rows * depth, n, nullptr);
    }
    gguf_add_tensor(gguf_.get(), t);
  }

  ModelShape s_;
  std::uint32_t seed_;
  std::unique_ptr<ggml_context, ContextFree> context_;
  std::unique_ptr<gguf_context, GgufFree> gguf_;
};

inline engine::Anatomy write_model(const ModelShape& shape, const std::filesystem::path& path) {
  ModelWriter(shape, path);
  auto anatomy = engine::read_anatomy(path);
  if (!anatomy) throw std::runtime_error(anatomy.error().message);
  return std::move(*anatomy);
}

// ---- the region's program ----------------------------------------------------------------------------------------------

inline wire::Source from_op(int i) { return {wire::Source::Kind::op, static_cast<std::uint16_t>(i)}; }
inline wire::Source from_input(int i) { return {wire::Source::Kind::input, static_cast<std::uint16_t>(i)}; }
inline wire::Source from_weight(int i) { return {wire::Source::Kind::weight, static_cast<std::uint16_t>(i)}; }

class ProgramBuilder {
 public:
  int input(wire::Input::Kind kind, std::int64_t n) {
    program.inputs.push_back({kind, static_cast<std::uint32_t>(n)});
    return static_cast<int>(program.inputs.size()) - 1;
  }
  int op(wire::OpKind kind, std::int64_t n_out, wire::Source a, wire::Source b = {}, std::int32_t param = 0) {
    wire::Op& o = program.ops.emplace_back();
    o.kind = kind;
    o.n_out = static_cast<std::uint32_t>(n_out);
    o.params[0] = param;
    o.sources = {a, b, wire::Source{}};
    program.output = static_cast<std::uint16_t>(program.ops.size() - 1);
    return program.output;
  }
  int weighted(wire::OpKind kind, std::int64_t n_out, wire::Source a, const std::string& role) {
    program.weights.push_back(role);
    return op(kind, n_out, a, from_weight(static_cast<int>(program.weights.size()) - 1));
  }
  wire::Program program;
};

/// Input 0: rows x, a row a token. Input 1: router weights, one a pair. Output: weighted pair rows.
inline wire::Program make_program(const ModelShape& s) {
  using enum wire::OpKind;
  ProgramBuilder b;
  const auto x = from_input(b.input(wire::Input::Kind::token, s.n_embd));
  const auto w = from_input(b.input(wire::Input::Kind::pair, 1));
  const auto matmul = [&](const std::string& name, std::int64_t n_out, wire::Source rows) {
    int at = b.weighted(mul_mat_id, n_out, rows, "ffn_" + name + "_exps.weight");
    if (s.bias) at = b.weighted(add_id, n_out, from_op(at), "ffn_" + name + "_exps.bias");
    return from_op(at);
  };
  wire::Source gate, up;
  if (s.merged) {
    const auto both = matmul("gate_up", 2 * s.n_ff, x);
    gate = from_op(b.op(view, s.n_ff, both));
    up = from_op(b.op(view, s.n_ff, both));
    b.program.ops.back().offset = static_cast<std::uint32_t>(s.n_ff);
  } else {
    gate = matmul("gate", s.n_ff, x);
    up = matmul("up", s.n_ff, x);
  }
  const auto hidden = from_op(b.op(glu, s.n_ff, gate, up, GGML_GLU_OP_SWIGLU));
  const auto down = matmul("down", s.n_embd, hidden);
  b.op(mul, s.n_embd, down, w);
  return b.program;
}

// ---- the engine's own graph --------------------------------------------------------------------------------------------

/// Results of one region as llama.cpp computes it locally.
struct Expected {
  std::vector<float> pairs;  ///< [n_embd, top_k, T]
  std::vector<float> sums;   ///< [n_embd, T]
};

/// The graph that llama.cpp builds for a layer's routed experts, with plain ggml calls, on the CPU.
class ReferenceLayer {
 public:
  ReferenceLayer(const ModelShape& shape, const std::filesystem::path& path, int layer, std::int64_t n_tokens, int n_threads = 1)
      : s_(shape) {
    map_weights(path);
    if (ggml_backend_dev_count() == 0) ggml_backend_load_all();
    cpu_ = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    const auto registration = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_));
    const auto set_threads =
        reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(registration, "ggml_backend_set_n_threads"));
    set_threads(cpu_, n_threads);
    context_ = ggml_init({.mem_size = std::size_t{64} << 20, .mem_buffer = nullptr, .no_alloc = true});
    build(layer, n_tokens);
    allocator_ = ggml_gallocr_new(ggml_backend_get_default_buffer_type(cpu_));
    ggml_gallocr_alloc_graph(allocator_, graph_);
  }
  ~ReferenceLayer() {
    ggml_gallocr_free(allocator_);
    ggml_free(context_);
    ggml_free(weights_);
    ::munmap(mapped_, mapped_bytes_);
    ggml_backend_free(cpu_);
  }
  ReferenceLayer(const ReferenceLayer&) = delete;
  ReferenceLayer& operator=(const ReferenceLayer&) = delete;

  void set(const std::vector<float>& x, const std::vector<std::int32_t>& ids, const std::vector<float>& w) {
    std::memcpy(x_->data, x.data(), ggml_nbytes(x_));
    std::memcpy(ids_->data, ids.data(), ggml_nbytes(ids_));
    std::memcpy(w_->data, w.data(), ggml_nbytes(w_));
  }
  void compute() { ggml_backend_graph_compute(cpu_, graph_); }
  [[nodiscard]] Expected result() const {
    const auto* rows = static_cast<const float*>(rows_->data);
    const auto* sum = static_cast<const float*>(sum_->data);
    return {{rows, rows + ggml_nelements(rows_)}, {sum, sum + ggml_nelements(sum_)}};
  }

 private:
  /// In place, as llama.cpp does.
  void map_weights(const std::filesystem::path& path) {
    gguf_init_params params{.no_alloc = true, .ctx = &weights_};
    gguf_context* gguf = gguf_init_from_file(path.c_str(), params);
    mapped_bytes_ = std::filesystem::file_size(path);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    if (gguf == nullptr || mapped_ == MAP_FAILED) throw std::runtime_error("cannot map the test model");
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf); ++i) {
      ggml_get_tensor(weights_, gguf_get_tensor_name(gguf, i))->data =
          static_cast<std::byte*>(mapped_) + gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, i);
    }
    gguf_free(gguf);
  }

  ggml_tensor* weight(int layer, const char* role) const {
    return ggml_get_tensor(weights_, std::format("blk.{}.ffn_{}", layer, role).c_str());
  }
  ggml_tensor* matmul(int layer, const std::string& name, ggml_tensor* rows) {
    ggml_tensor* product = ggml_mul_mat_id(context_, weight(layer, (name + "_exps.weight").c_str()), rows, ids_);
    return s_.bias ? ggml_add_id(context_, product, weight(layer, (name + "_exps.bias").c_str()), ids_) : product;
  }

  void build(int layer, std::int64_t n_tokens) {
    ggml_context* c = context_;
    graph_ = ggml_new_graph(c);
    x_ = ggml_new_tensor_3d(c, GGML_TYPE_F32, s_.n_embd, 1, n_tokens);
    ids_ = ggml_new_tensor_2d(c, GGML_TYPE_I32, s_.top_k, n_tokens);
    w_ = ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, s_.top_k, n_tokens);
    for (ggml_tensor* t : {x_, ids_, w_}) ggml_set_input(t);
    ggml_tensor *gate = nullptr, *up = nullptr;
    if (s_.merged) {
      ggml_tensor* both = matmul(layer, "gate_up", x_);
      gate = ggml_view_3d(c, both, s_.n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
      up = ggml_view_3d(c, both, s_.n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2],
                        static_cast<std::size_t>(s_.n_ff) * sizeof(float));
    } else {
      up = matmul(layer, "up", x_);
      gate = matmul(layer, "gate", x_);
    }
    rows_ = ggml_mul(c, matmul(layer, "down", ggml_swiglu_split(c, gate, up)), w_);
    ggml_set_output(rows_);
    ggml_build_forward_expand(graph_, rows_);
    for (std::int64_t i = 0; i < s_.top_k; ++i) {
      ggml_tensor* slot = ggml_view_2d(c, rows_, s_.n_embd, n_tokens, rows_->nb[2], static_cast<std::size_t>(i) * rows_->nb[1]);
      ggml_build_forward_expand(graph_, slot);
      sum_ = i == 0 ? slot : ggml_add(c, sum_, slot);
    }
    if (s_.top_k == 1) sum_ = ggml_cont(c, sum_);
    ggml_set_output(sum_);
    ggml_build_forward_expand(graph_, sum_);
  }

  ModelShape s_;
  ggml_context *weights_ = nullptr, *context_ = nullptr;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  ggml_backend_t cpu_ = nullptr;
  ggml_gallocr_t allocator_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor *x_ = nullptr, *ids_ = nullptr, *w_ = nullptr, *rows_ = nullptr, *sum_ = nullptr;
};

/// Random activations, selections and router weights of a region.
struct Workload {
  std::int64_t n_tokens;
  std::vector<float> x, w;
  std::vector<std::int32_t> ids;

  Workload(const ModelShape& s, std::int64_t tokens, std::uint32_t seed)
      : n_tokens(tokens),
        x(random_floats(static_cast<std::size_t>(s.n_embd * tokens), seed)),
        w(random_floats(static_cast<std::size_t>(s.top_k * tokens), seed + 1)) {
    std::mt19937 generator(seed + 2);
    std::vector<std::int32_t> experts(static_cast<std::size_t>(s.n_expert));
    for (std::size_t e = 0; e < experts.size(); ++e) experts[e] = static_cast<std::int32_t>(e);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::shuffle(experts.begin(), experts.end(), generator);
      ids.insert(ids.end(), experts.begin(), experts.begin() + s.top_k);
    }
  }
};

/// The part of a workload that a worker with some of the experts is asked for.
struct Share {
  std::vector<wire::WirePair> pairs;
  std::vector<std::size_t> index;  ///< of each pair in the workload
  std::vector<float> w;
  std::vector<float> output;

  template <class Held>
  Share(const ModelShape& s, const Workload& load, Held&& held) {
    for (std::size_t i = 0; i < load.ids.size(); ++i) {
      if (!held(load.ids[i])) continue;
      pairs.push_back({static_cast<std::uint32_t>(i / static_cast<std::size_t>(s.top_k)), static_cast<std::uint16_t>(load.ids[i])});
      index.push_back(i);
      w.push_back(load.w[i]);
    }
  }
  engine::HostRequest request(const ModelShape& s, const Workload& load, wire::CombineMode mode) {
    const std::size_t n_rows = mode == wire::CombineMode::raw ? pairs.size() : static_cast<std::size_t>(load.n_tokens);
    output.assign(n_rows * static_cast<std::size_t>(s.n_embd), -1.0f);
    return {.n_tokens = static_cast<std::uint32_t>(load.n_tokens), .pairs = pairs, .inputs = {load.x, w}, .mode = mode, .output = output};
  }
};

inline Expected reference(const ModelShape& s, const std::filesystem::path& path, int layer, const Workload& load) {
  ReferenceLayer graph(s, path, layer, load.n_tokens);
  graph.set(load.x, load.ids, load.w);
  graph.compute();
  return graph.result();
}

}  // namespace linkcpp::test
