#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "net/callback_gate.h"
#include "net/direct_search.h"
#include "net/session_transport.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

constexpr std::size_t max_early_frames = 1024;

/// A connection that has to say which session it carries, and later the way from it to that session.
class Entrance : public std::enable_shared_from_this<Entrance> {
 public:
  /// Finds the session for an attach; none if it was refused.
  using OnAttach = std::function<void(const std::shared_ptr<Entrance>&, const wire::FrameView&)>;
  /// It will carry no session: why not, if it was refused; who only looks whether somebody is here goes by itself.
  using OnGone = std::function<void(const std::shared_ptr<Entrance>&, const Error* refused)>;

  Entrance(asio::io_context& context, LinkPtr connection, std::size_t max_early_bytes, OnAttach on_attach, OnGone on_gone)
      : connection_(std::move(connection)),
        endpoint_(connection_->endpoint()),
        deadline_(context),
        max_early_bytes_(max_early_bytes),
        on_attach_(std::move(on_attach)),
        on_gone_(std::move(on_gone)) {}

  void start(std::chrono::milliseconds limit) {
    // Held by its own handlers until it has a session or an end: nobody else may need it.
    const LinkPtr connection = connection_;
    deadline_.expires_after(limit);
    deadline_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      if (auto self = weak.lock(); self && !error)
        self->refuse({ErrorKind::timeout, "the connection did not say which session it carries"}, false);
    });
    connection->start({.on_frame = [self = shared_from_this()](const wire::FrameView& frame) { self->on_frame(frame); },
                       .on_close = [self = shared_from_this()](const Error& error) { self->on_close(error); }});
  }

  /// The connection, for the session.
  [[nodiscard]] LinkPtr connection() const {
    const std::lock_guard lock(mutex_);
    return connection_;
  }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  /// Further frames go there, after those that overtook the attach.
  void lead_to(const std::shared_ptr<Session>& session, SessionCore::PathId path) {
    std::vector<SessionCore::Held> early;
    {
      const std::lock_guard lock(mutex_);
      session_ = session;
      path_ = path;
      connection_.reset();
      early = std::exchange(early_, {});
    }
    deadline_.cancel();
    for (const auto& frame : early) session->on_path_frame(path, {frame.header, frame.body});
  }
  /// Ends the connection, with the reason as its last words if the peer may know it.
  void refuse(const Error& reason, bool aloud) {
    LinkPtr connection;
    {
      const std::lock_guard lock(mutex_);
      connection = std::exchange(connection_, nullptr);
      early_.clear();
    }
    if (!connection) return;
    if (aloud) connection->send(wire::make_end({0, reason.kind, reason.message}));
    connection->close(reason);
    on_gone_(shared_from_this(), &reason);
  }

 private:
  void on_frame(const wire::FrameView& frame) {
    std::shared_ptr<Session> session;
    {
      const std::lock_guard lock(mutex_);
      session = session_.lock();
      if (!session && !connection_) return;
    }
    if (session) return session->on_path_frame(path_, frame);
    if (frame.header.type == wire::FrameType::attach) return on_attach_(shared_from_this(), frame);
    // A transport that reorders may bring frames before the attach.
    early_bytes_ += frame.body.size();
    if (early_bytes_ > max_early_bytes_ || early_.size() >= max_early_frames)
      return refuse({ErrorKind::invalid_input, "the connection carries frames before it has said of which session"}, true);
    early_.push_back({frame.header, Bytes(frame.body.begin(), frame.body.end())});
  }
  void on_close(const Error& error) {
    std::shared_ptr<Session> session;
    bool waiting = false;
    {
      const std::lock_guard lock(mutex_);
      session = session_.lock();
      waiting = std::exchange(connection_, nullptr) != nullptr;
    }
    deadline_.cancel();
    if (session) session->on_path_closed(path_, error);
    if (waiting) on_gone_(shared_from_this(), nullptr);
  }

  mutable std::mutex mutex_;
  LinkPtr connection_;  ///< until it belongs to a session
  std::weak_ptr<Session> session_;
  SessionCore::PathId path_ = 0;
  const std::string endpoint_;
  asio::steady_timer deadline_;
  const std::size_t max_early_bytes_;
  // By the connection's handlers only.
  std::vector<SessionCore::Held> early_;
  std::size_t early_bytes_ = 0;
  const OnAttach on_attach_;
  const OnGone on_gone_;
};

