#include "swarm/provision.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "net/endpoint.h"

namespace linkcpp::swarm {

Result<SlicePlan> read_slice_plan(const std::filesystem::path& path, const engine::Anatomy& anatomy) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(ErrorKind::not_found, "there is no slice index '{}' yet", path.string());
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  auto index = store::decode_index(text);
  if (!index) return fail(index.error().kind, "{}: {}", path.string(), index.error().message);
  if (index->model != anatomy.digest) {
    return fail(ErrorKind::incompatible, "the slice index '{}' is that of another model: remove it, or make it anew with `linkcpp slice`",
                path.string());
  }
  SlicePlan plan{.index = store::index_digest(text), .layers = {}};
  for (const store::LayerSlices& layer : index->layers)
    plan.layers.push_back({layer.layer, static_cast<std::uint16_t>(layer.slices.size()), layer.slice_bytes()});
  return plan;
}

Result<wire::Assign> assignment(const SlicePlan& plan, const wire::Digest& model, const wire::Offer& offer,
                                std::span<const std::vector<wire::LayerHolding>> others) {
  static const std::vector<wire::LayerHolding> nothing;
  dispatch::Placement placement = dispatch::place_slices(plan.layers, others, offer.model == model ? offer.stored : nothing, offer.budget);
  if (placement.empty()) {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (const dispatch::LayerSize& layer : plan.layers) least = std::min(least, layer.slice_bytes);
    return fail(ErrorKind::invalid_input, "its budget of {} bytes does not suffice for one expert of this model: give it {} or more",
                offer.budget, least);
  }
  wire::Assign assign{.model = model, .index = plan.index, .urgent = {}, .spare = {}, .sources = {}};
  assign.urgent = std::move(placement.urgent);
  assign.spare = std::move(placement.spare);
  return assign;
}

std::string slice_url(const std::string& endpoint, std::uint16_t port) {
  auto parsed = net::parse_endpoint(endpoint);
  if (!parsed) return {};
  parsed->port = port;
  return "lks://" + parsed->text();
}

}  // namespace linkcpp::swarm
