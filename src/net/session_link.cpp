#include "net/session_link.h"

#include <openssl/rand.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

class SessionHandle final : public Link {
 public:
  explicit SessionHandle(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~SessionHandle() override { session_->abandon(); }
  void start(Handlers handlers) override { session_->start(std::move(handlers)); }
  void send(Bytes frame) override { session_->send(std::move(frame)); }
  void send(SharedFrame frame) override { session_->send(Bytes(*frame)); }  // it is numbered: others may share it
  void close(Error reason) override { session_->close(std::move(reason)); }
  [[nodiscard]] bool sending() const override { return session_->sending(); }
  [[nodiscard]] LinkStats stats() const override { return session_->stats(); }
  [[nodiscard]] const PeerKey& peer() const override { return session_->peer(); }
  [[nodiscard]] std::string endpoint() const override { return session_->endpoint(); }
  [[nodiscard]] std::string_view kind() const override { return session_->kind(); }
  [[nodiscard]] std::vector<PathStats> paths() const override { return session_->paths(); }
  [[nodiscard]] std::string path_note() const override { return session_->path_note(); }

 private:
  std::shared_ptr<Session> session_;
};

void add_up(LinkStats& total, const LinkStats& part) {
  total.bytes_sent += part.bytes_sent;
  total.bytes_received += part.bytes_received;
  total.frames_sent += part.frames_sent;
  total.frames_received += part.frames_received;
}

}  // namespace

Session::Session(asio::io_context& context, wire::SessionId id, PeerKey peer, bool dialled, SessionKnobs knobs, Watch watch)
    : strand_(asio::make_strand(context)),
      timer_(strand_),
      peer_(peer),
      knobs_(std::move(knobs)),
      watch_(std::move(watch)),
      core_(id, dialled, knobs_.core),
      supervised_(Clock::now()),
      listening_since_(supervised_) {}

wire::SessionId Session::random_id() {
  wire::SessionId id;
  RAND_bytes(id.data(), static_cast<int>(id.size()));
  return id;
}

LinkPtr Session::link() { return std::make_shared<SessionHandle>(shared_from_this()); }

// ---- paths -----------------------------------------------------------------------------------------------------------

const Session::Path* Session::find(SessionCore::PathId id) const {
  const auto found = std::ranges::find(paths_, id, &Path::id);
  return found == paths_.end() ? nullptr : &*found;
}

SessionCore::PathId Session::keep_path(LinkPtr connection, unsigned tag) {
  const auto when = Clock::now();
  if (paths_.empty()) supervised_ = listening_since_ = when;
  paths_.push_back({.id = ++last_path_, .connection = std::move(connection), .tag = tag, .since = when, .heard = when, .attached = {}});
  return last_path_;
}

/// Makes room for one more.
void Session::evict_path(SessionCore::Actions& out) {
  if (paths_.size() < std::max<std::size_t>(knobs_.max_paths, 1)) return;
  auto victim = paths_.end();
  for (auto path = paths_.begin(); path != paths_.end(); ++path) {
    if (path->id == core_.preferred() && paths_.size() > 1) continue;
    if (victim == paths_.end() || path->heard < victim->heard) victim = path;
  }
  outbox_.push_back({victim->connection, Error{ErrorKind::unavailable, "another connection took its place in the session"}});
  core_.lose_path(victim->id, now(), out);
  forget_path(*victim);
  paths_.erase(victim);
}

Result<> Session::add_dialled_path(LinkPtr connection, unsigned tag) {
  if (connection->peer() != peer_) {
    return linkcpp::fail(ErrorKind::unauthorized, "node {} answers at {}, where node {} was", short_name(connection->peer()),
                         connection->endpoint(), short_name(peer_));
  }
  SessionCore::PathId id = 0;
  {
    const Lock lock(mutex_);
    if (core_.over()) return linkcpp::fail(ErrorKind::unavailable, "the session is over");
    SessionCore::Actions out;
    evict_path(out);
    id = keep_path(connection, tag);
    core_.add_dialled_path(id, now(), out);
    take(out);
  }
  connection->start({.on_frame =
                         [weak = weak_from_this(), id](const wire::FrameView& frame) {
                           if (auto self = weak.lock()) self->on_path_frame(id, frame);
                         },
                     .on_close =
                         [weak = weak_from_this(), id](const Error& error) {
                           if (auto self = weak.lock()) self->on_path_closed(id, error);
                         }});
  settle(false);
  return {};
}

