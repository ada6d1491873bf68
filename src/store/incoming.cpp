#include "store/incoming.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "store/file.h"

namespace linkcpp::store {
namespace {

/// What is written and then hashed at a time: more would have left the processor's cache by then.
constexpr std::size_t write_block = 128u << 10;

std::uint64_t free_bytes(const File& file) {
  struct statvfs info{};
  if (::fstatvfs(file.fd(), &info) != 0) return UINT64_MAX;  // then writing will tell
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

/// Whether the locked file is still the one under that name: another process may have finished or removed it while we opened it.
bool still_named(const File& file, const std::filesystem::path& path) {
  struct stat ours{}, named{};
  return ::fstat(file.fd(), &ours) == 0 && ::lstat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

Result<File> open_locked(const std::filesystem::path& path) {
  for (int attempt = 0; attempt < 8; ++attempt) {
    File file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
    if (!file) return fail(ErrorKind::io, "cannot open {}: {}", path.string(), os_reason(errno));
    struct stat info{};
    if (::fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode)) return fail(ErrorKind::io, "{} is not a regular file", path.string());
    if (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) return fail(ErrorKind::unavailable, "another process is writing {}", path.string());
      return fail(ErrorKind::io, "cannot lock {}: {}", path.string(), os_reason(errno));
    }
    if (still_named(file, path)) return file;
  }
  return fail(ErrorKind::unavailable, "another process is writing {}", path.string());
}

class PartialFile final : public Incoming {
 public:
  PartialFile(File file, IncomingPaths paths, const Digest& digest, std::uint64_t bytes, std::uint64_t have)
      : file_(std::move(file)), paths_(std::move(paths)), digest_(digest), bytes_(bytes), have_(have) {}

  [[nodiscard]] std::uint64_t have() const override { return have_; }

  Result<> append(ByteSpan bytes) override {
    if (gone_) return fail(ErrorKind::internal, "{} is not open any more", paths_.partial.string());
    if (bytes.size() > bytes_ - have_) {
      return fail(ErrorKind::invalid_input, "more bytes than the {} of slice {} were sent", bytes_, wire::to_hex(digest_));
    }
    if (auto caught_up = catch_up(); !caught_up) return caught_up;
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(file_.fd(), bytes.data(), std::min(bytes.size(), write_block), static_cast<off_t>(have_));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return write_failure(n < 0 ? errno : ENOSPC);
      hash_.add(bytes.first(static_cast<std::size_t>(n)));  // now, while they are in the processor's cache
      have_ += static_cast<std::uint64_t>(n);
      hashed_ = have_;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }

  Result<> commit() override {
    if (gone_) return fail(ErrorKind::internal, "{} is not open any more", paths_.partial.string());
    if (have_ != bytes_) {
      return fail(ErrorKind::unavailable, "slice {} is not whole: {} of {} bytes have arrived", wire::to_hex(digest_), have_, bytes_);
    }
    if (auto caught_up = catch_up(); !caught_up) return caught_up;
    const Digest digest = hash_.finish();
    hashed_ = 0;
    if (digest != digest_) {
      discard();
      return fail(ErrorKind::invalid_input, "what arrived as slice {} has the digest {}: it is corrupt and was thrown away",
                  wire::to_hex(digest_), wire::to_hex(digest));
    }
    std::error_code error;
    std::filesystem::create_directories(paths_.object.parent_path(), error);
    std::filesystem::rename(paths_.partial, paths_.object, error);
    if (error) return fail(ErrorKind::io, "cannot rename {} to {}: {}", paths_.partial.string(), paths_.object.string(), error.message());
    gone_ = true;
    return {};
  }

  void discard() override {
    if (gone_) return;
    gone_ = true;
    ::unlink(paths_.partial.c_str());  // before the lock goes: nobody resumes from bytes that were found wrong
  }

 private:
  /// What an earlier attempt left is hashed from the file.
  Result<> catch_up() {
    if (hashed_ == have_) return {};
    return add_to_hash(hash_, file_, hashed_, have_, paths_.partial);
  }

  std::unexpected<Error> write_failure(int error) const {
    if (error == ENOSPC || error == EDQUOT) {
      return fail(ErrorKind::io, "the disk is full: slice {} needs {} more bytes and {} are free at {}; free some, or use another folder",
                  wire::to_hex(digest_), bytes_ - have_, free_bytes(file_), paths_.partial.parent_path().parent_path().string());
    }
    return fail(ErrorKind::io, "cannot write {}: {}", paths_.partial.string(), os_reason(error));
  }

  File file_;
  IncomingPaths paths_;
  Digest digest_;
  std::uint64_t bytes_, have_;
  bool gone_ = false;
  ContentHash hash_;
  std::uint64_t hashed_ = 0;  ///< bytes that hash_ has
};

class WholeObject final : public Incoming {
 public:
  explicit WholeObject(std::uint64_t bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t have() const override { return bytes_; }
  Result<> append(ByteSpan bytes) override {
    if (bytes.empty()) return {};
    return fail(ErrorKind::invalid_input, "the slice is whole already");
  }
  Result<> commit() override { return {}; }
  void discard() override {}

 private:
  std::uint64_t bytes_;
};

}  // namespace

Result<std::unique_ptr<Incoming>> open_incoming(IncomingPaths paths, const Digest& digest, std::uint64_t bytes, std::uint64_t reserve) {
  auto file = open_locked(paths.partial);
  if (!file) return pass(file);
  auto have = size_of(*file, paths.partial);
  if (!have) return pass(have);
  if (*have > bytes) {  // of something else: nothing of it can be trusted
    if (::ftruncate(file->fd(), 0) != 0) return fail(ErrorKind::io, "cannot shorten {}: {}", paths.partial.string(), os_reason(errno));
    have = 0;
  }
  const std::uint64_t free = free_bytes(*file), needed = bytes - *have;
  if (needed > 0 && (free < reserve || free - reserve < needed)) {
    if (*have == 0) ::unlink(paths.partial.c_str());
    return fail(ErrorKind::io,
                "the disk is full: slice {} needs {} more bytes, {} are free at {} and {} of them stay reserved; free some, or use another "
                "folder",
                wire::to_hex(digest), needed, free, paths.partial.parent_path().parent_path().string(), reserve);
  }
  return std::make_unique<PartialFile>(std::move(*file), std::move(paths), digest, bytes, *have);
}

std::unique_ptr<Incoming> whole_incoming(std::uint64_t bytes) { return std::make_unique<WholeObject>(bytes); }

}  // namespace linkcpp::store
