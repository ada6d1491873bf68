// A file that is being written under a temporary name, and takes its own when it is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::engine {

/// Removed on destruction unless name() has succeeded. All errors are `io` and name the file.
class NewFile {
 public:
  static Result<NewFile> create(std::filesystem::path temporary);
  NewFile(NewFile&& other) noexcept
      : temporary_(std::move(other.temporary_)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        written_(other.written_),
        started_(other.started_) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  Result<> append(ByteSpan bytes);
  /// Lengthens the file with a hole.
  Result<> set_size(std::uint64_t bytes);
  /// Ends writing and renames.
  Result<> name(const std::filesystem::path& path);

 private:
  NewFile(std::filesystem::path temporary, int descriptor) : temporary_(std::move(temporary)), descriptor_(descriptor) {}
  /// Lets the kernel begin to write what it holds; returns at once.
  void start_writing();
  std::filesystem::path temporary_;
  int descriptor_;
  std::uint64_t written_ = 0;  ///< by append()
  std::uint64_t started_ = 0;  ///< of these: the kernel was told to write them
};

}  // namespace linkcpp::engine
