#include "relay/access.h"

#include <fstream>
#include <string_view>

namespace linkcpp::relay {

Result<> Access::allow_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return fail(ErrorKind::not_found, "cannot read the keys of backbones in {}", path.string());
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::string_view text = line;
    text = text.substr(0, text.find('#'));
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    const auto key = net::parse_key(text);
    if (!key) return fail(ErrorKind::invalid_input, "{}, line {}: {}", path.string(), number, key.error().message);
    allow(*key);
  }
  return {};
}

}  // namespace linkcpp::relay
