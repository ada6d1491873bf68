#include "net/frame_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace linkcpp::net {
namespace {

constexpr std::size_t least_capacity = 16u << 10;
/// An empty buffer that is larger gives its memory back: huge frames are rare.
constexpr std::size_t kept_capacity = 16u << 20;

}  // namespace

void FrameBuffer::move_to(std::size_t capacity) {
  auto fresh = std::make_unique_for_overwrite<std::byte[]>(capacity);
  if (held() > 0) std::memcpy(fresh.get(), data_.get() + begin_, held());
  data_ = std::move(fresh);
  capacity_ = capacity;
  end_ = held();
  begin_ = 0;
}

std::span<std::byte> FrameBuffer::space(std::size_t room) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (capacity_ > kept_capacity) {
      data_.reset();
      capacity_ = 0;
    }
  }
  if (capacity_ - end_ < room) {
    // Moving pays only when much is gained, else every byte could be moved many times.
    if (held() + room <= capacity_ / 2) {
      std::memmove(data_.get(), data_.get() + begin_, held());
      end_ = held();
      begin_ = 0;
    } else {
      move_to(std::max({least_capacity, 2 * capacity_, held() + room}));
    }
  }
  return {data_.get() + end_, capacity_ - end_};
}

Result<std::optional<wire::FrameView>> FrameBuffer::next(std::uint32_t limit) {
  if (held() < wire::frame_header_bytes) return std::nullopt;
  const ByteSpan all(data_.get() + begin_, held());
  auto header = wire::parse_frame_header(all.first(wire::frame_header_bytes), limit);
  if (!header) return pass(header);
  const std::size_t length = wire::frame_header_bytes + header->length;
  if (all.size() < length) return std::nullopt;
  begin_ += length;
  return wire::FrameView{*header, all.subspan(wire::frame_header_bytes, header->length)};
}

}  // namespace linkcpp::net
