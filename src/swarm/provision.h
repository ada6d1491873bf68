// The backbone's part in provisioning: the slice index, and what to assign to a worker that offers room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "dispatch/placement.h"
#include "engine/anatomy.h"
#include "store/index.h"
#include "wire/provision.h"

namespace linkcpp::swarm {

/// What placement needs to know of a slice index.
struct SlicePlan {
  wire::Digest index{};
  std::vector<dispatch::LayerSize> layers;
};

/// Reads an index and checks it against the model. `not_found` while there is none.
Result<SlicePlan> read_slice_plan(const std::filesystem::path& index, const engine::Anatomy& anatomy);

/// What one worker is told. Fails with `invalid_input` if its room does not suffice for a single slice.
Result<wire::Assign> assignment(const SlicePlan& plan, const wire::Digest& model, const wire::Offer& offer,
                                std::span<const std::vector<wire::LayerHolding>> others);

/// Address of a worker's slice server: its link's far end with another port.
std::string slice_url(const std::string& endpoint, std::uint16_t port);

}  // namespace linkcpp::swarm
