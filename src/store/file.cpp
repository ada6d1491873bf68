#include "store/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace linkcpp::store {
namespace {

constexpr std::size_t hash_block = 1u << 20;

}  // namespace

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

std::string os_reason(int error) { return std::generic_category().message(error); }

Result<File> open_to_read(const std::filesystem::path& path, bool own) {
  // Without O_NONBLOCK a named pipe in the file's place would hold this thread for ever.
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (own ? O_NOFOLLOW : 0)));
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return fail(ErrorKind::not_found, "there is no file {}", path.string());
  if (!file) return fail(ErrorKind::io, "cannot open {}: {}", path.string(), os_reason(errno));
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode)) return fail(ErrorKind::io, "{} is not a regular file", path.string());
  return file;
}

Result<std::uint64_t> size_of(const File& file, const std::filesystem::path& path) {
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0) return fail(ErrorKind::io, "cannot look at {}: {}", path.string(), os_reason(errno));
  return static_cast<std::uint64_t>(info.st_size);
}

Result<> read_at(const File& file, std::uint64_t offset, std::span<std::byte> to, const std::filesystem::path& path) {
  while (!to.empty()) {
    const ssize_t n = ::pread(file.fd(), to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorKind::io, "cannot read {}: {}", path.string(), os_reason(errno));
    if (n == 0) return fail(ErrorKind::io, "{} ends at byte {}: it was cut off", path.string(), offset);
    offset += static_cast<std::uint64_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Result<> add_to_hash(ContentHash& hash, const File& file, std::uint64_t& at, std::uint64_t to, const std::filesystem::path& path) {
  Bytes block(static_cast<std::size_t>(std::min<std::uint64_t>(to - at, hash_block)));
  while (at < to) {
    const auto part = std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), to - at)));
    if (auto read = read_at(file, at, part, path); !read) return read;
    hash.add(part);
    at += part.size();
  }
  return {};
}

Result<wire::Digest> hash_of(const File& file, std::uint64_t bytes, const std::filesystem::path& path) {
  ContentHash hash;
  std::uint64_t at = 0;
  if (auto added = add_to_hash(hash, file, at, bytes, path); !added) return pass(added);
  return hash.finish();
}

}  // namespace linkcpp::store