Result<SessionCore::PathId> Session::add_accepted_path(LinkPtr connection, const wire::Attach& attach) {
  SessionCore::PathId id = 0;
  {
    const Lock lock(mutex_);
    if (core_.over()) return linkcpp::fail(ErrorKind::unavailable, "the session is over");
    SessionCore::Actions out;
    evict_path(out);
    id = keep_path(std::move(connection), 0);
    auto sound = core_.add_accepted_path(id, attach, now(), out);
    take(out);
    if (!sound) fail(std::move(sound.error()));
  }
  settle(false);
  return id;
}

void Session::on_offer(std::function<void(ByteSpan)> handler) {
  const Lock lock(mutex_);
  on_offer_ = std::move(handler);
}

void Session::set_path_note(std::string note) {
  const Lock lock(mutex_);
  path_note_ = std::move(note);
}

std::string Session::path_note() const {
  const Lock lock(mutex_);
  return path_note_;
}

bool Session::has_path() const {
  const Lock lock(mutex_);
  return !paths_.empty();
}

void Session::on_path_frame(SessionCore::PathId id, const wire::FrameView& frame) {
  if (frame.header.type == wire::FrameType::candidates) {
    std::function<void(ByteSpan)> handler;
    {
      const Lock lock(mutex_);
      if (!core_.over()) handler = on_offer_;
    }
    if (handler) handler(frame.body);
    return;
  }
  {
    Lock lock(mutex_);
    if (core_.over()) return;
    SessionCore::Actions out;
    auto sound = core_.receive(id, frame, now(), out);
    const bool at_once = out.deliver && started_ && !delivering_ && !muted_ && inbox_.empty();
    if (out.deliver && !at_once) hold(SessionCore::Held{frame.header, Bytes(frame.body.begin(), frame.body.end())}, frame.body.size());
    take(out);
    if (!sound) fail(std::move(sound.error()));
    if (at_once) {  // without a copy
      delivering_ = true;
      lock.unlock();
      if (handlers_.on_frame) handlers_.on_frame(frame);
      lock.lock();
      delivering_ = false;
    }
  }
  settle(true);
}

void Session::on_path_closed(SessionCore::PathId id, const Error&) {
  {
    const Lock lock(mutex_);
    const auto path = std::ranges::find(paths_, id, &Path::id);
    if (path == paths_.end()) return;
    const auto lived = path->attached ? Clock::now() - *path->attached : Clock::duration(0);
    notices_.push_back({Event::path_lost, path->tag, lived});
    forget_path(*path);
    paths_.erase(path);
    if (closing_) {
      if (paths_.empty()) hold(*closing_, 0);
    } else {
      SessionCore::Actions out;
      core_.lose_path(id, now(), out);
      take(out);
    }
  }
  settle(true);
}

void Session::forget_path(Path& path) {
  add_up(totals_, path.connection->stats());
  last_endpoint_ = path.connection->endpoint();
  last_kind_ = path.connection->kind();
}

// ---- what the core wants ---------------------------------------------------------------------------------------------

void Session::take(SessionCore::Actions& out) {
  for (auto& send : out.sends) {
    if (const Path* path = find(send.path)) outbox_.push_back({path->connection, std::move(send.frame)});
  }
  for (auto& held : out.deliveries) {
    const std::size_t bytes = held.body.size();
    hold(std::move(held), bytes);
  }
  for (Path& path : paths_) {
    if (!path.attached && core_.answered(path.id)) path.attached = Clock::now();
  }
  if (out.suspended) {
    hold(Suspended{}, 0);
    notices_.push_back({.event = Event::suspended});
  }
  if (out.resumed) {
    hold(Resumed{}, 0);
    notices_.push_back({.event = Event::resumed});
  }
  if (out.ended) finish(std::move(*out.ended));
}

/// The core is over; on_close follows behind what is to be handed over.
void Session::finish(Error reason) {
  for (Path& path : paths_) {
    forget_path(path);
    outbox_.push_back({std::move(path.connection), reason});
  }
  const std::string where = last_endpoint_;
  paths_.clear();
  notices_.push_back({.event = Event::ended});
  hold(Error{reason.kind, std::format("the session with {} ended: {}", where, reason.message)}, 0);
}

/// The peer broke the protocol, or somebody here ends the session.
void Session::fail(Error reason) {
  if (core_.over()) return;
  SessionCore::Actions out;
  core_.close(reason, out);
  take(out);
  finish(std::move(reason));
}

void Session::hold(Incoming item, std::size_t bytes) {
  inbox_.push_back(std::move(item));
  inbox_bytes_ += bytes;
  if (inbox_bytes_ > knobs_.core.max_kept_bytes)
    fail({ErrorKind::unavailable, std::format("more than {} MiB were received and not taken", knobs_.core.max_kept_bytes >> 20)});
}

