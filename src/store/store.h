// The slice store: a folder of content-addressed objects that were verified when they arrived, and unfinished ones that resume.
//
//   FOLDER/objects/ab/abcdef…     a whole object; its name is the BLAKE3 hash of its bytes
//   FOLDER/partial/abcdef…        the first bytes of one that is still arriving
//   FOLDER/indexes/abcdef….json   slice indexes, by their digest
//
// `linkcpp slice` writes the same folder (with index.json beside), so a sliced model is a store, and a store can be served by any static
// web server. Whole objects appear by rename, so whatever moment a process is killed at, an object is either whole or not there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "store/index.h"

namespace linkcpp::store {

/// Where an object lies under a store's folder, and under the URL of one: "objects/ab/abcdef…".
std::string object_name(const Digest& digest);

/// An object on its way into the store. Owns the partial file's lock: one process at a time writes an object. Destroying it keeps what has
/// arrived for the next attempt.
class Incoming {
 public:
  virtual ~Incoming() = default;
  /// Bytes that are there already: the transfer goes on from here. Their hash has been taken up.
  [[nodiscard]] virtual std::uint64_t have() const = 0;
  /// Appends. Fails with `io` (disk full: says how much is needed and where), keeping what is there.
  virtual Result<> append(ByteSpan bytes) = 0;
  /// Checks length and digest and makes it an object. On a wrong digest the partial bytes are removed and the error is `invalid_input`.
  virtual Result<> commit() = 0;
  /// Removes what has arrived: a source was found to be lying.
  virtual void discard() = 0;
};

struct StoreOptions {
  std::uint64_t reserve_bytes = 64u << 20;  ///< of the file system that stay free: an object that would take them is not begun
};

/// Threading: all functions from any thread; several processes may share a folder.
class Store {
 public:
  /// Makes the folder if it does not exist. Fails with `io`, naming the folder.
  static Result<std::unique_ptr<Store>> open(const std::filesystem::path& folder, StoreOptions options = {});
  virtual ~Store() = default;

  [[nodiscard]] virtual const std::filesystem::path& folder() const = 0;
  /// Whether a whole object of this size is there. Objects of another size (somebody truncated them) are removed and count as missing.
  [[nodiscard]] virtual bool has(const Digest& digest, std::uint64_t bytes) const = 0;
  [[nodiscard]] virtual std::filesystem::path path_of(const Digest& digest) const = 0;
  /// Begins or resumes an object of `bytes` bytes. `unavailable`: another process is writing it now.
  virtual Result<std::unique_ptr<Incoming>> receive(const Digest& digest, std::uint64_t bytes) = 0;
  /// Reads exactly to.size() bytes of a whole object.
  virtual Result<> read(const Digest& digest, std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// Hashes an object anew; a damaged one is removed and the error is `invalid_input`.
  virtual Result<> verify(const Digest& digest, std::uint64_t bytes) = 0;
  virtual Result<> remove(const Digest& digest) = 0;

  virtual Result<> put_index(std::string_view text) = 0;
  virtual Result<std::string> index(const Digest& digest) const = 0;
  /// Bytes of whole objects and of partial ones.
  struct Usage {
    std::uint64_t objects = 0, object_bytes = 0, partials = 0, partial_bytes = 0;
  };
  [[nodiscard]] virtual Usage usage() const = 0;
};

}  // namespace linkcpp::store
