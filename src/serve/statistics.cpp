#include "serve/statistics.h"

#include <algorithm>
#include <cmath>

namespace linkcpp::serve {

double quantile(std::vector<double> sample, double q) {
  if (sample.empty()) return 0;
  std::ranges::sort(sample);
  const double position = std::clamp(q, 0.0, 1.0) * static_cast<double>(sample.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const auto above = std::min(below + 1, sample.size() - 1);
  return std::lerp(sample[below], sample[above], position - static_cast<double>(below));
}

}  // namespace linkcpp::serve
