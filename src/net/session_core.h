// The core of a session: numbers frames, keeps them until the peer has them, and hands over what arrives once and in order, whatever
// happens to the connections beneath. Pure: no sockets, clocks, threads. docs/protocol.md, section 4.1, is its specification.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "net/link.h"
#include "wire/frame.h"
#include "wire/session.h"

namespace linkcpp::net {

/// Frames that may be under way, unacknowledged: a quarter of what 15 bits count, so that a number is never read as another.
inline constexpr std::size_t max_session_window = 8192;

struct SessionCoreKnobs {
  std::size_t max_kept_bytes = std::size_t{512} << 20;  ///< sent and not acknowledged; also what is held back here until it is in order
  std::size_t max_kept_frames = max_session_window;     ///< the same in frames; at most max_session_window
  unsigned ack_frames = 32;                             ///< received frames that are acknowledged together …
  std::chrono::nanoseconds ack_delay{std::chrono::milliseconds(20)};  ///< … or after so long
  std::size_t early_bytes = 64u << 10;                                ///< sent on a path before the peer has said what it has
  std::chrono::nanoseconds patience{std::chrono::seconds(10)};        ///< a session without any path lives for so long
  std::chrono::nanoseconds end_patience{std::chrono::seconds(1)};     ///< for frames that were sent before the peer's farewell
  unsigned max_attaches = 16;                                         ///< on one path within a second
};

/// One end of a session. Paths are connections that carry it; the caller numbers them as it likes, never the same number twice.
class SessionCore {
 public:
  using Time = std::chrono::nanoseconds;  ///< since any fixed origin
  using PathId = std::uint32_t;

  struct Send {
    PathId path = 0;
    SharedFrame frame;
  };
  /// A frame that was held back and is in order now.
  struct Held {
    wire::FrameHeader header;
    Bytes body;
  };
  /// What the caller is to do. `deliver` and `deliveries` in this order.
  struct Actions {
    std::vector<Send> sends;
    bool deliver = false;  ///< the frame that was just received is handed over
    std::vector<Held> deliveries;
    bool suspended = false;      ///< the last path is gone
    bool resumed = false;        ///< the first one has come
    std::optional<Error> ended;  ///< the session is over; after the deliveries
  };

  SessionCore(wire::SessionId id, bool dialled, SessionCoreKnobs knobs);

  // ---- paths
  /// On the side that dials: the path's first frame, attach, and what waits, as far as the peer's state need not be known for it.
  void add_dialled_path(PathId path, Time now, Actions& out);
  /// On the side that accepts: a path whose first frame was this.
  Result<> add_accepted_path(PathId path, const wire::Attach& attach, Time now, Actions& out);
  /// The connection is gone; what was sent over it and is not acknowledged is sent again.
  void lose_path(PathId path, Time now, Actions& out);
  /// The path is silent: it is left, if there is another, and what it carried is sent again.
  void doubt_path(PathId path, Time now, Actions& out);
  /// New frames take this path from now on, if the peer has answered on it.
  void prefer_path(PathId path);

  // ---- frames
  /// Numbers and sends a frame, or keeps it until there is a path. Too many kept frames end the session.
  void send(Bytes frame, Time now, Actions& out);
  /// A frame came. An error is a violation of the protocol by the peer: the session is to be closed with it.
  Result<> receive(PathId path, const wire::FrameView& frame, Time now, Actions& out);

  // ---- time and end
  void on_tick(Time now, Actions& out);
  /// When on_tick has something to do; none if never.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  /// Says farewell on every path. Nothing is sent or handed over after it.
  void close(const Error& reason, Actions& out);
  /// Nobody will bring another path: a session without one is over at once.
  void forsake(Time now, Actions& out);

