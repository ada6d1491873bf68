#include "worker/slice_layer.h"

namespace linkcpp::worker {
namespace {

Result<engine::ExpertTensor> tensor_of(const store::SlicePart& part, const store::LayerSlices& layer) {
  const auto name = engine::parse_expert_name(part.tensor);
  if (!name || name->layer != layer.layer)
    return fail(ErrorKind::invalid_input, "the slice index has '{}' in layer {}, where it does not belong", part.tensor, layer.layer);
  const auto type = engine::type_by_name(part.type);
  if (!type) return fail(ErrorKind::incompatible, "the engine here does not know the type '{}' of '{}': update it", part.type, part.tensor);
  engine::ExpertTensor tensor{.name = part.tensor, .role = name->role, .type = *type, .type_name = part.type};
  tensor.is_bias = part.n_in == 0;
  tensor.n_in = part.n_in;
  tensor.n_out = part.n_out;
  tensor.n_expert = static_cast<std::uint32_t>(layer.slices.size());
  tensor.slice_bytes = part.bytes;
  tensor.offset = part.object_offset;  // of its part in the slice's object
  if (tensor.is_bias != name->role.ends_with(".bias") || engine::slice_bytes_of(tensor) != part.bytes) {
    return fail(ErrorKind::invalid_input, "the slice index gives '{}' {} bytes an expert, its type and shape take {}", part.tensor,
                part.bytes, engine::slice_bytes_of(tensor));
  }
  return tensor;
}

}  // namespace

Result<engine::MoeLayer> layer_of(const store::LayerSlices& slices) {
  engine::MoeLayer layer{.key = slices.layer, .n_expert = static_cast<std::uint32_t>(slices.slices.size()), .tensors = {}};
  for (const store::SlicePart& part : slices.parts) {
    auto tensor = tensor_of(part, slices);
    if (!tensor) return pass(tensor);
    layer.tensors.push_back(std::move(*tensor));
  }
  return layer;
}

}  // namespace linkcpp::worker
