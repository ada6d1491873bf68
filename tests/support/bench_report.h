// What the programs that measure links share: quantiles of times, and the processor time of this process.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace linkcpp::bench {

/// The smallest value that is not below `share` of all; 0 for none.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(at, 1, values.size()) - 1];
}

/// {"p50":..,"p95":..,"p99":..,"least":..,"most":..,"mean":..}, each divided by `unit`.
inline nlohmann::json summary(const std::vector<double>& values, double unit = 1) {
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = values.empty() ? 0 : sum / static_cast<double>(values.size());
  return {{"p50", quantile(values, 0.5) / unit}, {"p95", quantile(values, 0.95) / unit}, {"p99", quantile(values, 0.99) / unit},
          {"least", quantile(values, 0) / unit}, {"most", quantile(values, 1) / unit},   {"mean", mean / unit}};
}

/// Processor time of this process so far, in microseconds.
inline std::uint64_t cpu_us() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

}  // namespace linkcpp::bench
