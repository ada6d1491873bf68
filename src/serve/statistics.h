// Order statistics of small samples.
#pragma once

#include <vector>

namespace linkcpp::serve {

/// The q-quantile (0 <= q <= 1) with linear interpolation between neighbours; 0 for an empty sample.
double quantile(std::vector<double> sample, double q);

}  // namespace linkcpp::serve
