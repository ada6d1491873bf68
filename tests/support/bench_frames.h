// The frames of link_bench: a dispatch whose body begins with what is wanted, and the combine that answers it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "support/bench_report.h"
#include "wire/frame.h"

namespace linkcpp::bench {

/// Head of a dispatch's body; the rest fills it up.
struct Wanted {
  std::uint32_t back = 0;        ///< bytes of the answer's body
  std::uint32_t compute_us = 0;  ///< how long the server pretends to compute
};
inline constexpr std::size_t wanted_bytes = 8;
/// An answer begins with the server's processor time so far, in microseconds, if it is long enough.
inline constexpr std::size_t account_bytes = 8;

inline Bytes dispatch_frame(std::uint64_t request, std::size_t size, Wanted wanted) {
  Bytes frame = wire::begin_frame(wire::FrameType::dispatch, request, size);
  ByteWriter writer(frame);
  writer.put(wanted.back);
  writer.put(wanted.compute_us);
  writer.extend(std::max(size, wanted_bytes) - wanted_bytes);
  wire::finish_frame(frame);
  return frame;
}

inline Bytes combine_frame(std::uint64_t request, std::size_t size) {
  Bytes frame = wire::begin_frame(wire::FrameType::combine, request, size);
  ByteWriter writer(frame);
  if (size >= account_bytes) writer.put(cpu_us());
  writer.extend(size - (size >= account_bytes ? account_bytes : 0));
  wire::finish_frame(frame);
  return frame;
}

}  // namespace linkcpp::bench
