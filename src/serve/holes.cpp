#include "serve/holes.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "serve/locate.h"

namespace linkcpp::serve {

Result<std::map<std::string, std::optional<std::string>>> holes_environment(const std::vector<std::filesystem::path>& files) {
  auto library = find_holes_library();
  if (!library) return pass(library);
  std::string list;
  for (const auto& file : files) {
    struct stat status{};
    if (::stat(file.c_str(), &status) != 0)
      return fail(ErrorKind::io, "{} cannot be seen: {}", file.string(), std::generic_category().message(errno));
    list += std::format("{}{}:{}", list.empty() ? "" : ",", status.st_dev, status.st_ino);
  }
  const char* before = std::getenv("LD_PRELOAD");
  std::string preload = before != nullptr && *before != '\0' ? std::string(before) + ":" : std::string();
  return std::map<std::string, std::optional<std::string>>{{"LINKCPP_HOLES", list}, {"LD_PRELOAD", preload + library->string()}};
}

}  // namespace linkcpp::serve
