// The frame: the one unit that travels on a link. docs/protocol.md is its specification.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::wire {

inline constexpr std::uint32_t frame_magic = 0x31434B4C;  // "LKC1" in memory order
inline constexpr std::uint8_t protocol_version = 2;
inline constexpr std::size_t frame_header_bytes = 20;
/// No frame is longer; a larger announced length closes the link before anything is allocated.
inline constexpr std::uint32_t max_frame_body = 64u << 20;
/// Before a peer has authenticated, its frames are bounded to this.
inline constexpr std::uint32_t max_unauthenticated_body = 4096;

enum class FrameType : std::uint8_t {
  auth = 1,      ///< proof of the join token, bound to the TLS session
  hello = 2,     ///< worker to backbone: what it is and which experts it holds
  welcome = 3,   ///< backbone to worker: admitted
  refuse = 4,    ///< either: the reason, then the link closes
  program = 5,   ///< backbone to worker: a region's op list under an id
  dispatch = 6,  ///< backbone to worker: rows and (token, expert, weight) pairs
  combine = 7,   ///< worker to backbone: partial sums or pair rows
  failed = 8,    ///< worker to backbone: this request cannot be answered, with the reason
  ping = 9,      ///< keep-warm and round-trip measurement
  pong = 10,
  drain = 11,   ///< worker to backbone: finishes what it has, send nothing new
  offer = 12,   ///< worker to backbone: room for slices (wire/provision.h)
  assign = 13,  ///< backbone to worker: which slices to hold and where to get them
  holds = 14,   ///< worker to backbone: the experts that it can compute from now on
  // Of the session (wire/session.h), never numbered:
  attach = 15,      ///< dialling side: this connection carries that session; what was received
  attached = 16,    ///< the answer: what was received here
  ack = 17,         ///< what was received
  end = 18,         ///< the session ends, or there is none, with the reason
  candidates = 19,  ///< where the sender might be reached directly (net/path_offer.h)
};

/// The flags of a numbered frame: a serial number, and whether it may be delivered before frames that were sent earlier.
inline constexpr std::uint16_t sequence_mask = 0x7FFF;
inline constexpr std::uint16_t may_overtake = 0x8000;
inline constexpr std::size_t flags_offset = 6;

/// Layout: magic u32, version u8, type u8, flags u16, body length u32, request id u64. Frames are made with flags 0; a session
/// (net/session_core.h) numbers them there.
struct FrameHeader {
  std::uint8_t version = protocol_version;
  FrameType type = FrameType::ping;
  std::uint16_t flags = 0;
  std::uint32_t length = 0;
  std::uint64_t request = 0;
};

/// A received frame; the body lives as long as the callback that hands it over.
struct FrameView {
  FrameHeader header;
  ByteSpan body;
};

/// Parses a header from exactly frame_header_bytes. Fails with `incompatible` on a foreign version and
/// `invalid_input` on a wrong magic, an unknown type or a length above `limit`.
Result<FrameHeader> parse_frame_header(ByteSpan bytes, std::uint32_t limit = max_frame_body);

/// Starts a frame in an empty buffer; append the body behind it, then call finish_frame().
Bytes begin_frame(FrameType type, std::uint64_t request, std::size_t body_hint = 0);
/// Writes the body length into the header. Asserts that it is within max_frame_body.
void finish_frame(Bytes& frame);
/// A whole frame around an existing body.
Bytes make_frame(FrameType type, std::uint64_t request, ByteSpan body);

}  // namespace linkcpp::wire
