// The slice index: every (layer, expert) of a model as a content-addressed slice, and where its bytes lie in the model's GGUF files.
//
// A slice is one expert of one layer: the block-aligned ranges of all stacked tensors of that layer (gate, up, down or gate_up, biases)
// as one object. The object's bytes are its parts in the order of LayerSlices::parts, each part at part.object_offset (a multiple of
// slice_alignment), the gaps filled with zeros. Its name is the BLAKE3 hash of all those bytes.
//
// The index is a JSON file ("index.json", docs/slices.md is its specification). Its own name is the BLAKE3 hash of that file's bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "wire/messages.h"

namespace linkcpp::store {

using wire::Digest;

inline constexpr std::uint64_t slice_alignment = 64;           ///< of parts in an object: what any device's upload is content with
inline constexpr std::size_t max_index_bytes = 256u << 20;     ///< of its JSON
inline constexpr std::uint64_t max_slice_bytes = 16ull << 30;  ///< of one object

/// One of the model's GGUF files, as it was cut.
struct SourceFile {
  std::string name;  ///< last component of its path, no separators
  std::uint64_t bytes = 0;
  bool operator==(const SourceFile&) const = default;
};

/// One stacked tensor of a layer: what every object of the layer has of it. Expert e's part is the range
/// [file_offset + e * bytes, + bytes) of file `file`, and [object_offset, + bytes) of its object.
struct SlicePart {
  std::string tensor;     ///< full name, "blk.7.ffn_gate_exps.weight"
  std::string type;       ///< the engine's name of its type, "q4_K"
  std::int64_t n_in = 0;  ///< row length; 0 for a bias
  std::int64_t n_out = 0;
  std::uint64_t bytes = 0;  ///< of one expert
  std::uint32_t file = 0;   ///< into SliceIndex::files
  std::uint64_t file_offset = 0;
  std::uint64_t object_offset = 0;
  bool operator==(const SlicePart&) const = default;
};

struct LayerSlices {
  std::uint16_t layer = 0;  ///< engine::LayerKey
  std::vector<SlicePart> parts;
  std::vector<Digest> slices;                       ///< by expert number
  [[nodiscard]] std::uint64_t slice_bytes() const;  ///< of one object: the end of its last part
  bool operator==(const LayerSlices&) const = default;
};

struct SliceIndex {
  Digest model{};  ///< model digest (engine/anatomy.h)
  std::string architecture;
  std::string name;
  std::uint32_t n_layer = 0, n_embd = 0, n_expert = 0, top_k = 0, n_vocab = 0;
  bool shared_expert = false;
  std::vector<SourceFile> files;
  std::vector<LayerSlices> layers;  ///< MoE layers only, ascending

  [[nodiscard]] const LayerSlices* find(std::uint16_t layer) const;
  [[nodiscard]] std::uint64_t total_bytes() const;  ///< of all slices
  bool operator==(const SliceIndex&) const = default;
};

/// The index as its file's bytes; the same index always gives the same bytes.
std::string encode_index(const SliceIndex& index);
/// Fails with `invalid_input`, naming the place and the fault, on anything that breaks a rule above or a limit: parts that overlap or are
/// misaligned, ranges outside their file, slices of another number than the layer's experts, absurd counts. Memory stays within a small
/// multiple of the text.
Result<SliceIndex> decode_index(std::string_view text);
/// Name of an index: the BLAKE3 hash of its bytes.
Digest index_digest(std::string_view text);

/// A slice of an index.
struct SliceKey {
  std::uint16_t layer = 0;
  std::uint16_t expert = 0;
  auto operator<=>(const SliceKey&) const = default;
};

/// A range of one of the model's files that is a range of an object. Gaps between parts have none: they are zeros.
struct FilePiece {
  std::uint32_t file = 0;
  std::uint64_t file_offset = 0;
  std::uint64_t object_offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const FilePiece&) const = default;
};
/// Which pieces of the model's files make up bytes [offset, offset + bytes) of a slice's object, ascending. Pure.
std::vector<FilePiece> pieces_of(const LayerSlices& layer, std::uint32_t expert, std::uint64_t offset, std::uint64_t bytes);

}  // namespace linkcpp::store
