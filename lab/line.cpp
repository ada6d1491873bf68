#include "line.h"

#include <algorithm>

namespace linkcpp::lab {

bool Line::lose() {
  if (shape_.loss <= 0) return false;
  if (shape_.loss >= 1) return true;
  // Two states, the bad one loses everything: it is left with 1/burst, and entered so often that the share of bad packets is the loss.
  const double burst = std::max(1.0, shape_.burst);
  const double enter = burst > 1 ? shape_.loss / (burst * (1 - shape_.loss)) : shape_.loss;
  losing_ = losing_ && burst > 1 ? chance() >= 1 / burst : chance() < enter;
  return losing_;
}

std::optional<Time> Line::admit(std::uint64_t bytes, Time now) {
  ++counters_.packets;
  counters_.bytes += bytes;
  Time sent = now;
  if (shape_.bytes_per_second > 0) {
    const auto waiting = static_cast<double>(std::max(Time{}, free_at_ - now).count()) * 1e-9 * shape_.bytes_per_second;
    if (waiting + static_cast<double>(bytes) > static_cast<double>(std::max<std::uint64_t>(shape_.queue_bytes, 1500))) {
      ++counters_.dropped;
      return std::nullopt;
    }
    free_at_ = std::max(free_at_, now) + Time(static_cast<std::int64_t>(static_cast<double>(bytes) / shape_.bytes_per_second * 1e9));
    sent = free_at_;
  }
  if (lose()) {
    ++counters_.lost;
    return std::nullopt;
  }
  const Time late =
      shape_.jitter > Time{} ? Time(static_cast<std::int64_t>(chance() * static_cast<double>(shape_.jitter.count()))) : Time{};
  last_out_ = std::max(last_out_, sent + shape_.delay + late);
  return last_out_;
}

}  // namespace linkcpp::lab