  // ---- state
  [[nodiscard]] const wire::SessionId& id() const { return id_; }
  [[nodiscard]] PathId preferred() const { return preferred_; }  ///< 0: none
  [[nodiscard]] std::size_t paths() const { return paths_.size(); }
  [[nodiscard]] bool answered(PathId path) const;
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] bool suspended() const { return suspended_since_.has_value(); }
  /// Bytes that are kept until the peer has them, of all frames or of those that this path carried last.
  [[nodiscard]] std::size_t kept_bytes() const { return kept_bytes_; }
  [[nodiscard]] std::size_t kept_bytes(PathId path) const;
  [[nodiscard]] std::size_t kept_frames() const { return kept_.size(); }
  [[nodiscard]] std::size_t held_bytes() const { return held_bytes_; }

 private:
  struct Path {
    PathId id = 0;
    bool answered = false;        ///< the peer's state is known: everything may be sent
    std::size_t early = 0;        ///< bytes sent before
    std::uint64_t reference = 0;  ///< numbers on this path are read as the nearest to this one
    std::uint64_t marked = 0;     ///< the peer's reference is at least this
    Time attaches_since{0};       ///< the second in which …
    unsigned attaches = 0;        ///< … so many came
  };
  struct Kept {
    SharedFrame frame;  ///< none: acknowledged
    PathId path = 0;    ///< that carried it last; 0: it waits
  };
  struct Slot {
    bool there = false;
    std::unique_ptr<Held> held;  ///< none: handed over already
  };

  [[nodiscard]] Path* find(PathId path);
  [[nodiscard]] const Path* find(PathId path) const;
  [[nodiscard]] std::uint64_t next_number() const { return kept_base_ + kept_.size(); }
  [[nodiscard]] wire::SessionState state(std::size_t max_bitmap) const;
  void number(Bytes& frame);
  void transmit(Actions& out);
  bool may_send(const Path& path, std::size_t bytes) const;
  void mark_others(Actions& out);
  void say(Path& path, Bytes frame, Actions& out);
  void attach_on(Path& path, Actions& out);
  void unsend(PathId path);
  void move_from(PathId path, Time now, Actions& out);
  void come_back(Actions& out);
  void acknowledge(Actions& out);
  void acknowledged();
  void end(Error reason, Actions& out);

  Result<> on_attach(Path& path, const wire::FrameView& frame, Time now, Actions& out);
  Result<> on_state(Path& path, const wire::FrameView& frame, Actions& out);
  Result<> on_end(const wire::FrameView& frame, Time now, Actions& out);
  Result<> on_numbered(Path& path, const wire::FrameView& frame, Time now, Actions& out);
  Result<> take_state(Path& path, const wire::SessionState& state);
  Result<std::uint64_t> read_number(Path& path, std::uint16_t flags) const;
  Result<> hold(std::uint64_t number, const wire::FrameView& frame);
  void advance(Actions& out);
  void owe_ack(bool ordered, Time now, Actions& out);
  void end_if_complete(Actions& out);

  const wire::SessionId id_;
  const bool dialled_;
  SessionCoreKnobs knobs_;
  std::vector<Path> paths_;
  PathId preferred_ = 0;
  bool known_ = false;  ///< the peer has spoken
  bool over_ = false, forsaken_ = false;
  std::optional<Time> suspended_since_;

  // Sending. The first kept frame has the number kept_base_, which is the lowest that the peer has not acknowledged.
  std::deque<Kept> kept_;
  std::uint64_t kept_base_ = 0;
  std::size_t kept_bytes_ = 0;
  std::size_t waiting_ = 0;           ///< none of kept_ before this one waits to be sent
  std::uint64_t ordered_behind_ = 0;  ///< number behind the last ordered frame

  // Receiving. The first slot is of the number next_.
  std::uint64_t next_ = 0;
  std::deque<Slot> slots_;
  std::size_t held_bytes_ = 0;
  unsigned unacknowledged_ = 0;
  std::optional<Time> ack_due_;
  std::optional<wire::End> farewell_;
  Time farewell_due_{0};
};

}  // namespace linkcpp::net
