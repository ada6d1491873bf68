// Checks a region program against the weights of one layer and binds it to them. Whatever could make ggml abort is refused here.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/expert_weights.h"
#include "wire/program.h"

namespace linkcpp::engine {

/// A program over one layer's weights.
struct BoundProgram {
  std::vector<const ExpertWeight*> weights;  ///< in the order of Program::weights
  /// Whether token rows may be left unexpanded where every token has the same number of pairs: no op computes a pair's row
  /// out of operands in an order that ggml does not broadcast.
  bool grid = false;
  std::uint64_t pair_bytes = 0;  ///< upper bound of compute memory for one pair
};

Result<BoundProgram> bind_program(const wire::Program& program, const ExpertLayer& layer);

}  // namespace linkcpp::engine
