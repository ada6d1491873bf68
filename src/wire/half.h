// IEEE 754 binary16 ("half") from floats and back, in bulk.
#pragma once

#include <cstddef>
#include <string_view>

namespace linkcpp::wire {

/// Largest finite half.
inline constexpr float largest_half = 65504.0f;

/// Converts n floats to halves (2 bytes each, any alignment), rounding to nearest, ties to even, with subnormals.
///
/// Finite values beyond ±65504 saturate there instead of becoming infinite: one infinity would turn a whole sum over experts into
/// infinity or NaN and the rest of the pass with it, while a saturated outlier is an error of one element, which a model's accuracy
/// gate measures and which forbids the type for that model if it matters. Infinities stay infinite and NaN stays NaN (made quiet,
/// sign and upper bits kept): what was broken before must not look healthy after.
void halves_from_floats(const float* from, std::size_t n, std::byte* to);
/// Converts n halves to floats; exact. NaN is made quiet.
void floats_from_halves(const std::byte* from, std::size_t n, float* to);

/// The same in plain C++, bit for bit; for machines without conversion instructions, and for tests.
void halves_from_floats_portable(const float* from, std::size_t n, std::byte* to);
void floats_from_halves_portable(const std::byte* from, std::size_t n, float* to);

/// How this machine converts: "f16c" or "portable". For reports of measurements.
std::string_view half_conversion();

}  // namespace linkcpp::wire
