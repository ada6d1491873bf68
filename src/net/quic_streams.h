// Which bytes of which frame go onto which QUIC stream, and how frames are put together again. Pure: no sockets, no clock, no ngtcp2.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/error.h"
#include "net/frame_buffer.h"
#include "net/link.h"

namespace linkcpp::net {

/// A frame says in its header whether it may overtake others (net/session_core.h sets that): its own stream then, so that the loss of a
/// packet holds up no frame but its own.
bool may_overtake(const Bytes& frame);

/// What is to be sent. All frames that keep their order share one stream, for ever; each of the others gets its own. Bytes stay where they
/// are until they are acknowledged, as ngtcp2 demands.
class OutgoingStreams {
 public:
  /// Bytes to hand to QUIC next. `stream` is none if a stream must be opened first.
  struct Chunk {
    std::optional<std::int64_t> stream;
    std::array<std::span<const std::byte>, 16> parts;
    std::size_t n_parts = 0;
    bool last = false;  ///< the stream ends behind these bytes
  };

  void push(SharedFrame frame);
  /// The next bytes; none if nothing can be sent. Ordered frames go first.
  [[nodiscard]] std::optional<Chunk> next() const;
  /// For the chunk without a stream: this one was opened. False ends the attempt: the peer allows no more streams for now.
  void opened(std::int64_t stream);
  void no_stream_left() { can_open_ = false; }
  void may_open() { can_open_ = true; }
  /// n bytes of the last chunk were taken.
  void wrote(std::int64_t stream, std::size_t n);
  /// The peer's window for this stream is full.
  void blocked(std::int64_t stream);
  void unblocked(std::int64_t stream);
  /// All bytes before this offset have arrived.
  void acknowledged(std::int64_t stream, std::uint64_t offset);
  void closed(std::int64_t stream);

  /// Nothing waits to be written for the first time.
  [[nodiscard]] bool all_written() const { return unwritten_ == 0; }
  /// Nothing waits for an acknowledgement either.
  [[nodiscard]] bool all_acknowledged() const { return held_ == 0; }
  /// Bytes not written yet.
  [[nodiscard]] std::size_t unwritten() const { return unwritten_; }

 private:
  struct Stream {
    std::deque<SharedFrame> frames;
    std::uint64_t base = 0;     ///< offset of the first frame that is held
    std::uint64_t written = 0;  ///< offset
    std::uint64_t end = 0;
    bool blocked = false;
    [[nodiscard]] bool sendable() const { return written < end && !blocked; }
  };
  static void fill(const Stream& stream, Chunk& chunk);
  Stream* find(std::int64_t stream);

  std::optional<std::int64_t> ordered_id_;
  Stream ordered_;
  std::map<std::int64_t, Stream> singles_;
  std::deque<std::int64_t> turn_;    ///< singles that have bytes to write, oldest first
  std::deque<SharedFrame> waiting_;  ///< singles without a stream
  bool can_open_ = true;
  std::size_t unwritten_ = 0, held_ = 0;
};

/// What has come. A peer's first stream is the ordered one; each later stream carries exactly one frame.
class IncomingStreams {
 public:
  /// `limit`: of a frame's body, for now. Fails with `invalid_input` on bytes that no frame begins with, and on a second frame.
  Result<> received(std::int64_t stream, ByteSpan bytes, bool last);
  void set_limit(std::uint32_t limit) { limit_ = limit; }
  /// The next whole frame; valid until the next call of anything here.
  Result<std::optional<wire::FrameView>> next();
  /// Of the ordered stream alone, for the exchange of proofs.
  Result<std::optional<wire::FrameView>> next_ordered();
  void closed(std::int64_t stream);
  /// A frame has begun and not ended.
  [[nodiscard]] bool in_frame() const;

 private:
  struct Single {
    FrameBuffer buffer;
    bool delivered = false, last = false, queued = false, closed = false;
  };
  /// Unidirectional streams are numbered 2, 6, … (client) and 3, 7, … (server), RFC 9000, 2.1.
  static bool is_ordered(std::int64_t stream) { return stream < 4; }
  void forget_spent();

  FrameBuffer ordered_;
  std::map<std::int64_t, Single> singles_;
  std::deque<std::int64_t> ready_;     ///< singles that may be whole
  std::optional<std::int64_t> spent_;  ///< its frame was handed out last
  std::uint32_t limit_ = wire::max_unauthenticated_body;
};

}  // namespace linkcpp::net
