#include "store/content_hash.h"

#include <algorithm>
#include <array>

namespace linkcpp::store {

void ContentHash::add_zeros(std::uint64_t n) {
  static constexpr std::array<std::byte, 4096> zeros{};
  while (n != 0) {
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(n, zeros.size()));
    add(ByteSpan(zeros).first(part));
    n -= part;
  }
}

wire::Digest ContentHash::finish() {
  wire::Digest digest{};
  static_assert(sizeof digest == BLAKE3_OUT_LEN);
  blake3_hasher_finalize(&state_, reinterpret_cast<std::uint8_t*>(digest.data()), digest.size());
  blake3_hasher_reset(&state_);
  return digest;
}

wire::Digest content_hash(ByteSpan bytes) {
  ContentHash hash;
  hash.add(bytes);
  return hash.finish();
}

}  // namespace linkcpp::store
