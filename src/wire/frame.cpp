#include "wire/frame.h"

#include <cassert>

namespace linkcpp::wire {
namespace {

constexpr std::size_t length_offset = 8;

bool known_type(std::uint8_t type) {
  return type >= static_cast<std::uint8_t>(FrameType::auth) && type <= static_cast<std::uint8_t>(FrameType::candidates);
}

}  // namespace

Result<FrameHeader> parse_frame_header(ByteSpan bytes, std::uint32_t limit) {
  if (bytes.size() != frame_header_bytes)
    return fail(ErrorKind::invalid_input, "a frame header has {} bytes, got {}", frame_header_bytes, bytes.size());
  ByteReader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  if (magic != frame_magic)
    return fail(ErrorKind::invalid_input, "not a linkcpp frame: it begins with 0x{:08x} instead of 0x{:08x}", magic, frame_magic);
  FrameHeader header;
  header.version = in.get<std::uint8_t>();
  const auto type = in.get<std::uint8_t>();
  header.flags = in.get<std::uint16_t>();
  header.length = in.get<std::uint32_t>();
  header.request = in.get<std::uint64_t>();
  if (header.version != protocol_version) {
    return fail(ErrorKind::incompatible,
                "the peer speaks protocol version {}, this program version {}: install the same linkcpp on both sides", header.version,
                protocol_version);
  }
  if (!known_type(type)) return fail(ErrorKind::invalid_input, "unknown frame type {}", type);
  header.type = static_cast<FrameType>(type);
  if (header.length > limit)
    return fail(ErrorKind::invalid_input, "a frame of {} bytes was announced, the limit is {}", header.length, limit);
  return header;
}

Bytes begin_frame(FrameType type, std::uint64_t request, std::size_t body_hint) {
  Bytes frame;
  frame.reserve(frame_header_bytes + body_hint);
  ByteWriter out(frame);
  out.put(frame_magic);
  out.put(protocol_version);
  out.put(static_cast<std::uint8_t>(type));
  out.put<std::uint16_t>(0);
  out.put<std::uint32_t>(0);
  out.put(request);
  return frame;
}

void finish_frame(Bytes& frame) {
  assert(frame.size() >= frame_header_bytes && frame.size() - frame_header_bytes <= max_frame_body);
  const auto length = static_cast<std::uint32_t>(frame.size() - frame_header_bytes);
  std::memcpy(frame.data() + length_offset, &length, sizeof length);
}

Bytes make_frame(FrameType type, std::uint64_t request, ByteSpan body) {
  Bytes frame = begin_frame(type, request, body.size());
  ByteWriter(frame).raw(body);
  finish_frame(frame);
  return frame;
}

}  // namespace linkcpp::wire
