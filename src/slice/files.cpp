#include "slice/files.h"

#include <unistd.h>

#include <fstream>
#include <system_error>

#include "base/bytes.h"
#include "engine/anatomy_file.h"

namespace linkcpp::slice {

namespace fs = std::filesystem;

Result<std::string> read_text(const fs::path& path, std::uint64_t most) {
  auto file = engine::InputFile::open(path);
  if (!file) return pass(file);
  if (file->size() > most)
    return fail(ErrorKind::invalid_input, "{} has {} bytes, at most {} are read.", path.string(), file->size(), most);
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  if (!file->read_at(0, std::as_writable_bytes(std::span(text)))) return fail(ErrorKind::io, "{} cannot be read.", path.string());
  return text;
}

Result<> write_text(const fs::path& path, std::string_view text) {
  const fs::path part = path.string() + std::format(".{}.part", ::getpid());
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  std::error_code error;
  if (out) fs::rename(part, path, error);
  if (out && !error) return {};
  std::error_code ignored;
  fs::remove(part, ignored);
  return fail(ErrorKind::io, "cannot write {}{}{}.", path.string(), error ? ": " : "", error ? error.message() : "");
}

Result<> make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return fail(ErrorKind::io, "cannot make the folder {}: {}.", path.string(), error.message());
  return {};
}

}  // namespace linkcpp::slice
