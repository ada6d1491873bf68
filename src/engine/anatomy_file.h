// A regular file opened for reading, closed by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/error.h"

namespace linkcpp::engine {

class InputFile {
 public:
  /// Fails with not_found, or with io if it cannot be read or is not a regular file.
  static Result<InputFile> open(const std::filesystem::path& path);
  /// All of them, in order; the first error if one fails.
  static Result<std::vector<InputFile>> open_all(const std::vector<std::filesystem::path>& paths);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Reads exactly to.size() bytes at an offset; false if the file ends before or the system fails.
  [[nodiscard]] bool read_at(std::uint64_t offset, std::span<std::byte> to) const;

 private:
  InputFile(int descriptor, std::uint64_t size) : descriptor_(descriptor), size_(size) {}
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace linkcpp::engine
