#include "net/path_choice.h"

#include <algorithm>

namespace linkcpp::net {
namespace {

/// Whether a path is of a better kind than another: 1, of the same: 0, of a worse: -1.
int compare_kinds(const PathView& a, const PathView& b) {
  if (a.silent != b.silent) return a.silent ? -1 : 1;
  if (a.relayed != b.relayed) return a.relayed ? -1 : 1;
  return 0;
}

bool clearly_quicker(const PathView& a, const PathView& b, const PathKnobs& knobs) {
  if (a.rtt.count() == 0 || b.rtt.count() == 0) return false;
  const auto gain = b.rtt - a.rtt;
  return gain > knobs.better_by && static_cast<double>(gain.count()) > knobs.better_share * static_cast<double>(b.rtt.count());
}

}  // namespace

std::uint32_t choose_path(std::span<const PathView> paths, std::uint32_t present, const PathKnobs& knobs) {
  const auto kept = std::ranges::find_if(paths, [present](const PathView& p) { return p.id == present; });
  const PathView* best = kept != paths.end() && kept->answered ? &*kept : nullptr;
  for (const PathView& path : paths) {
    if (!path.answered || &path == best) continue;
    const int kind = best == nullptr ? 1 : compare_kinds(path, *best);
    if (kind > 0 || (kind == 0 && clearly_quicker(path, *best, knobs))) best = &path;
  }
  if (best != nullptr) return best->id;
  return kept != paths.end() ? present : 0;
}

bool path_is_silent(std::chrono::nanoseconds quiet, std::chrono::nanoseconds rtt, std::size_t under_way, const PathKnobs& knobs) {
  const double seconds = static_cast<double>(under_way) / static_cast<double>(std::max<std::size_t>(knobs.assumed_rate, 1));
  const auto transfer = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  return quiet > knobs.silence + knobs.silence_round_trips * rtt + transfer;
}

bool is_relayed(std::string_view kind) { return kind.starts_with("relay"); }

}  // namespace linkcpp::net
