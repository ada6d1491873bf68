// An object that is arriving: its partial file, the lock on it, and its hash.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "store/file.h"
#include "store/sha256.h"
#include "store/store.h"

namespace linkcpp::store {

/// Hashes a file that grows, on a thread of its own, so that receiving and hashing share the time. It reads what it hashes back from the
/// file: what counts is what lies there, and bytes from an earlier attempt need no case of their own.
class TrailingHash {
 public:
  TrailingHash(const File& file, std::filesystem::path path);
  ~TrailingHash();
  TrailingHash(const TrailingHash&) = delete;
  TrailingHash& operator=(const TrailingHash&) = delete;
  /// So many bytes are there now.
  void grown(std::uint64_t bytes);
  /// The digest of all of them.
  Result<Digest> finish();

 private:
  void run();
  const File& file_;
  const std::filesystem::path path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t there_ = 0;
  bool complete_ = false, stop_ = false;
  Result<Digest> result_{Digest{}};
  std::thread thread_;
};

struct IncomingPaths {
  std::filesystem::path partial, object;
};

/// Takes the partial file, or makes it. `reserve`: StoreOptions.
Result<std::unique_ptr<Incoming>> open_incoming(IncomingPaths paths, const Digest& digest, std::uint64_t bytes, std::uint64_t reserve);
/// One that is whole already.
std::unique_ptr<Incoming> whole_incoming(std::uint64_t bytes);

}  // namespace linkcpp::store