/// Hands over what waits, unless somebody does so already.
void Session::deliver(Lock& lock) {
  if (!started_ || std::exchange(delivering_, true)) return;
  while (!inbox_.empty() && !muted_) {
    Incoming item = std::move(inbox_.front());
    inbox_.pop_front();
    hand_over(lock, std::move(item));
  }
  delivering_ = false;
  if (!muted_) return;
  inbox_.clear();
  const Link::Handlers doomed = std::exchange(handlers_, {});
  lock.unlock();
}

void Session::hand_over(Lock& lock, Incoming item) {
  if (auto* held = std::get_if<SessionCore::Held>(&item)) {
    inbox_bytes_ -= held->body.size();
    if (closing_) return;
    lock.unlock();
    if (handlers_.on_frame) handlers_.on_frame({held->header, held->body});
  } else if (auto* error = std::get_if<Error>(&item)) {
    const Link::Handlers handlers = std::exchange(handlers_, {});
    lock.unlock();
    if (handlers.on_close) handlers.on_close(*error);
  } else {
    const auto& told = std::holds_alternative<Suspended>(item) ? handlers_.on_suspended : handlers_.on_resumed;
    if (closing_ || !told) return;
    lock.unlock();
    told();
  }
  lock.lock();
}

/// Carries out what was decided with the lock. Handlers run only on threads that drive the context.
void Session::settle(bool may_deliver) {
  flush();
  std::vector<Notice> notices;
  bool waits = false;
  {
    Lock lock(mutex_);
    if (may_deliver) deliver(lock);
    if (!lock.owns_lock()) lock.lock();
    notices = std::exchange(notices_, {});
    waits = !inbox_.empty() && started_ && !delivering_;
  }
  if (watch_) {
    for (const Notice& notice : notices) watch_(notice);
  }
  if (waits) asio::post(strand_, [self = shared_from_this()] { self->settle(true); });
  arm();
}

void Session::flush() {
  Lock lock(mutex_);
  if (std::exchange(flushing_, true)) return;
  while (!outbox_.empty()) {
    Outgoing out = std::move(outbox_.front());
    outbox_.pop_front();
    lock.unlock();
    if (auto* frame = std::get_if<SharedFrame>(&out.what)) {
      out.connection->send(std::move(*frame));
    } else {
      out.connection->close(std::move(std::get<Error>(out.what)));
    }
    out.connection.reset();
    lock.lock();
  }
  flushing_ = false;
}

// ---- time ------------------------------------------------------------------------------------------------------------

std::optional<Session::Clock::time_point> Session::due() const {
  if (core_.over()) return std::nullopt;
  std::optional<Clock::time_point> first;
  if (const auto core = core_.next_deadline()) first = Clock::time_point(std::chrono::duration_cast<Clock::duration>(*core));
  if (!paths_.empty()) first = std::min(first.value_or(Clock::time_point::max()), supervised_ + knobs_.supervision);
  return first;
}

void Session::arm() {
  Clock::time_point when;
  {
    const Lock lock(mutex_);
    const auto next = due();
    if (!next || *next >= armed_) return;
    when = armed_ = *next;
  }
  asio::dispatch(strand_, [weak = weak_from_this(), when] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_.expires_at(when);
    self->timer_.async_wait([weak](const boost::system::error_code& error) {
      if (auto session = weak.lock(); session && !error) session->on_timer();
    });
  });
}

void Session::on_timer() {
  {
    const Lock lock(mutex_);
    armed_ = Clock::time_point::max();
    const auto when = Clock::now();
    SessionCore::Actions out;
    core_.on_tick(when.time_since_epoch(), out);
    take(out);
    if (!core_.over() && !paths_.empty() && when >= supervised_ + knobs_.supervision) supervise(when);
  }
  settle(true);
}

/// Looks at all paths, leaves silent ones, and takes the best.
void Session::supervise(Clock::time_point when) {
  // Who did not listen cannot say that the peer was silent: this process may have been stopped, or nobody drove the context.
  if (when - supervised_ > 3 * knobs_.supervision) listening_since_ = when;
  supervised_ = when;
  SessionCore::Actions out;
  const bool was_heard = std::ranges::any_of(paths_, [](const Path& p) { return !p.silent; });
  std::vector<PathView> views;
  for (Path& path : paths_) {
    judge(path, when, out);
    views.push_back({.id = path.id,
                     .relayed = is_relayed(path.connection->kind()),
                     .answered = core_.answered(path.id),
                     .silent = path.silent,
                     .rtt = path.connection->stats().rtt});
  }
  core_.prefer_path(choose_path(views, core_.preferred(), knobs_.path));
  if (was_heard && std::ranges::all_of(paths_, &Path::silent)) notices_.push_back({Event::silent, paths_.front().tag, {}});
  take(out);
}

