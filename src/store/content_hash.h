// The hash that names slices and indexes: BLAKE3 over a stream (https://github.com/BLAKE3-team/BLAKE3-specs, libblake3).
//
// Not SHA-256: a gigabyte would take as long to verify as to receive, on machines without SHA instructions several times as long.
// `b3sum FILE` prints the same digest.
#pragma once

#include <blake3.h>

#include "base/bytes.h"
#include "wire/messages.h"

namespace linkcpp::store {

class ContentHash {
 public:
  ContentHash() { blake3_hasher_init(&state_); }
  /// Pieces of 16 KiB or more fill wide vector registers; smaller ones are slower.
  void add(ByteSpan bytes) { blake3_hasher_update(&state_, bytes.data(), bytes.size()); }
  void add_zeros(std::uint64_t n);
  /// The digest of everything added; afterwards the object starts anew.
  wire::Digest finish();

 private:
  blake3_hasher state_;
};

wire::Digest content_hash(ByteSpan bytes);

}  // namespace linkcpp::store
