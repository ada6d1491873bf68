#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <mutex>
#include <utility>

#include "net/callback_gate.h"
#include "net/direct_search.h"
#include "net/endpoint.h"
#include "net/session_transport.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

/// What paths are tagged with.
enum : unsigned { by_address = 1, by_relay = 2 };

bool names_relay(const std::string& text) {
  const auto address = parse_address(text);
  return address && address->scheme == Scheme::relay;
}

/// What connections, sessions and timers share. Locks: its own is never held while a session or a callback is called.
class SessionDialling : public std::enable_shared_from_this<SessionDialling> {
 public:
  SessionDialling(asio::io_context& context, const std::vector<std::string>& addresses, const Credentials& credentials,
                  const LinkKnobs& link, SessionKnobs knobs, Dialer::OnLink on_link, Dialer::OnFailure on_failure)
      : context_(context),
        credentials_(credentials),
        link_(link),
        knobs_(std::move(knobs)),
        on_link_(std::move(on_link)),
        on_failure_(std::move(on_failure)),
        relay_timer_(asio::make_strand(context)) {
    for (const std::string& address : addresses) (names_relay(address) ? relays_ : others_).push_back(address);
    if (knobs_.find_direct && !relays_.empty())
      direct_ = std::make_shared<DirectPaths>(context, credentials, link, knobs_.finder, nullptr, addresses, QuicHub::OnConnection{});
  }

  void start() {
    if (direct_) direct_->start();
    if (!others_.empty() || relays_.empty()) dialers_[0] = dial(others_, by_address);
    if (relays_.empty()) return;
    if (others_.empty()) return use_relays();
    asio::post(relay_timer_.get_executor(), [self = shared_from_this()] {
      self->relay_timer_.expires_after(self->knobs_.relay_after);
      self->relay_timer_.async_wait([weak = self->weak_from_this()](const boost::system::error_code& error) {
        if (const auto s = weak.lock(); s && !error && !s->has_path()) s->use_relays();
      });
    });
  }

  void stop() {
    gate_.close();
    std::unique_ptr<Dialer> dialers[2];
    std::shared_ptr<Session> session;
    std::shared_ptr<DirectSearch> search;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      std::swap(dialers[0], dialers_[0]);
      std::swap(dialers[1], dialers_[1]);
      session = std::exchange(present_, nullptr);
      search = std::exchange(search_, nullptr);
    }
    asio::post(relay_timer_.get_executor(), [self = shared_from_this()] { self->relay_timer_.cancel(); });
    dialers[0].reset();
    dialers[1].reset();
    if (session) session->forsake();
  }

  void add(LinkPtr connection, unsigned tag) {
    while (true) {
      auto [session, is_new] = present_or_new(connection->peer());
      if (!session) return;
      const bool relayed = is_relayed(connection->kind());
      auto added = session->add_dialled_path(connection, tag);
      if (!added && session->over()) continue;  // it ended at this moment: a new one follows
      if (!added) return failed(added.error());
      if (relayed) search_for(session);
      if (is_new) {
        LinkPtr link = session->link();  // if nobody wants it, it ends the session
        gate_.run([&] { on_link_(std::move(link)); });
      }
      return;
    }
  }

 private:
  std::unique_ptr<Dialer> dial(const std::vector<std::string>& addresses, unsigned tag) {
    return Dialer::start(
        context_, addresses, credentials_, link_,
        [weak = weak_from_this(), tag](LinkPtr link) {
          if (const auto self = weak.lock()) self->add(std::move(link), tag);
        },
        [weak = weak_from_this()](const Error& error) {
          if (const auto self = weak.lock(); self && !self->has_path()) self->failed(error);
        });
  }

  void use_relays() {
    const std::lock_guard lock(mutex_);
    if (!stopped_ && !dialers_[1] && !relays_.empty()) dialers_[1] = dial(relays_, by_relay);
  }

  bool has_path() const {
    std::shared_ptr<Session> session;
    {
      const std::lock_guard lock(mutex_);
      session = present_;
    }
    return session && session->has_path();
  }

  std::pair<std::shared_ptr<Session>, bool> present_or_new(const PeerKey& peer) {
    std::shared_ptr<Session> present;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return {};
      present = present_;
    }
    if (present && !present->over()) return {std::move(present), false};
    const auto id = Session::random_id();
    auto session =
        std::make_shared<Session>(context_, id, peer, true, knobs_, [weak = weak_from_this(), id](const Session::Notice& notice) {
          if (const auto self = weak.lock()) self->on_notice(id, notice);
        });
    const std::lock_guard lock(mutex_);
    if (stopped_) return {};
    if (present_ != present) return {present_, false};  // somebody was quicker
    present_ = session;
    present_id_ = id;
    search_.reset();
    return {std::move(session), true};
  }

  void search_for(const std::shared_ptr<Session>& session) {
    if (!direct_) return;
    std::shared_ptr<DirectSearch> search;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_ || session != present_) return;
      if (!search_) search_ = direct_->search(session, true);
      search = search_;
    }
    if (!search) return session->set_path_note("no direct path is looked for: this machine gives no UDP socket");
    session->on_offer([weak = std::weak_ptr(search)](ByteSpan offer) {
      if (const auto s = weak.lock()) s->received_offer(offer);
    });
    search->begin();
  }

  void on_notice(const wire::SessionId& id, const Session::Notice& notice) {
    std::shared_ptr<DirectSearch> search;
    {
      const std::lock_guard lock(mutex_);
      if (!present_ || present_id_ != id) return;
      search = search_;
      if (notice.event == Session::Event::ended) {
        present_.reset();
        search_.reset();
      }
    }
    const bool lost = notice.event == Session::Event::path_lost;
    if ((lost || notice.event == Session::Event::silent) && notice.tag == by_address) use_relays();
    if (!lost) return;
    if (notice.tag == DirectSearch::path_tag && search) search->path_lost();
  }

  void failed(const Error& error) {
    gate_.run([&] {
      if (on_failure_) on_failure_(error);
    });
  }

  asio::io_context& context_;
  const Credentials credentials_;
  const LinkKnobs link_;
  const SessionKnobs knobs_;
  const Dialer::OnLink on_link_;
  const Dialer::OnFailure on_failure_;
  CallbackGate gate_;
  asio::steady_timer relay_timer_;
  std::vector<std::string> others_, relays_;
  std::shared_ptr<DirectPaths> direct_;

  mutable std::mutex mutex_;
  std::unique_ptr<Dialer> dialers_[2];
  std::shared_ptr<Session> present_;
  wire::SessionId present_id_{};
  std::shared_ptr<DirectSearch> search_;
  bool stopped_ = false;
};

class DialerOfSessions final : public SessionDialer {
 public:
  explicit DialerOfSessions(std::shared_ptr<SessionDialling> dialling) : dialling_(std::move(dialling)) {}
  ~DialerOfSessions() override { dialling_->stop(); }

 private:
  std::shared_ptr<SessionDialling> dialling_;
};

}  // namespace

std::unique_ptr<SessionDialer> SessionDialer::start(asio::io_context& context, const std::vector<std::string>& addresses,
                                                    const Credentials& credentials, const LinkKnobs& link, SessionKnobs knobs,
                                                    Dialer::OnLink on_link, Dialer::OnFailure on_failure) {
  auto dialling = std::make_shared<SessionDialling>(context, addresses, credentials, link, fitting(std::move(knobs), link),
                                                    std::move(on_link), std::move(on_failure));
  dialling->start();
  return std::make_unique<DialerOfSessions>(std::move(dialling));
}

}  // namespace linkcpp::net
