// Puts frames together from a stream of bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/error.h"
#include "wire/frame.h"

namespace linkcpp::net {

/// A buffer that grows with what has arrived, never with what was announced. Use: fill space(), commit(), then next() until it returns
/// none. Views that next() returns live until space() is called.
class FrameBuffer {
 public:
  /// At least `room` writable bytes behind what is held.
  std::span<std::byte> space(std::size_t room);
  /// The first n bytes of space() were filled.
  void commit(std::size_t n) { end_ += n; }
  /// Takes the next whole frame out; none if it is not complete yet. Fails as parse_frame_header does.
  Result<std::optional<wire::FrameView>> next(std::uint32_t limit = wire::max_frame_body);
  /// Bytes that next() has not returned.
  [[nodiscard]] std::size_t held() const { return end_ - begin_; }

 private:
  void move_to(std::size_t capacity);

  std::unique_ptr<std::byte[]> data_;
  std::size_t capacity_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace linkcpp::net
