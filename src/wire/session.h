// What the two ends of a session say to each other about it: attach, attached, ack, end. Layouts: docs/protocol.md, section 5.7.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "wire/frame.h"

namespace linkcpp::wire {

using SessionId = std::array<std::uint8_t, 16>;

/// Bytes of a bitmap of received frames at most.
inline constexpr std::size_t max_session_bitmap = 1024;
inline constexpr std::size_t max_end_reason = 1024;

/// Where one end stands. Numbers are whole here: they count the numbered frames of one direction from 0.
struct SessionState {
  std::uint64_t next = 0;  ///< lowest number that was not received
  std::uint64_t mark = 0;  ///< number that this end's next new frame will have
  Bytes beyond;            ///< bit i of it: frame next + 1 + i was received; does not end with a zero byte
  bool operator==(const SessionState&) const = default;
};

struct Attach {
  SessionId id{};
  bool may_create = false;  ///< the dialling side has heard nothing of this session yet: it may be new
  SessionState state;
};

/// The session ends with this reason, once the receiver has everything before `mark`.
struct End {
  std::uint64_t mark = 0;
  ErrorKind kind = ErrorKind::unavailable;
  std::string reason;
};

Bytes make_attach(const Attach& attach);
/// `type` is attached or ack: both say where the sender stands.
Bytes make_session_state(FrameType type, const SessionState& state);
Bytes make_end(const End& end);

/// These fail with `invalid_input` and say which frame is malformed, and how.
Result<Attach> decode_attach(const FrameView& frame);
Result<SessionState> decode_session_state(const FrameView& frame);
Result<End> decode_end(const FrameView& frame);

}  // namespace linkcpp::wire
