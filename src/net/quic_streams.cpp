#include "net/quic_streams.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace linkcpp::net {
namespace {

constexpr std::size_t flags_at = 6;  // of a frame's header
constexpr std::uint16_t overtake_bit = 0x8000;

}  // namespace

bool may_overtake(const Bytes& frame) {
  std::uint16_t flags = 0;
  if (frame.size() < wire::frame_header_bytes) return false;
  std::memcpy(&flags, frame.data() + flags_at, sizeof flags);
  return (flags & overtake_bit) != 0;
}

void OutgoingStreams::push(SharedFrame frame) {
  unwritten_ += frame->size();
  held_ += frame->size();
  if (may_overtake(*frame)) return waiting_.push_back(std::move(frame));
  ordered_.end += frame->size();
  ordered_.frames.push_back(std::move(frame));
}

void OutgoingStreams::fill(const Stream& stream, Chunk& chunk) {
  std::uint64_t offset = stream.base;
  for (const SharedFrame& frame : stream.frames) {
    const std::uint64_t end = offset + frame->size();
    if (end > stream.written) {
      const std::size_t skip = stream.written > offset ? static_cast<std::size_t>(stream.written - offset) : 0;
      chunk.parts[chunk.n_parts++] = ByteSpan(*frame).subspan(skip);
      if (chunk.n_parts == chunk.parts.size()) break;
    }
    offset = end;
  }
}

std::optional<OutgoingStreams::Chunk> OutgoingStreams::next() const {
  Chunk chunk;
  if (!ordered_id_) {  // it must have the lowest number, so it is opened first, even if there is nothing for it
    if (!can_open_ || (ordered_.end == 0 && waiting_.empty())) return std::nullopt;
    return chunk;
  }
  if (ordered_.sendable()) {
    chunk.stream = ordered_id_;
    fill(ordered_, chunk);
    return chunk;
  }
  for (const std::int64_t id : turn_) {
    const Stream& stream = singles_.at(id);
    if (!stream.sendable()) continue;
    chunk.stream = id;
    chunk.last = true;
    fill(stream, chunk);
    return chunk;
  }
  if (waiting_.empty() || !can_open_) return std::nullopt;
  return chunk;
}

void OutgoingStreams::opened(std::int64_t stream) {
  if (!ordered_id_) {
    ordered_id_ = stream;
    return;
  }
  assert(!waiting_.empty());
  Stream& single = singles_[stream];
  single.end = waiting_.front()->size();
  single.frames.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  turn_.push_back(stream);
}

OutgoingStreams::Stream* OutgoingStreams::find(std::int64_t stream) {
  if (ordered_id_ == stream) return &ordered_;
  const auto found = singles_.find(stream);
  return found == singles_.end() ? nullptr : &found->second;
}

void OutgoingStreams::wrote(std::int64_t stream, std::size_t n) {
  Stream* to = find(stream);
  if (to == nullptr) return;
  assert(to->written + n <= to->end);
  to->written += n;
  unwritten_ -= n;
  if (to != &ordered_ && to->written == to->end) std::erase(turn_, stream);
}

void OutgoingStreams::blocked(std::int64_t stream) {
  if (Stream* to = find(stream)) to->blocked = true;
}

void OutgoingStreams::unblocked(std::int64_t stream) {
  if (Stream* to = find(stream)) to->blocked = false;
}

void OutgoingStreams::acknowledged(std::int64_t stream, std::uint64_t offset) {
  Stream* to = find(stream);
  if (to == nullptr) return;
  while (!to->frames.empty() && to->base + to->frames.front()->size() <= offset) {
    to->base += to->frames.front()->size();
    held_ -= to->frames.front()->size();
    to->frames.pop_front();
  }
}

void OutgoingStreams::closed(std::int64_t stream) {
  const auto found = singles_.find(stream);
  if (found == singles_.end()) return;
  for (const SharedFrame& frame : found->second.frames) held_ -= frame->size();
  unwritten_ -= static_cast<std::size_t>(found->second.end - found->second.written);
  std::erase(turn_, stream);
  singles_.erase(found);
}

// ---- incoming --------------------------------------------------------------------------------------------------------

Result<> IncomingStreams::received(std::int64_t stream, ByteSpan bytes, bool last) {
  const auto append = [&bytes](FrameBuffer& buffer) {
    if (bytes.empty()) return;
    std::memcpy(buffer.space(bytes.size()).data(), bytes.data(), bytes.size());
    buffer.commit(bytes.size());
  };
  forget_spent();
  if (is_ordered(stream)) {
    if (last) return fail(ErrorKind::invalid_input, "the peer ended its ordered stream");
    append(ordered_);
    return {};
  }
  Single& single = singles_[stream];
  append(single.buffer);
  single.last = single.last || last;
  if (single.delivered && single.buffer.held() > 0) return fail(ErrorKind::invalid_input, "a second frame on a stream for one");
  if (!single.queued && !single.delivered) {
    single.queued = true;
    ready_.push_back(stream);
  }
  return {};
}

/// The view that was handed out is not used any more.
void IncomingStreams::forget_spent() {
  if (!spent_) return;
  const auto found = singles_.find(*spent_);
  if (found != singles_.end() && found->second.closed) singles_.erase(found);
  spent_.reset();
}

Result<std::optional<wire::FrameView>> IncomingStreams::next_ordered() { return ordered_.next(limit_); }

Result<std::optional<wire::FrameView>> IncomingStreams::next() {
  forget_spent();
  auto frame = ordered_.next(limit_);
  if (!frame || *frame) return frame;
  while (!ready_.empty()) {
    const std::int64_t id = ready_.front();
    ready_.pop_front();
    const auto found = singles_.find(id);
    if (found == singles_.end()) continue;
    Single& single = found->second;
    single.queued = false;
    auto whole = single.buffer.next(limit_);
    if (!whole) return whole;
    if (!*whole) {
      if (single.last) return fail(ErrorKind::invalid_input, "a stream ended in the middle of its frame");
      continue;  // queued again when more comes
    }
    single.delivered = true;
    spent_ = id;
    if (single.buffer.held() > 0) return fail(ErrorKind::invalid_input, "a second frame on a stream for one");
    return whole;
  }
  return std::nullopt;
}

void IncomingStreams::closed(std::int64_t stream) {
  const auto found = singles_.find(stream);
  if (found == singles_.end()) return;
  found->second.closed = true;  // QUIC has done its part; the reader may not have
  if (found->second.delivered && spent_ != stream) singles_.erase(found);
}

bool IncomingStreams::in_frame() const {
  return ordered_.held() > 0 || std::ranges::any_of(singles_, [](const auto& entry) { return entry.second.buffer.held() > 0; });
}

}  // namespace linkcpp::net
