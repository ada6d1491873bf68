// Fuzzes the reader of slice indexes: any text is refused with a sentence, or accepted as an index whose ranges lie where they should and
// that survives encoding.
#include <span>

#include "require.h"
#include "store/index.h"
#include "support/sample_index.h"

using linkcpp::fuzz::require;

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const std::string text = linkcpp::store::encode_index(linkcpp::test::sample_index());
  const auto bytes = std::as_bytes(std::span(text));
  linkcpp::fuzz::SeedFolder().add("index", {bytes.begin(), bytes.end()});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp::store;
  const auto index = decode_index({reinterpret_cast<const char*>(data), size});
  if (!index) {
    require(!index.error().message.empty(), "an error has a message");
    return 0;
  }
  const std::string text = encode_index(*index);
  const auto again = decode_index(text);
  require(again && *again == *index && encode_index(*again) == text, "an accepted index survives encoding");
  for (const LayerSlices& layer : index->layers) {
    require(index->find(layer.layer) == &layer, "layers are found");
    require(layer.slice_bytes() <= max_slice_bytes, "objects are bounded");
    std::uint64_t covered = 0;
    const auto last = static_cast<std::uint32_t>(layer.slices.size() - 1);
    for (const FilePiece& piece : pieces_of(layer, last, 0, UINT64_MAX)) {
      require(piece.object_offset % slice_alignment == 0 && piece.object_offset >= covered, "parts are aligned and follow each other");
      covered = piece.object_offset + piece.bytes;
      require(piece.file < index->files.size(), "files exist");
      require(piece.file_offset + piece.bytes <= index->files[piece.file].bytes, "pieces lie in their files");
    }
    require(covered == layer.slice_bytes(), "pieces end with the object");
  }
  return 0;
}
