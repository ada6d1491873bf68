#include "net/home_file.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>

namespace linkcpp::net {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_file_bytes = 64u << 10;

std::string reason(int error) { return std::generic_category().message(error); }

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] explicit operator bool() const { return fd_ >= 0; }
  /// Closes it and tells whether all was written.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

Result<> make_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return {};
  if (const fs::path parent = folder.parent_path(); !parent.empty()) fs::create_directories(parent, error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(ErrorKind::io, "cannot create the folder {}: {}; choose another with --home", folder.string(), reason(errno));
  }
  if (!fs::is_directory(folder, error)) return fail(ErrorKind::io, "{} is not a folder; choose another with --home", folder.string());
  return {};
}

/// None if the file does not exist.
Result<std::optional<std::string>> read_private(const fs::path& path) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) return fail(ErrorKind::io, "cannot read {}: {}", path.string(), reason(errno));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return fail(ErrorKind::io, "cannot read {}: {}", path.string(), reason(errno));
  if (!S_ISREG(status.st_mode)) return fail(ErrorKind::invalid_input, "{} is not a regular file; move it away", path.string());
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fail(ErrorKind::invalid_input,
                "{} can be read by others, so it may no longer be secret; delete it to get a new one, or run: chmod 600 '{}'",
                path.string(), path.string());
  }
  std::string text;
  char chunk[4096];
  for (;;) {
    const ssize_t n = ::read(file.get(), chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorKind::io, "cannot read {}: {}", path.string(), reason(errno));
    if (n == 0) return text;
    text.append(chunk, static_cast<std::size_t>(n));
    if (text.size() > max_file_bytes)
      return fail(ErrorKind::invalid_input, "{} is too long to be a file of linkcpp; move it away", path.string());
  }
}

bool write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) at += static_cast<std::size_t>(n);
  }
  return true;
}

/// Gives a complete file its name, unless somebody else has taken the name. Returns 0, EEXIST or another error number.
int publish(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // A file system without that kind of rename. A hard link does not replace either.
  return ::link(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

/// Creates the file, or leaves it alone if it exists by now.
Result<> create_private(const fs::path& folder, const std::string& name, const std::string& text) {
  std::uint64_t salt = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&salt), sizeof salt) != 1)
    return fail(ErrorKind::internal, "the system gives no random numbers");
  const fs::path temporary = folder / std::format(".{}.{:016x}", name, salt), path = folder / name;
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return fail(ErrorKind::io, "cannot write into {}: {}; choose another folder with --home", folder.string(), reason(errno));
  int error = write_all(file.get(), text) && ::fsync(file.get()) == 0 && file.close() ? 0 : errno;
  if (error == 0) error = publish(temporary, path);
  ::unlink(temporary.c_str());  // there only after a failure, a lost race or a hard link
  if (error != 0 && error != EEXIST) return fail(ErrorKind::io, "cannot write {}: {}", path.string(), reason(error));
  if (File directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); directory) ::fsync(directory.get());
  return {};
}

}  // namespace

Result<std::string> load_or_create_private_file(const fs::path& folder, const std::string& name,
                                                const std::function<Result<std::string>()>& make) {
  const fs::path path = folder / name;
  auto text = read_private(path);
  if (!text) return pass(text);
  if (*text) return std::move(**text);
  auto fresh = make();
  if (!fresh) return pass(fresh);
  if (auto made = make_folder(folder); !made) return pass(made);
  if (auto created = create_private(folder, name, *fresh); !created) return pass(created);
  // Read back in any case: another process may have been first.
  text = read_private(path);
  if (!text) return pass(text);
  if (!*text) return fail(ErrorKind::io, "{} vanished while it was created; try again", path.string());
  return std::move(**text);
}

}  // namespace linkcpp::net
