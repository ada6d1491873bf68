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

namespace linkcpp::store {
namespace {

constexpr std::size_t trailing_block = 256u << 10;
/// Below this the hash is taken at the end: a thread would cost more than it saves.
constexpr std::uint64_t least_for_thread = 8u << 20;

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
      : file_(std::move(file)), paths_(std::move(paths)), digest_(digest), bytes_(bytes), have_(have) {
    if (bytes_ < least_for_thread) return;
    hash_.emplace(file_, paths_.partial);
    hash_->grown(have_);
  }

  [[nodiscard]] std::uint64_t have() const override { return have_; }

  Result<> append(ByteSpan bytes) override {
    if (gone_) return fail(ErrorKind::internal, "{} is not open any more", paths_.partial.string());
    if (bytes.size() > bytes_ - have_) {
      return fail(ErrorKind::invalid_input, "more bytes than the {} of slice {} were sent", bytes_, wire::to_hex(digest_));
    }
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(file_.fd(), bytes.data(), bytes.size(), static_cast<off_t>(have_));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return write_failure(n < 0 ? errno : ENOSPC);
      have_ += static_cast<std::uint64_t>(n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    if (hash_) hash_->grown(have_);
    return {};
  }

  Result<> commit() override {
    if (gone_) return fail(ErrorKind::internal, "{} is not open any more", paths_.partial.string());
    if (have_ != bytes_) {
      return fail(ErrorKind::unavailable, "slice {} is not whole: {} of {} bytes have arrived", wire::to_hex(digest_), have_, bytes_);
    }
    const auto digest = hash_ ? hash_->finish() : hash_of(file_, bytes_, paths_.partial);
    if (!digest) return std::unexpected(digest.error());
    if (*digest != digest_) {
      discard();
      return fail(ErrorKind::invalid_input, "what arrived as slice {} has the digest {}: it is corrupt and was thrown away",
                  wire::to_hex(digest_), wire::to_hex(*digest));
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
    hash_.reset();
    ::unlink(paths_.partial.c_str());  // before the lock goes: nobody resumes from bytes that were found wrong
  }

 private:
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
  std::optional<TrailingHash> hash_;  // after file_, which it reads
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

TrailingHash::TrailingHash(const File& file, std::filesystem::path path)
    : file_(file), path_(std::move(path)), thread_([this] { run(); }) {}

TrailingHash::~TrailingHash() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TrailingHash::grown(std::uint64_t bytes) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    // A wake-up for each little piece would cost more than the hashing.
    wake = bytes / trailing_block != there_ / trailing_block;
    there_ = bytes;
  }
  if (wake) changed_.notify_one();
}

Result<Digest> TrailingHash::finish() {
  {
    const std::lock_guard lock(mutex_);
    complete_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  return result_;
}

void TrailingHash::run() {
  Sha256 hash;
  Bytes block(trailing_block);
  for (std::uint64_t at = 0;;) {
    std::uint64_t there = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || complete_ || there_ - at >= trailing_block; });
      if (stop_) return;
      there = there_;
      if (at == there) break;  // complete
    }
    const auto part = std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(trailing_block, there - at)));
    if (auto read = read_at(file_, at, part, path_); !read) {
      result_ = pass(read);
      return;
    }
    hash.add(part);
    at += part.size();
  }
  result_ = hash.finish();
}

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
