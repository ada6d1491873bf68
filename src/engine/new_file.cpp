#include "engine/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace linkcpp::engine {
namespace {

/// The disk is set to work this often: by itself the kernel would leave it idle until memory fills, and then writing waits for it.
constexpr std::uint64_t write_behind = 8u << 20;

std::string system_reason() { return std::generic_category().message(errno); }

}  // namespace

Result<NewFile> NewFile::create(std::filesystem::path temporary) {
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return fail(ErrorKind::io, "cannot create {}: {}.", temporary.string(), system_reason());
  return NewFile(std::move(temporary), descriptor);
}

NewFile::~NewFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

Result<> NewFile::append(ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorKind::io, "cannot write {}: {}.", temporary_.string(), system_reason());
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    written_ += static_cast<std::uint64_t>(n);
  }
  if (written_ - started_ >= write_behind) start_writing();
  return {};
}

void NewFile::start_writing() {
  ::sync_file_range(descriptor_, static_cast<off_t>(started_), static_cast<off_t>(written_ - started_), SYNC_FILE_RANGE_WRITE);
  started_ = written_;
}

Result<> NewFile::set_size(std::uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0) return {};
  return fail(ErrorKind::io, "cannot make {} {} bytes long (it takes no room on a file system with sparse files): {}.", temporary_.string(),
              bytes, system_reason());
}

Result<> NewFile::name(const std::filesystem::path& path) {
  start_writing();
  if (::close(std::exchange(descriptor_, -1)) == 0 && ::rename(temporary_.c_str(), path.c_str()) == 0) return {};
  const std::string reason = system_reason();
  ::unlink(temporary_.c_str());
  return fail(ErrorKind::io, "cannot finish {}: {}.", path.string(), reason);
}

}  // namespace linkcpp::engine
