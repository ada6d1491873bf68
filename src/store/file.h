// File descriptors with owners, and whole reads and writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "store/content_hash.h"

namespace linkcpp::store {

/// Owns a file descriptor.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File();
  [[nodiscard]] int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Opens a regular file for reading, following no link in its last component if `own` (a store's own files are none). `not_found` if there
/// is none, `io` if it cannot be opened or is no regular file.
Result<File> open_to_read(const std::filesystem::path& path, bool own = false);
Result<std::uint64_t> size_of(const File& file, const std::filesystem::path& path);
/// Reads exactly to.size() bytes; `io` if the file ends before. `path` is for the message.
Result<> read_at(const File& file, std::uint64_t offset, std::span<std::byte> to, const std::filesystem::path& path);
/// Adds the bytes from `at` to `to` of a file to a hash, and moves `at` on; errors as read_at().
Result<> add_to_hash(ContentHash& hash, const File& file, std::uint64_t& at, std::uint64_t to, const std::filesystem::path& path);
/// BLAKE3 hash of a file's first bytes; errors as read_at().
Result<wire::Digest> hash_of(const File& file, std::uint64_t bytes, const std::filesystem::path& path);
/// The operating system's word for errno.
std::string os_reason(int error);

}  // namespace linkcpp::store
