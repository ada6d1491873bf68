// A session: one link over connections that come and go. It survives the loss of all of them for a while, moves between them, and neither
// loses nor repeats a frame. What to send and hand over is the core's matter (net/session_core.h), which path to take that of
// net/path_choice.h; here are the connections, locks and timers.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "net/link.h"
#include "net/path_choice.h"
#include "net/path_finder.h"
#include "net/session_core.h"

namespace linkcpp::net {

/// Every tunable of sessions.
struct SessionKnobs {
  SessionCoreKnobs core;
  PathKnobs path;
  std::size_t max_paths = 4;                 ///< connections of one session; a further one replaces the one that was silent for longest
  std::size_t sessions_per_peer = 8;         ///< of one public key; a further one replaces a suspended one, or is refused
  std::size_t max_suspended = 64;            ///< sessions without a connection in all; a further one ends the one that waited longest
  std::size_t max_unattached = 64;           ///< connections that have not said which session they carry
  std::size_t max_early_bytes = 128u << 10;  ///< taken from such a connection, should frames overtake its attach
  std::chrono::milliseconds attach_deadline{10'000};  ///< for attach, and for its answer
  std::chrono::milliseconds supervision{200};         ///< how often paths are compared
  std::chrono::milliseconds relay_after{300};         ///< relays among the addresses are used when no direct path came so soon
  bool find_direct = true;                            ///< looks for a direct path while a relay carries the session
  PathFinderKnobs finder;
};

/// Threading: everything from any thread. A frame is written by the thread that sends it, as with a connection, unless another writes at
/// that moment. Handlers run on a thread that drives the context, one at a time.
class Session : public std::enable_shared_from_this<Session> {
 public:
  enum class Event {
    path_lost,  ///< a path has ended; `lived` says how long after it was attached
    silent,     ///< nothing is heard on any path: another one would be welcome
    suspended,
    resumed,
    ended,
  };
  struct Notice {
    Event event = Event::ended;
    unsigned tag = 0;                   ///< that the path was given
    std::chrono::nanoseconds lived{0};  ///< 0: the peer never answered on it
  };
  /// For whoever brings paths. Called without locks, from any thread; must not wait.
  using Watch = std::function<void(const Notice&)>;

  Session(boost::asio::io_context& context, wire::SessionId id, PeerKey peer, bool dialled, SessionKnobs knobs, Watch watch);
  static wire::SessionId random_id();

  /// The link that users hold; the last copy to go ends the session. Called once.
  LinkPtr link();

  /// A connection, not started, whose far end listens. Fails, and drops it, if it leads to another node or the session is over.
  Result<> add_dialled_path(LinkPtr connection, unsigned tag);
  /// A connection that was started by whoever waited for its attach; its further frames and its end are passed on with the number that
  /// is returned.
  Result<SessionCore::PathId> add_accepted_path(LinkPtr connection, const wire::Attach& attach);
  void on_path_frame(SessionCore::PathId path, const wire::FrameView& frame);
  void on_path_closed(SessionCore::PathId path, const Error& error);

  /// For frames of type `candidates`, which look for further paths; called without locks.
  void on_offer(std::function<void(ByteSpan offer)> handler);
  /// How the search for a direct path stands, for Link::path_note().
  void set_path_note(std::string note);
  [[nodiscard]] std::string path_note() const;
  /// Whether something carries it at present.
  [[nodiscard]] bool has_path() const;

  /// Nobody brings paths any more: without one the session is over.
  void forsake();
  /// Ends it from outside, with on_close.
  void expire(Error reason);
  [[nodiscard]] bool over() const;

  // ---- what the link promises (net/link.h)
  void start(Link::Handlers handlers);
  void send(Bytes frame);
  void close(Error reason);
  void abandon();
  [[nodiscard]] bool sending() const;
  [[nodiscard]] LinkStats stats() const;
  [[nodiscard]] const PeerKey& peer() const { return peer_; }
  [[nodiscard]] std::string endpoint() const;
  [[nodiscard]] std::string_view kind() const;
  [[nodiscard]] std::vector<PathStats> paths() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  struct Path {
    SessionCore::PathId id = 0;
    LinkPtr connection;
    unsigned tag = 0;
    Clock::time_point since, heard;
    std::optional<Clock::time_point> attached;
    bool silent = false;
  };
  /// For a connection: a frame, or its end.
  struct Outgoing {
    LinkPtr connection;
    std::variant<SharedFrame, Error> what;
  };
  struct Suspended {};
  struct Resumed {};
  using Incoming = std::variant<SessionCore::Held, Suspended, Resumed, Error>;

  static SessionCore::Time now() { return Clock::now().time_since_epoch(); }
  // With the lock.
  SessionCore::PathId keep_path(LinkPtr connection, unsigned tag);
  void evict_path(SessionCore::Actions& out);
  [[nodiscard]] const Path* find(SessionCore::PathId id) const;
  void take(SessionCore::Actions& out);
  void finish(Error reason);
  void fail(Error reason);
  void hold(Incoming item, std::size_t bytes);
  void deliver(Lock& lock);
  void hand_over(Lock& lock, Incoming item);
  void forget_path(Path& path);
  void supervise(Clock::time_point when);
  void judge(Path& path, Clock::time_point when, SessionCore::Actions& out);
  [[nodiscard]] std::optional<Clock::time_point> due() const;
  // Without the lock.
  void settle(bool may_deliver);
  void flush();
  void arm();
  void on_timer();

  boost::asio::strand<boost::asio::io_context::executor_type> strand_;
  boost::asio::steady_timer timer_;  ///< on the strand only
  const PeerKey peer_;
  const SessionKnobs knobs_;
  const Watch watch_;

  mutable std::mutex mutex_;
  SessionCore core_;
  std::vector<Path> paths_;
  SessionCore::PathId last_path_ = 0;
  std::string last_endpoint_;
  std::string_view last_kind_ = "session";  ///< of the path that was preferred
  LinkStats totals_;                        ///< of paths that are gone
  std::vector<Notice> notices_;
  std::function<void(ByteSpan)> on_offer_;
  std::string path_note_;
  Clock::time_point armed_ = Clock::time_point::max(), supervised_, listening_since_;

  std::deque<Outgoing> outbox_;
  bool flushing_ = false;  ///< somebody empties the outbox

  Link::Handlers handlers_;
  std::deque<Incoming> inbox_;
  std::size_t inbox_bytes_ = 0;
  bool started_ = false, delivering_ = false, muted_ = false;
  std::optional<Error> closing_;  ///< closed here: on_close follows when the connections have flushed
};

}  // namespace linkcpp::net
