#include "store/index.h"

#include <algorithm>

#include "store/content_hash.h"

namespace linkcpp::store {

std::uint64_t LayerSlices::slice_bytes() const { return parts.empty() ? 0 : parts.back().object_offset + parts.back().bytes; }

const LayerSlices* SliceIndex::find(std::uint16_t layer) const {
  const auto at = std::ranges::lower_bound(layers, layer, {}, &LayerSlices::layer);
  return at != layers.end() && at->layer == layer ? &*at : nullptr;
}

std::uint64_t SliceIndex::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const LayerSlices& layer : layers) bytes += layer.slice_bytes() * layer.slices.size();
  return bytes;
}

Digest index_digest(std::string_view text) { return content_hash(std::as_bytes(std::span(text))); }

std::vector<FilePiece> pieces_of(const LayerSlices& layer, std::uint32_t expert, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<FilePiece> pieces;
  const std::uint64_t whole = layer.slice_bytes();
  if (offset >= whole) return pieces;
  const std::uint64_t end = offset + std::min(bytes, whole - offset);
  for (const SlicePart& part : layer.parts) {
    const std::uint64_t first = std::max(offset, part.object_offset), last = std::min(end, part.object_offset + part.bytes);
    if (first >= last) continue;
    pieces.push_back({.file = part.file,
                      .file_offset = part.file_offset + expert * part.bytes + (first - part.object_offset),
                      .object_offset = first,
                      .bytes = last - first});
  }
  return pieces;
}

}  // namespace linkcpp::store
