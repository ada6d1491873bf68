// The rules that a slice index keeps beyond its form, and the limits of its form.
#pragma once

#include "store/index.h"

namespace linkcpp::store {

inline constexpr std::size_t max_files = 99'999;          ///< what five digits of a part's name can count
inline constexpr std::size_t max_parts = 16;              ///< of a layer: four roles, weights and biases
inline constexpr std::size_t max_file_name_bytes = 255;   ///< what file systems take
inline constexpr std::size_t max_tensor_name_bytes = 63;  ///< what the engine takes
inline constexpr std::size_t max_type_name_bytes = 32;
inline constexpr std::size_t max_architecture_bytes = 64;

/// Checks an index against all rules of index.h. Fails with `invalid_input`, naming the place and the fault.
Result<> check_index(const SliceIndex& index);

}  // namespace linkcpp::store