void Session::judge(Path& path, Clock::time_point when, SessionCore::Actions& out) {
  const LinkStats stats = path.connection->stats();
  path.heard = stats.heard == Clock::time_point{} ? when : std::max(path.heard, stats.heard);
  const bool was_silent = path.silent;
  path.silent = path_is_silent(when - std::max(path.heard, listening_since_), stats.rtt, core_.kept_bytes(path.id), knobs_.path);
  if (path.silent && !was_silent) core_.doubt_path(path.id, now(), out);
  if (!core_.answered(path.id) && !path.attached && when - path.since > knobs_.attach_deadline) {
    outbox_.push_back({path.connection, Error{ErrorKind::timeout, "the peer did not take the connection into the session"}});
  }
}

// ---- the link --------------------------------------------------------------------------------------------------------

void Session::start(Link::Handlers handlers) {
  {
    const Lock lock(mutex_);
    if (muted_) return;
    handlers_ = std::move(handlers);
    started_ = true;
  }
  asio::post(strand_, [self = shared_from_this()] { self->settle(true); });
}

void Session::send(Bytes frame) {
  {
    const Lock lock(mutex_);
    if (core_.over()) return;
    SessionCore::Actions out;
    core_.send(std::move(frame), now(), out);
    take(out);
  }
  settle(false);
}

void Session::close(Error reason) {
  {
    const Lock lock(mutex_);
    if (core_.over()) return;
    closing_ = reason;
    SessionCore::Actions out;
    core_.close(reason, out);
    take(out);
    notices_.push_back({.event = Event::ended});
    for (Path& path : paths_) outbox_.push_back({path.connection, reason});
    if (paths_.empty()) hold(std::move(reason), 0);
  }
  settle(false);
}

void Session::abandon() {
  {
    const Lock lock(mutex_);
    muted_ = true;
    fail({ErrorKind::unavailable, "the link was dropped"});
    // Connections that close() left to flush: they do so by themselves.
    for (Path& path : paths_) outbox_.push_back({std::move(path.connection), Error{ErrorKind::unavailable, "the link was dropped"}});
    paths_.clear();
    inbox_.clear();
    if (!delivering_) asio::post(strand_, [handlers = std::exchange(handlers_, {})] {});
  }
  settle(false);
}

void Session::forsake() {
  {
    const Lock lock(mutex_);
    SessionCore::Actions out;
    core_.forsake(now(), out);
    take(out);
  }
  settle(false);
}

void Session::expire(Error reason) {
  {
    const Lock lock(mutex_);
    fail(std::move(reason));
  }
  settle(false);
}

bool Session::over() const {
  const Lock lock(mutex_);
  return core_.over();
}

bool Session::sending() const {
  const Lock lock(mutex_);
  if (!outbox_.empty() || flushing_) return true;
  const Path* path = find(core_.preferred());
  return path != nullptr && path->connection->sending();
}

LinkStats Session::stats() const {
  const Lock lock(mutex_);
  LinkStats total = totals_;
  for (const Path& path : paths_) {
    const LinkStats stats = path.connection->stats();
    add_up(total, stats);
    total.heard = std::max(total.heard, stats.heard);
    if (path.id == core_.preferred()) total.rtt = stats.rtt, total.rtt_min = stats.rtt_min;
  }
  return total;
}

std::string Session::endpoint() const {
  const Lock lock(mutex_);
  const Path* path = find(core_.preferred());
  return path != nullptr ? path->connection->endpoint() : last_endpoint_;
}

std::string_view Session::kind() const {
  const Lock lock(mutex_);
  const Path* path = find(core_.preferred());
  return path != nullptr ? path->connection->kind() : last_kind_;
}

std::vector<PathStats> Session::paths() const {
  const Lock lock(mutex_);
  std::vector<PathStats> result;
  for (const Path& path : paths_) {
    const LinkStats stats = path.connection->stats();
    result.push_back({.kind = std::string(path.connection->kind()),
                      .endpoint = path.connection->endpoint(),
                      .rtt = stats.rtt,
                      .bytes_sent = stats.bytes_sent,
                      .bytes_received = stats.bytes_received,
                      .preferred = path.id == core_.preferred(),
                      .since = path.since});
  }
  return result;
}

}  // namespace linkcpp::net
