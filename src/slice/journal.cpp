#include "slice/journal.h"

#include <charconv>
#include <fstream>

namespace linkcpp::slice {
namespace {

std::optional<std::pair<store::SliceKey, store::Digest>> parse_line(std::string_view line) {
  store::SliceKey key;
  const char* end = line.data() + line.size();
  auto number = std::from_chars(line.data(), end, key.layer);
  if (number.ec != std::errc{} || number.ptr == end || *number.ptr != ' ') return std::nullopt;
  number = std::from_chars(number.ptr + 1, end, key.expert);
  if (number.ec != std::errc{} || number.ptr == end || *number.ptr != ' ') return std::nullopt;
  const auto digest = wire::digest_from_hex({number.ptr + 1, end});
  if (!digest) return std::nullopt;
  return std::pair(key, *digest);
}

}  // namespace

Result<Journal> Journal::open(const std::filesystem::path& path, const std::string& stamp) {
  Journal journal(path);
  std::ifstream in(path);
  std::string line;
  if (in && std::getline(in, line) && line == stamp) {
    while (std::getline(in, line)) {
      if (in.eof()) break;  // no line break: half written
      if (const auto parsed = parse_line(line)) journal.known_.insert(*parsed);
    }
  }
  in.close();
  journal.file_.reset(std::fopen(path.c_str(), "we"));
  if (!journal.file_) return fail(ErrorKind::io, "cannot write {}; is the folder writable?", path.string());
  std::fprintf(journal.file_.get(), "%s\n", stamp.c_str());
  for (const auto& [key, digest] : journal.known_) journal.add(key, digest);
  return journal;
}

void Journal::add(store::SliceKey key, const store::Digest& digest) {
  std::fprintf(file_.get(), "%u %u %s\n", key.layer, key.expert, wire::to_hex(digest).c_str());
  std::fflush(file_.get());
}

void Journal::remove() {
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace linkcpp::slice
