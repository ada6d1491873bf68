#include "engine/anatomy_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace linkcpp::engine {
namespace {

std::string reason() { return std::generic_category().message(errno); }

}  // namespace

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  // Not blocking: opening a named pipe by mistake must not wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ENOENT) return fail(ErrorKind::not_found, "{} does not exist; check the path.", path.string());
    return fail(ErrorKind::io, "{} cannot be opened: {}.", path.string(), reason());
  }
  InputFile file(descriptor, 0);
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) return fail(ErrorKind::io, "{} cannot be read: {}.", path.string(), reason());
  if (S_ISDIR(status.st_mode)) return fail(ErrorKind::invalid_input, "{} is a folder; name the GGUF file in it.", path.string());
  if (!S_ISREG(status.st_mode)) return fail(ErrorKind::invalid_input, "{} is not a regular file; name a GGUF file.", path.string());
  file.size_ = static_cast<std::uint64_t>(status.st_size);
  return file;
}

Result<std::vector<InputFile>> InputFile::open_all(const std::vector<std::filesystem::path>& paths) {
  std::vector<InputFile> files;
  for (const auto& path : paths) {
    auto file = open(path);
    if (!file) return pass(file);
    files.push_back(std::move(*file));
  }
  return files;
}

InputFile::InputFile(InputFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool InputFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

}  // namespace linkcpp::engine
