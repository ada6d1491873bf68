// A GGUF's mixture-of-experts anatomy: which stacked expert tensors exist, where their bytes lie, what a slice weighs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "wire/messages.h"

struct ggml_tensor;

namespace linkcpp::engine {

/// Region-space key of a layer's experts on the wire: the layer number, with the top bit set for a second, differently
/// sized set of experts in the same layer (grovemoe's chunk experts, "chexps").
using LayerKey = std::uint16_t;
inline constexpr LayerKey chunk_experts_bit = 0x8000;

/// A parsed expert tensor name: "blk.7.ffn_gate_exps.weight" is layer key 7, role "ffn_gate_exps.weight".
struct ExpertName {
  LayerKey layer = 0;
  std::string role;
};
/// None if the name is not that of a routed expert's stacked weight or bias ("attn_v_exps" and ".scale" tensors are not).
std::optional<ExpertName> parse_expert_name(std::string_view tensor_name);

/// One stacked tensor [n_in, n_out, n_expert] (weights) or [n_out, n_expert] (biases). Slice e is the contiguous byte range
/// [offset + e*slice_bytes, +slice_bytes) of file `file`.
struct ExpertTensor {
  std::string name;  ///< full tensor name
  std::string role;  ///< without "blk.N."
  int type = 0;      ///< ggml_type
  std::string type_name;
  bool is_bias = false;
  std::int64_t n_in = 0;  ///< row length; 0 for a bias
  std::int64_t n_out = 0;
  std::uint32_t n_expert = 0;
  std::uint64_t slice_bytes = 0;
  std::uint32_t file = 0;    ///< index into Anatomy::files
  std::uint64_t offset = 0;  ///< from the start of that file
  /// Whether a tensor of the engine has this type and shape, so that it can be the one of the file. A draft model that runs beside
  /// the served one has tensors of the same names.
  [[nodiscard]] bool fits(const ggml_tensor& tensor) const;
};

struct MoeLayer {
  LayerKey key = 0;
  std::uint32_t n_expert = 0;
  std::vector<ExpertTensor> tensors;
  [[nodiscard]] std::uint64_t expert_bytes() const;  ///< bytes of one expert over all tensors
  [[nodiscard]] std::uint32_t n_in() const;          ///< elements of an expert's input row (gate or up); 0 if it has neither
  [[nodiscard]] std::uint32_t n_out() const;         ///< elements of an expert's result row (down); 0 if it has none
};

struct Anatomy {
  std::vector<std::filesystem::path> files;  ///< all parts, in order
  std::string architecture;
  std::string name;
  std::uint32_t n_layer = 0;  ///< all blocks, dense ones too
  std::uint32_t n_embd = 0;
  std::uint32_t n_expert = 0;  ///< of the metadata; layers carry their own
  std::uint32_t top_k = 0;     ///< experts used a token
  std::uint32_t n_vocab = 0;
  std::uint32_t context_length = 0;
  bool shared_expert = false;
  /// The files are a backbone that `linkcpp slice` wrote (engine/backbone_file.h): in place of the routed experts there are holes, and
  /// the digest is the one that the cut model had.
  bool experts_absent = false;
  std::uint64_t total_bytes = 0;                        ///< tensor bytes of all files
  std::uint64_t expert_bytes = 0;                       ///< bytes of routed expert tensors
  std::map<std::string, std::uint64_t> expert_types;    ///< bytes of routed expert tensors by type name
  std::map<std::string, std::uint64_t> backbone_types;  ///< bytes of all other tensors by type name
  std::vector<MoeLayer> layers;                         ///< MoE layers only, by key
  /// Model digest: names the model for which experts are computed, however it is split into files. SHA-256 over, in order:
  ///   "linkcpp model 1\n", "architecture A\n", "n_embd N\n", "top_k N\n", "n_vocab N\n" (numbers in decimal);
  ///   for every expert tensor, by layer key and role: "experts NAME TYPE N_IN N_OUT N_EXPERT\n" (N_IN is 0 for a bias);
  ///   for every router "blk.N.ffn_gate_inp.weight" and "output_norm.weight", by name: "tensor NAME TYPE BYTES\n", its bytes;
  ///   for every expert tensor, by layer key and role: "sample NAME\n", then of expert 0, of expert n/2 and of the last one
  ///   the first 64 bytes of the slice (fewer if the slice is smaller).
  /// It tells models apart by accident, also fine-tunes of one base; it is no proof that every byte of an expert is genuine.
  wire::Digest digest{};

  [[nodiscard]] const MoeLayer* find(LayerKey key) const;
};

/// Reads a GGUF; any part of a multi-file model may be named, all parts are found and checked. Fails with a sentence that
/// names the file and what is wrong: not a GGUF, truncated (which bytes are missing), parts missing or foreign, no experts.
Result<Anatomy> read_anatomy(const std::filesystem::path& path);

/// The engine's number of a tensor type by its name ("q4_K"); none if it does not know it.
std::optional<int> type_by_name(std::string_view name);
/// Bytes of one expert's slice by the tensor's type and shape; 0 if rows of n_in are not whole blocks of the type, or a number is absurd.
std::uint64_t slice_bytes_of(const ExpertTensor& tensor);

/// Version of the engine this program runs on, for example "ggml 0.27.0".
std::string engine_version();

}  // namespace linkcpp::engine