/// All sessions of a listener, by their ids. Locks: its own is never held while a session is called.
class Registry : public std::enable_shared_from_this<Registry> {
 public:
  Registry(asio::io_context& context, SessionKnobs knobs, Listener::OnLink on_link, Listener::OnRefused on_refused)
      : context_(context), knobs_(std::move(knobs)), on_link_(std::move(on_link)), on_refused_(std::move(on_refused)) {}

  void admit(LinkPtr connection) {
    auto entrance = std::make_shared<Entrance>(
        context_, std::move(connection), knobs_.max_early_bytes,
        [weak = weak_from_this()](const std::shared_ptr<Entrance>& from, const wire::FrameView& frame) {
          if (auto self = weak.lock())
            self->attach(from, frame);
          else
            from->refuse({ErrorKind::unavailable, "this node stopped listening"}, true);
        },
        [weak = weak_from_this()](const std::shared_ptr<Entrance>& from, const Error* refused) {
          if (auto self = weak.lock()) self->gone(from, refused);
        });
    std::shared_ptr<Entrance> oldest;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      if (!waiting_.empty() && waiting_.size() >= knobs_.max_unattached) oldest = waiting_.front();
      waiting_.push_back(entrance);
    }
    if (oldest) oldest->refuse({ErrorKind::unavailable, "too many connections did not say which session they carry"}, false);
    entrance->start(knobs_.attach_deadline);
  }

  /// Before the first connection. Sessions that come by a relay may find a direct path with it.
  void use(std::shared_ptr<DirectPaths> direct) {
    const std::lock_guard lock(mutex_);
    direct_ = std::move(direct);
  }

  void refused(const std::string& endpoint, const Error& error) {
    gate_.run([&] {
      if (on_refused_) on_refused_(endpoint, error);
    });
  }

  void stop() {
    gate_.close();
    std::list<std::shared_ptr<Entrance>> waiting;
    std::vector<std::shared_ptr<Session>> live;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      waiting = std::exchange(waiting_, {});
      for (const auto& [id, entry] : sessions_) {
        if (auto session = entry.session.lock()) live.push_back(std::move(session));
      }
    }
    for (const auto& entrance : waiting) entrance->refuse({ErrorKind::unavailable, "this node stopped listening"}, false);
    for (const auto& session : live) session->forsake();
  }

 private:
  struct Entry {
    std::weak_ptr<Session> session;
    PeerKey peer;
    std::optional<std::uint64_t> suspended;  ///< in the order of suspensions
    std::shared_ptr<DirectSearch> search;    ///< since the peer's first offer
  };
  struct Found {
    std::shared_ptr<Session> session;
    bool is_new = false;
  };

  void attach(const std::shared_ptr<Entrance>& from, const wire::FrameView& frame) {
    const LinkPtr connection = from->connection();
    if (!connection) return;
    const auto attach = wire::decode_attach(frame);
    if (!attach) return from->refuse(attach.error(), true);
    auto found = find_or_make(connection->peer(), *attach);
    if (!found) return from->refuse(found.error(), true);
    const auto path = found->session->add_accepted_path(connection, *attach);
    if (!path) return from->refuse({ErrorKind::unavailable, "unknown session: it has just ended here"}, true);
    {
      const std::lock_guard lock(mutex_);
      waiting_.remove(from);
    }
    if (found->is_new) {
      LinkPtr link = found->session->link();  // if nobody wants it, it ends the session
      gate_.run([&] { on_link_(std::move(link)); });
    }
    from->lead_to(found->session, *path);
  }

  Result<Found> find_or_make(const PeerKey& peer, const wire::Attach& attach) {
    std::shared_ptr<Session> evicted;
    auto found = [&]() -> Result<Found> {
      const std::lock_guard lock(mutex_);
      if (stopped_) return fail(ErrorKind::unavailable, "this node stopped listening");
      const auto entry = sessions_.find(attach.id);
      if (entry != sessions_.end()) {
        if (entry->second.peer != peer) return fail(ErrorKind::unauthorized, "the session belongs to another node");
        if (auto session = entry->second.session.lock(); session) return Found{std::move(session), false};
        sessions_.erase(entry);
      }
      if (!attach.may_create)
        return fail(ErrorKind::unavailable, "unknown session: this node was restarted or gave the session up; a new one may be begun");
      if (auto room = make_room(peer, evicted); !room) return pass(room);
      auto session = std::make_shared<Session>(context_, attach.id, peer, false, knobs_,
                                               [weak = weak_from_this(), id = attach.id](const Session::Notice& notice) {
                                                 if (auto self = weak.lock()) self->on_notice(id, notice);
                                               });
      session->on_offer([weak = weak_from_this(), id = attach.id](ByteSpan offer) {
        if (auto self = weak.lock()) self->offer(id, offer);
      });
      sessions_[attach.id] = {session, peer, std::nullopt, nullptr};
      return Found{std::move(session), true};
    }();
    if (evicted) evicted->expire({ErrorKind::unavailable, "the same node began a new session"});
    return found;
  }

  /// With the lock. For one more session of this peer.
  Result<> make_room(const PeerKey& peer, std::shared_ptr<Session>& evicted) {
    std::size_t n = 0;
    auto victim = sessions_.end();
    for (auto entry = sessions_.begin(); entry != sessions_.end(); ++entry) {
      if (entry->second.peer != peer) continue;
      ++n;
      if (!entry->second.suspended) continue;
      if (victim == sessions_.end() || *entry->second.suspended < *victim->second.suspended) victim = entry;
    }
    if (n < knobs_.sessions_per_peer) return {};
    if (victim == sessions_.end()) return fail(ErrorKind::unavailable, "this node has {} sessions here already", n);
    evicted = victim->second.session.lock();
    sessions_.erase(victim);
    return {};
  }

  void offer(const wire::SessionId& id, ByteSpan offer) {
    std::shared_ptr<DirectSearch> search;
    {
      const std::lock_guard lock(mutex_);
      const auto entry = sessions_.find(id);
      if (entry == sessions_.end() || !direct_) return;
      if (!entry->second.search) entry->second.search = direct_->search(entry->second.session, false);
      search = entry->second.search;
    }
    if (search) search->received_offer(offer);
  }

  void on_notice(const wire::SessionId& id, const Session::Notice& notice) {
    std::shared_ptr<DirectSearch> dropped;  // without the lock
    std::shared_ptr<Session> evicted;
    {
      const std::lock_guard lock(mutex_);
      const auto entry = sessions_.find(id);
      if (entry == sessions_.end()) return;
      if (notice.event == Session::Event::ended) {
        dropped = std::move(entry->second.search);
        sessions_.erase(entry);
      } else if (notice.event == Session::Event::resumed) {
        entry->second.suspended.reset();
      } else if (notice.event == Session::Event::suspended) {
        entry->second.suspended = ++suspensions_;
        evicted = longest_suspended_beyond_limit();
      }
    }
    if (evicted) evicted->expire({ErrorKind::timeout, "too many sessions wait for their peers, and this one waited longest"});
  }

  std::shared_ptr<Session> longest_suspended_beyond_limit() {
    std::size_t n = 0;
    const Entry* longest = nullptr;
    for (const auto& [id, entry] : sessions_) {
      if (!entry.suspended) continue;
      ++n;
      if (longest == nullptr || *entry.suspended < *longest->suspended) longest = &entry;
    }
    return n > knobs_.max_suspended ? longest->session.lock() : nullptr;
  }

  void gone(const std::shared_ptr<Entrance>& entrance, const Error* reason) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.remove(entrance);
    }
    if (reason != nullptr) refused(entrance->endpoint(), *reason);
  }

  asio::io_context& context_;
  const SessionKnobs knobs_;
  const Listener::OnLink on_link_;
  const Listener::OnRefused on_refused_;
  CallbackGate gate_;
  mutable std::mutex mutex_;
  std::map<wire::SessionId, Entry> sessions_;
  std::list<std::shared_ptr<Entrance>> waiting_;
  std::shared_ptr<DirectPaths> direct_;
  std::uint64_t suspensions_ = 0;
  bool stopped_ = false;
};

