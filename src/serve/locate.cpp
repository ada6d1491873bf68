#include "serve/locate.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "serve/process.h"

namespace linkcpp::serve {
namespace {

namespace fs = std::filesystem;

Result<fs::path> search_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored) && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return fail(ErrorKind::not_found,
              "no '{}' in PATH: install llama.cpp {} (Debian: apt-get install llama.cpp-tools), or name it with --llama-server", name,
              LINKCPP_LLAMA_VERSION);
}

/// A library beside the program (build tree) or in ../lib/linkcpp (installed).
Result<fs::path> find_library(const char* name, std::string_view remedy) {
  auto program = own_program();
  if (!program) return program;
  const auto folder = program->parent_path();
  for (const auto& candidate : {folder / name, folder / ".." / "lib" / "linkcpp" / name}) {
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored)) return candidate.lexically_normal();
  }
  return fail(ErrorKind::not_found, "the library {} is neither in {} nor in {}: {}", name, folder.string(),
              (folder / ".." / "lib" / "linkcpp").lexically_normal().string(), remedy);
}

}  // namespace

Result<fs::path> own_program() {
  std::error_code error;
  auto path = fs::read_symlink("/proc/self/exe", error);
  if (error) return fail(ErrorKind::io, "cannot find my own program file through /proc/self/exe: {}", error.message());
  return path;
}

Result<fs::path> existing_file(const std::string& path, const std::string& what) {
  std::error_code error;
  auto absolute = fs::absolute(path, error);
  if (error || !fs::is_regular_file(absolute, error)) {
    return fail(ErrorKind::not_found, "{} '{}' is not there{}: check the path", what, path,
                fs::exists(absolute, error) ? " as a regular file" : "");
  }
  if (access(absolute.c_str(), R_OK) != 0) return fail(ErrorKind::io, "{} '{}' cannot be read: check its permissions", what, path);
  return absolute;
}

Result<fs::path> find_plugin(const std::string& given) {
  if (!given.empty()) return existing_file(given, "the plugin");
  return find_library("libggml-linkcpp.so", "build it (target ggml-linkcpp), or name it with --plugin");
}

Result<fs::path> find_holes_library() { return find_library("liblinkcpp-holes.so", "build it (target linkcpp-holes)"); }

std::string parse_llama_version(const std::string& output) {
  constexpr std::string_view key = "version: ";
  const auto at = output.find(key);
  if (at == std::string::npos) return {};
  const auto begin = at + key.size();
  return output.substr(begin, output.find_first_of(" \n\r", begin) - begin);
}

bool same_engine(const std::string& built, const std::string& found) {
  const auto major_minor = [](const std::string& version) {
    const auto first = version.find('.');
    return first == std::string::npos ? std::string() : version.substr(0, version.find('.', first + 1));
  };
  return !major_minor(built).empty() && major_minor(built) == major_minor(found);
}

Result<fs::path> find_llama_server(const std::string& given) {
  auto path = given.contains('/') ? existing_file(given, "the engine's server") : search_path(given);
  if (!path) return path;
  auto printed = capture({.argv = {path->string(), "--version"}, .env = {{"GGML_BACKEND_PATH", std::nullopt}}}, std::chrono::seconds(20));
  if (!printed) return pass(printed);
  const auto version = parse_llama_version(*printed);
  if (version.empty())
    return fail(ErrorKind::incompatible, "'{}' does not name its version when asked with --version: it is not a llama-server",
                path->string());
  if (!same_engine(LINKCPP_LLAMA_VERSION, version)) {
    return fail(ErrorKind::incompatible,
                "'{}' is llama.cpp {}, but the plugin was built for {}: install that version, or build linkcpp against the installed one",
                path->string(), version, LINKCPP_LLAMA_VERSION);
  }
  return path;
}

Result<fs::path> find_bundled_model(const std::string& name) {
  std::vector<fs::path> folders;
  if (const char* models = std::getenv("LINKCPP_MODELS"); models != nullptr && *models != '\0') folders.emplace_back(models);
  if (auto program = own_program()) folders.push_back((program->parent_path() / ".." / "share" / "linkcpp" / "models").lexically_normal());
  std::string tried;
  for (const auto& folder : folders) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) return fs::absolute(folder / name);
    tried += (tried.empty() ? "" : " or ") + folder.string();
  }
  return fail(ErrorKind::not_found, "the model {} is not in {}: name a GGUF with --model, or its folder with LINKCPP_MODELS", name, tried);
}

}  // namespace linkcpp::serve
