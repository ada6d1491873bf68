#include "wire/session.h"

#include <algorithm>
#include <utility>

#include "wire/malformed.h"
#include "wire/text.h"

namespace linkcpp::wire {
namespace {

constexpr std::uint8_t may_create_bit = 1;

const char* name_of(FrameType type) {
  switch (type) {
    case FrameType::attach:
      return "attach";
    case FrameType::attached:
      return "attached";
    default:
      return "ack";
  }
}

void encode_state(const SessionState& state, Bytes& out) {
  ByteWriter writer(out);
  writer.put(state.mark);
  writer.raw(ByteSpan(state.beyond).first(std::min(state.beyond.size(), max_session_bitmap)));
}

/// The rest of the body: mark, bitmap.
Result<SessionState> decode_state(const FrameView& frame, ByteReader& in) {
  const char* what = name_of(frame.header.type);
  SessionState state{.next = frame.header.request, .mark = in.get<std::uint64_t>(), .beyond = {}};
  if (!in.ok()) return malformed(what, "it is cut short");
  const ByteSpan beyond = in.take(in.left());
  if (beyond.size() > max_session_bitmap)
    return malformed(what, "its bitmap has {} bytes, the limit is {}", beyond.size(), max_session_bitmap);
  if (!beyond.empty() && beyond.back() == std::byte{0}) return malformed(what, "its bitmap ends with a zero byte");
  state.beyond.assign(beyond.begin(), beyond.end());
  return state;
}

}  // namespace

Bytes make_attach(const Attach& attach) {
  Bytes frame = begin_frame(FrameType::attach, attach.state.next);
  ByteWriter writer(frame);
  writer.raw(std::as_bytes(std::span(attach.id)));
  writer.put<std::uint8_t>(attach.may_create ? may_create_bit : 0);
  encode_state(attach.state, frame);
  finish_frame(frame);
  return frame;
}

Bytes make_session_state(FrameType type, const SessionState& state) {
  Bytes frame = begin_frame(type, state.next);
  encode_state(state, frame);
  finish_frame(frame);
  return frame;
}

Bytes make_end(const End& end) {
  Bytes frame = begin_frame(FrameType::end, end.mark);
  ByteWriter writer(frame);
  writer.put(static_cast<std::uint8_t>(end.kind));
  writer.text(plain_text(end.reason, max_end_reason));
  finish_frame(frame);
  return frame;
}

Result<Attach> decode_attach(const FrameView& frame) {
  ByteReader in(frame.body);
  Attach attach;
  in.fill(attach.id);
  const auto bits = in.get<std::uint8_t>();
  auto state = decode_state(frame, in);
  if (!state) return pass(state);
  if (bits > may_create_bit) return malformed("attach", "its options 0x{:02x} are not known", bits);
  attach.may_create = bits == may_create_bit;
  attach.state = std::move(*state);
  return attach;
}

Result<SessionState> decode_session_state(const FrameView& frame) {
  ByteReader in(frame.body);
  return decode_state(frame, in);
}

Result<End> decode_end(const FrameView& frame) {
  ByteReader in(frame.body);
  const auto kind = in.get<std::uint8_t>();
  const std::string reason = in.text();
  if (!in.finished()) return malformed("end", "its length does not fit its text");
  if (kind > static_cast<std::uint8_t>(ErrorKind::internal)) return malformed("end", "error kind {} is not known", kind);
  return End{frame.header.request, static_cast<ErrorKind>(kind), plain_text(reason, max_end_reason)};
}

}  // namespace linkcpp::wire
