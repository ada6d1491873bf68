#include "serve/temp_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "serve/process.h"

namespace linkcpp::serve {

Result<TempDir> TempDir::make(const std::string& prefix) {
  std::error_code error;
  const auto base = std::filesystem::temp_directory_path(error);
  if (error) return fail(ErrorKind::io, "no folder for temporary files ({}): set TMPDIR to one that exists", error.message());
  std::string name = (base / (prefix + "-XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr) {
    return fail(ErrorKind::io, "cannot make a folder in {}: {}", base.string(), std::generic_category().message(errno));
  }
  return TempDir(std::filesystem::path(name));
}

TempDir::TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})), keep_(other.keep_) {}

TempDir& TempDir::operator=(TempDir&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(keep_, other.keep_);
  return *this;
}

TempDir::~TempDir() {
  std::error_code ignored;
  if (!path_.empty() && !keep_) std::filesystem::remove_all(path_, ignored);
}

void TempDir::keep() { keep_ = true; }

Result<> write_private_file(const std::filesystem::path& path, const std::string& text) {
  const auto failed = [&] { return fail(ErrorKind::io, "cannot write {}: {}", path.string(), std::generic_category().message(errno)); };
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) return failed();
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed();
    at += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace linkcpp::serve