class ListenerOfSessions final : public SessionListener {
 public:
  explicit ListenerOfSessions(std::shared_ptr<Registry> registry) : registry_(std::move(registry)) {}
  ~ListenerOfSessions() override {
    listeners_.clear();
    registry_->stop();
  }
  Result<> listen(asio::io_context& context, const std::string& address, const Credentials& credentials, const LinkKnobs& link) {
    auto listener = Listener::open(
        context, address, credentials, link, [registry = registry_](LinkPtr connection) { registry->admit(std::move(connection)); },
        [registry = registry_](const std::string& endpoint, const Error& error) { registry->refused(endpoint, error); });
    if (!listener) return pass(listener);
    addresses_.push_back((*listener)->address());
    // Its port may be known to firewalls; but from loopback nobody elsewhere is reached.
    if (auto quic = (*listener)->quic(); quic && !quic_ && !quic->local().address().is_loopback()) quic_ = std::move(quic);
    listeners_.push_back(std::move(*listener));
    return {};
  }
  void find_direct(asio::io_context& context, const std::vector<std::string>& addresses, const Credentials& credentials,
                   const LinkKnobs& link, const PathFinderKnobs& knobs) {
    auto direct = std::make_shared<DirectPaths>(context, credentials, link, knobs, quic_, addresses,
                                                [weak = std::weak_ptr(registry_)](std::shared_ptr<Connection> connection) {
                                                  if (auto registry = weak.lock()) registry->admit(make_link(std::move(connection)));
                                                });
    direct->start();
    registry_->use(std::move(direct));
  }
  [[nodiscard]] const std::vector<std::string>& addresses() const override { return addresses_; }

 private:
  std::shared_ptr<Registry> registry_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::shared_ptr<QuicEndpoint> quic_;  ///< of the first that others may reach
  std::vector<std::string> addresses_;
};

}  // namespace

Result<std::unique_ptr<SessionListener>> SessionListener::open(asio::io_context& context, const std::vector<std::string>& addresses,
                                                               const Credentials& credentials, const LinkKnobs& link, SessionKnobs knobs,
                                                               Listener::OnLink on_link, Listener::OnRefused on_refused) {
  knobs = fitting(std::move(knobs), link);
  auto listener =
      std::make_unique<ListenerOfSessions>(std::make_shared<Registry>(context, knobs, std::move(on_link), std::move(on_refused)));
  for (const std::string& address : addresses) {
    if (auto opened = listener->listen(context, address, credentials, link); !opened) return pass(opened);
  }
  if (knobs.find_direct) listener->find_direct(context, addresses, credentials, link, knobs.finder);
  return listener;
}

SessionKnobs fitting(SessionKnobs knobs, const LinkKnobs& link) {
  knobs.path.silence += std::min<std::chrono::nanoseconds>(link.keep_warm, link.silence_limit / 4);
  return knobs;
}

}  // namespace linkcpp::net
