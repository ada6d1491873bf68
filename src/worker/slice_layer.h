// A layer of a slice index as the expert host knows it.
#pragma once

#include "base/error.h"
#include "engine/anatomy.h"
#include "store/index.h"

namespace linkcpp::worker {

/// Fails with `invalid_input` on tensor names and types that this engine does not know: the index comes from another machine.
Result<engine::MoeLayer> layer_of(const store::LayerSlices& slices);

}  // namespace linkcpp::worker
