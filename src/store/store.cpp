#include "store/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "store/file.h"
#include "store/incoming.h"

namespace linkcpp::store {
namespace {

namespace fs = std::filesystem;

class FolderStore final : public Store {
 public:
  FolderStore(fs::path folder, StoreOptions options) : folder_(std::move(folder)), options_(options) {}

  [[nodiscard]] const fs::path& folder() const override { return folder_; }

  [[nodiscard]] fs::path path_of(const Digest& digest) const override { return folder_ / object_name(digest); }

  [[nodiscard]] bool has(const Digest& digest, std::uint64_t bytes) const override {
    const fs::path path = path_of(digest);
    struct stat info{};
    if (::lstat(path.c_str(), &info) != 0) return false;
    if (S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) == bytes) return true;
    if (!S_ISDIR(info.st_mode)) ::unlink(path.c_str());
    return false;
  }

  Result<std::unique_ptr<Incoming>> receive(const Digest& digest, std::uint64_t bytes) override {
    if (bytes == 0 || bytes > max_slice_bytes) {
      return fail(ErrorKind::invalid_input, "slice {} would have {} bytes; from 1 to {} are possible", wire::to_hex(digest), bytes,
                  max_slice_bytes);
    }
    if (has(digest, bytes)) return whole_incoming(bytes);
    const fs::path partial = partial_path(digest);
    auto incoming = open_incoming({partial, path_of(digest)}, digest, bytes, options_.reserve_bytes);
    // Another process may have finished it between the look and the lock; then the partial file that we made is nobody's.
    if (incoming && has(digest, bytes)) {
      (*incoming)->discard();
      return whole_incoming(bytes);
    }
    return incoming;
  }

  Result<> read(const Digest& digest, std::uint64_t offset, std::span<std::byte> to) const override {
    const fs::path path = path_of(digest);
    auto file = open_to_read(path, true);
    if (!file) return pass(file);
    return read_at(*file, offset, to, path);
  }

  Result<> verify(const Digest& digest, std::uint64_t bytes) override {
    if (!has(digest, bytes)) return fail(ErrorKind::not_found, "slice {} is not in {}", wire::to_hex(digest), folder_.string());
    const fs::path path = path_of(digest);
    auto file = open_to_read(path, true);
    if (!file) return pass(file);
    const auto found = hash_of(*file, bytes, path);
    if (!found) return std::unexpected(found.error());
    if (*found == digest) return {};
    ::unlink(path.c_str());
    return fail(ErrorKind::invalid_input, "{} was damaged: its digest is wrong; it was removed and must be fetched again", path.string());
  }

  Result<> remove(const Digest& digest) override {
    const fs::path path = path_of(digest);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return fail(ErrorKind::io, "cannot remove {}: {}", path.string(), os_reason(errno));
    }
    return {};
  }

  Result<> put_index(std::string_view text) override {
    if (text.size() > max_index_bytes) return fail(ErrorKind::invalid_input, "a slice index of {} bytes is too large", text.size());
    const fs::path path = index_path(index_digest(text));
    // A name of its own for each writer, so that two never write one file.
    static std::atomic<unsigned> counter{0};
    fs::path temporary = path;
    temporary += std::format(".{}-{}.tmp", ::getpid(), counter.fetch_add(1));
    if (auto written = write_new(temporary, text); !written) {
      ::unlink(temporary.c_str());
      return written;
    }
    std::error_code error;
    fs::rename(temporary, path, error);
    if (!error) return {};
    ::unlink(temporary.c_str());
    return fail(ErrorKind::io, "cannot rename {} to {}: {}", temporary.string(), path.string(), error.message());
  }

  [[nodiscard]] Result<std::string> index(const Digest& digest) const override {
    const fs::path path = index_path(digest);
    auto file = open_to_read(path, true);
    if (!file) return pass(file);
    auto bytes = size_of(*file, path);
    if (!bytes) return pass(bytes);
    if (*bytes > max_index_bytes) return fail(ErrorKind::invalid_input, "{} is too large for a slice index", path.string());
    std::string text(*bytes, '\0');
    if (auto read = read_at(*file, 0, std::as_writable_bytes(std::span(text)), path); !read) return pass(read);
    if (index_digest(text) != digest)
      return fail(ErrorKind::invalid_input, "{} was damaged: its digest is wrong; remove it", path.string());
    return text;
  }

  [[nodiscard]] Usage usage() const override {
    Usage usage;
    count(folder_ / "objects", usage.objects, usage.object_bytes);
    count(folder_ / "partial", usage.partials, usage.partial_bytes);
    return usage;
  }

 private:
  [[nodiscard]] fs::path partial_path(const Digest& digest) const { return folder_ / "partial" / wire::to_hex(digest); }
  [[nodiscard]] fs::path index_path(const Digest& digest) const { return folder_ / "indexes" / (wire::to_hex(digest) + ".json"); }

  static Result<> write_new(const fs::path& path, std::string_view text) {
    const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!file) return fail(ErrorKind::io, "cannot make {}: {}", path.string(), os_reason(errno));
    while (!text.empty()) {
      const ssize_t n = ::write(file.fd(), text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return fail(ErrorKind::io, "cannot write {}: {}", path.string(), os_reason(errno));
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
  }

  static void count(const fs::path& folder, std::uint64_t& files, std::uint64_t& bytes) {
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      std::error_code ignored;
      if (!fs::is_regular_file(at->symlink_status(ignored))) continue;
      const auto size = at->file_size(ignored);
      if (ignored) continue;
      ++files;
      bytes += size;
    }
  }

  fs::path folder_;
  StoreOptions options_;
};

}  // namespace

std::string object_name(const Digest& digest) {
  const std::string name = wire::to_hex(digest);
  return "objects/" + name.substr(0, 2) + "/" + name;
}

Result<std::unique_ptr<Store>> Store::open(const fs::path& folder, StoreOptions options) {
  for (const char* part : {"objects", "partial", "indexes"}) {
    std::error_code error;
    fs::create_directories(folder / part, error);
    if (error) return fail(ErrorKind::io, "cannot make the folder {}: {}", (folder / part).string(), error.message());
  }
  return std::make_unique<FolderStore>(folder, options);
}

}  // namespace linkcpp::store
