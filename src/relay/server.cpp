#include "relay/server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <map>
#include <set>
#include <utility>

#include "net/attempt.h"
#include "net/callback_gate.h"
#include "net/endpoint.h"
#include "net/pipe_io.h"
#include "net/relay_channel.h"
#include "net/tcp_pipe.h"
#include "net/udp_socket.h"
#include "net/websocket_upgrade.h"
#include "relay/passed_link.h"
#include "relay/stun_service.h"

namespace linkcpp::relay {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using net::as_values;
using net::Attempt;
using net::PeerKey;
using net::RelayAnswer;
using net::RelayChannel;
using net::short_name;
using net::Tcp;
using Acceptor = asio::basic_socket_acceptor<Tcp, net::Strand>;

constexpr auto accept_pause = std::chrono::milliseconds(100);
constexpr auto sweep_pause = std::chrono::milliseconds(500);
/// When all places are taken, whoever has been shaking hands for so long must make room: honest nodes are faster.
constexpr std::chrono::milliseconds handshake_patience{1000};
constexpr double events_per_second = 20, event_burst = 100;
constexpr double least_rate_burst = 256u << 10;
constexpr const char* what_this_is =
    "This is a relay of linkcpp: nodes of a swarm that cannot reach each other meet here. There is nothing to see in a browser.\n";

/// What one attacker has of its own: an IPv4 address, or a /64.
asio::ip::address origin_of(const asio::ip::address& address) {
  if (!address.is_v6()) return address;
  auto bytes = address.to_v6().to_bytes();
  if (address.to_v6().is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  std::fill(bytes.begin() + 8, bytes.end(), std::uint8_t{0});
  return asio::ip::make_address_v6(bytes);
}

}  // namespace

/// Everything runs on strand_.
class Server::State : public std::enable_shared_from_this<Server::State> {
 public:
  State(net::Strand strand, Acceptor acceptor, std::shared_ptr<net::UdpSocket> udp, std::shared_ptr<const net::TlsContext> tls,
        ServerOptions options, OnEvent on_event)
      : strand_(std::move(strand)),
        acceptor_(std::move(acceptor)),
        wake_(strand_),
        sweep_timer_(strand_),
        tls_(std::move(tls)),
        options_(std::move(options)),
        broker_(options_.access, options_.limits),
        stun_(std::make_shared<StunService>(std::move(udp), counters_)),
        on_event_(std::move(on_event)),
        events_(events_per_second, event_burst) {}

  void start() {
    asio::co_spawn(strand_, [self = shared_from_this()] { return self->accept_all(); }, asio::detached);
    asio::co_spawn(strand_, [self = shared_from_this()] { return self->sweep(); }, asio::detached);
    asio::post(strand_, [self = shared_from_this()] { self->stun_->start(); });
  }

  void stop() {
    gate_.close();
    asio::post(strand_, [self = shared_from_this()] { self->end(); });
  }

  void ask_counters(std::function<void(const Counters&)> then) {
    asio::post(strand_, [self = shared_from_this(), then = std::move(then)] { then(self->snapshot()); });
  }

 private:
  /// A connection that has not shown yet whose it is.
  struct Guest {
    std::shared_ptr<Attempt> attempt;
    asio::ip::address origin;
    Clock::time_point begun;
    bool evicted = false;
  };
  using Place = std::list<Guest>::iterator;
  struct Session {
    std::shared_ptr<RelayChannel> channel;
    PeerKey key;
    Clock::time_point heard;
  };
  /// A side of a link whose other side has not come yet.
  struct Waiting {
    std::unique_ptr<net::Pipe> pipe;
    PeerKey peer;
    bool caller = false;
    Clock::time_point until;
  };

  void end() {
    stopped_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    wake_.cancel();
    sweep_timer_.cancel();
    stun_->stop();
    for (const Guest& guest : guests_) guest.attempt->abort({ErrorKind::unavailable, "the relay stopped"});
    for (const auto& [id, session] : sessions_) session.channel->close();
    for (const auto& [connection, waiting] : waiting_) waiting.pipe->close();
    waiting_.clear();
    for (const auto& [connection, link] : links_) link->close();
  }

  Counters snapshot() const {
    Counters now = *counters_;
    now.nodes_now = sessions_.size();
    now.swarms_now = broker_.n_swarms();
    now.links_now = links_.size();
    return now;
  }

  void tell(Event::What what, std::string endpoint, std::string who, std::string why = {}) {
    if (!events_.take(1, Clock::now())) return;  // a flood must not fill the operator's disk
    gate_.run([&] {
      if (on_event_) on_event_({what, std::move(endpoint), std::move(who), std::move(why)});
    });
  }

  // ---- accepting

  asio::awaitable<void> accept_all() {
    while (!stopped_) {
      co_await wait_for_place();
      if (stopped_) break;
      auto [error, socket] = co_await acceptor_.async_accept(as_values);
      if (stopped_) break;
      if (!error) {
        admit(std::move(socket));
        continue;
      }
      if (error == asio::error::connection_aborted) continue;
      tell(Event::What::refused, "(not yet accepted)", "", std::format("cannot accept connections: {}", error.message()));
      wake_.expires_after(accept_pause);
      co_await wake_.async_wait(as_values);
    }
  }

  asio::awaitable<void> wait_for_place() {
    const auto patience = std::min(handshake_patience, options_.handshake_deadline);
    while (!stopped_ && guests_.size() >= options_.max_handshakes) {
      Guest& oldest = guests_.front();
      if (!oldest.evicted && Clock::now() >= oldest.begun + patience) {
        oldest.evicted = true;
        oldest.attempt->abort({ErrorKind::unavailable, "too many connections were shaking hands, and this one was the slowest"});
      }
      wake_.expires_after(accept_pause);
      co_await wake_.async_wait(as_values);
    }
  }

  void admit(net::Socket socket) {
    ++counters_->connections;
    error_code error;
    const auto endpoint = socket.remote_endpoint(error);
    if (error) return;  // gone already
    const auto origin = origin_of(endpoint.address());
    if (std::ranges::count(guests_, origin, &Guest::origin) >= static_cast<std::ptrdiff_t>(options_.max_handshakes_of_address)) {
      ++counters_->floods;
      return tell(Event::What::refused, net::to_text(endpoint), "", "too many connections at once from this address");
    }
    auto attempt = std::make_shared<Attempt>(strand_, options_.handshake_deadline);
    attempt->set_pipe(std::make_unique<net::TcpPipe>(std::move(socket), net::to_text(endpoint)));
    const Place place = guests_.insert(guests_.end(), Guest{attempt, origin, Clock::now()});
    asio::co_spawn(strand_, [self = shared_from_this(), attempt, place] { return self->receive(attempt, place); }, asio::detached);
  }

  void leave_place(Place place) {
    guests_.erase(place);
    wake_.cancel();
  }

  asio::awaitable<void> receive(std::shared_ptr<Attempt> attempt, Place place) {
    const std::string endpoint = attempt->pipe().endpoint();
    attempt->start_deadline();
    auto first = co_await first_byte(*attempt);
    std::shared_ptr<RelayChannel> channel;
    Result<> done;
    if (!first) {
      done = pass(first);
    } else if (*first == net::relay_preamble_first) {
      done = co_await take_data(attempt);
    } else {
      channel = std::make_shared<RelayChannel>(attempt, attempt->pipe().kind() == "tcp" ? Bytes() : Bytes{*first});
      done = co_await take_control(attempt, channel);
    }
    attempt->end_deadline();
    leave_place(place);
    if (done && channel && !stopped_) co_return co_await serve(channel);
    if (attempt->has_pipe()) attempt->close();
    if (done || stopped_) co_return;
    tell(Event::What::refused, endpoint, channel_peer(channel), done.error().message);
  }

  static std::string channel_peer(const std::shared_ptr<RelayChannel>& channel) {
    return channel && channel->has_peer() ? short_name(channel->peer()) : std::string();
  }

  /// The first byte that is not of the WebSocket. Left where it is on a TCP connection, else taken.
  asio::awaitable<Result<std::byte>> first_byte(Attempt& attempt) {
    attempt.enter("its first words");
    auto& tcp = static_cast<net::TcpPipe&>(attempt.pipe());
    co_await tcp.socket().async_wait(net::Socket::wait_read, as_values);
    std::byte first{};
    const bool came = !attempt.aborted() && ::recv(tcp.socket().native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    if (!came) {
      ++counters_->handshakes_failed;
      co_return attempt.ended();
    }
    if (!net::begins_http(first)) co_return first;
    if (auto accepted = co_await net::accept_websocket(attempt, what_this_is); !accepted) {
      ++counters_->web_requests;
      co_return pass(accepted);
    }
    if (auto read = co_await read_exactly(attempt, {&first, 1}); !read) co_return pass(read);
    co_return first;
  }

  static asio::awaitable<Result<>> read_exactly(Attempt& attempt, std::span<std::byte> into) {
    while (!into.empty()) {
      const auto got = co_await net::read_some(attempt.pipe(), into);
      if (!got) co_return attempt.broken(got.error());
      if (*got == 0) co_return attempt.ended();
      into = into.subspan(*got);
    }
    co_return Result<>();
  }

  // ---- control connections

  /// Until the node is known and welcome.
  asio::awaitable<Result<>> take_control(std::shared_ptr<Attempt> attempt, std::shared_ptr<RelayChannel> channel) {
    if (auto done = co_await channel->handshake(tls_, net::TlsSide::server); !done) {
      ++counters_->handshakes_failed;
      co_return done;
    }
    auto message = co_await channel->receive();
    if (!message) {
      ++counters_->handshakes_failed;
      co_return pass(message);
    }
    if (attempt->aborted()) co_return std::unexpected(*attempt->aborted());
    const ControlId id = ++last_control_;
    auto admitted = admit_node(id, *channel, *message);
    if (!admitted) {
      ++counters_->nodes_refused;
      broker_.leave(id);
      channel->send(net::RelayRefuse{admitted.error().kind, admitted.error().message});
      co_await channel->farewell();
      co_return admitted;
    }
    sessions_[id] = {.channel = channel, .key = channel->peer(), .heard = Clock::now()};
    control_ids_[channel.get()] = id;
    channel->send(net::RelayWelcome{channel->endpoint()});
    tell(Event::What::node_came, channel->endpoint(), short_name(channel->peer()),
         std::holds_alternative<net::RelayRegister>(*message) ? "a backbone" : "");
    co_return Result<>();
  }

  Result<> admit_node(ControlId id, RelayChannel& channel, const net::RelayMessage& message) {
    if (auto arrived = broker_.arrive(id, channel.peer()); !arrived) return arrived;
    if (const auto* backbone = std::get_if<net::RelayRegister>(&message)) {
      auto outdated = broker_.register_backbone(id, backbone->membership);
      if (!outdated) return pass(outdated);
      for (const ControlId other : *outdated) dismiss(other, {ErrorKind::unauthorized, "the swarm's secret was replaced"});
      return {};
    }
    if (const auto* join = std::get_if<net::RelayJoin>(&message)) {
      const auto exported = channel.exported();
      if (!exported) return std::unexpected(exported.error());
      return broker_.join(id, *join, *exported);
    }
    return fail(ErrorKind::invalid_input, "a node did not say first whose it is");
  }

  /// Says why, and lets the other side close.
  void dismiss(ControlId id, Error why) {
    const auto session = sessions_.find(id);
    if (session == sessions_.end()) return;
    session->second.channel->send(net::RelayRefuse{why.kind, why.message});
    session->second.channel->end_sending();  // the node closes then, or is closed when it has been silent for long
    broker_.leave(id);
  }

  asio::awaitable<void> serve(std::shared_ptr<RelayChannel> channel) {
    const ControlId id = control_ids_.at(channel.get());
    std::string why;
    for (;;) {
      auto message = co_await channel->receive();
      if (!message) {
        why = message.error().message;
        break;
      }
      const auto now = Clock::now();
      sessions_.at(id).heard = now;
      Result<> handled;
      if (!broker_.may_speak(id, now)) {
        ++counters_->floods;
        handled = fail(ErrorKind::invalid_input, "this node says more than a relay listens to");
      } else {
        handled = handle(id, *channel, *message, now);
      }
      if (handled) continue;
      why = handled.error().message;
      channel->send(net::RelayRefuse{handled.error().kind, why});
      co_await channel->farewell();
      break;
    }
    const auto peer = short_name(channel->peer());
    channel->close();
    sessions_.erase(id);
    control_ids_.erase(channel.get());
    broker_.leave(id);
    tell(Event::What::node_left, channel->endpoint(), peer, why);
  }

  Result<> handle(ControlId id, RelayChannel& channel, const net::RelayMessage& message, Clock::time_point now) {
    if (const auto* ping = std::get_if<net::RelayPing>(&message)) {
      channel.send(net::RelayPong{ping->stamp});
      return {};
    }
    if (std::holds_alternative<net::RelayPong>(message)) return {};
    if (std::holds_alternative<net::RelayListen>(message)) return broker_.listen(id);
    if (const auto* connect = std::get_if<net::RelayConnect>(&message)) {
      introduce(id, channel, *connect, now);
      return {};
    }
    return fail(ErrorKind::invalid_input, "a message that a node may not send now");
  }

  void introduce(ControlId id, RelayChannel& channel, const net::RelayConnect& connect, Clock::time_point now) {
    auto introduction = broker_.connect(id, connect.to, now);
    if (!introduction) {
      ++counters_->connects_failed;
      return channel.send(net::RelayFailed{connect.request, introduction.error().kind, introduction.error().message});
    }
    ++counters_->introductions;
    sessions_.at(introduction->called).channel->send(net::RelayIntroduce{0, introduction->caller_key, introduction->tickets.called});
    channel.send(net::RelayIntroduce{connect.request, connect.to, introduction->tickets.caller});
  }

  // ---- data connections

  asio::awaitable<Result<>> take_data(std::shared_ptr<Attempt> attempt) {
    attempt->enter("its ticket");
    std::array<std::byte, net::relay_preamble_bytes> preamble{};
    // Behind a WebSocket the first byte was taken; it is known.
    const std::size_t taken = attempt->pipe().kind() == "tcp" ? 0 : 1;
    preamble[0] = net::relay_preamble_first;
    if (auto read = co_await read_exactly(*attempt, std::span(preamble).subspan(taken)); !read) {
      ++counters_->handshakes_failed;
      co_return read;
    }
    const auto ticket = net::decode_relay_preamble(preamble);
    if (!ticket) {
      ++counters_->handshakes_failed;
      co_return std::unexpected(ticket.error());
    }
    const auto now = Clock::now();
    const auto side = broker_.redeem(*ticket, now);
    if (side.ticket.answer != RelayAnswer::joined) {
      count(side.ticket.answer);
      co_await answer(*attempt, side.ticket.answer);
      co_return std::unexpected(net::relay_answer_error(static_cast<std::uint8_t>(side.ticket.answer)));
    }
    attempt->end_deadline();
    const auto other = waiting_.find(side.ticket.connection);
    Waiting mine{.pipe = attempt->take_pipe(), .peer = side.peer, .caller = side.ticket.caller, .until = side.ticket.expires};
    if (other == waiting_.end()) {
      waiting_.emplace(side.ticket.connection, std::move(mine));
    } else {
      Waiting first = std::move(other->second);
      waiting_.erase(other);
      join(side.ticket.connection, std::move(first), std::move(mine));
    }
    co_return Result<>();
  }

  void count(RelayAnswer answer) {
    if (answer == RelayAnswer::unknown_ticket) ++counters_->tickets_unknown;
    if (answer == RelayAnswer::expired_ticket) ++counters_->tickets_expired;
    if (answer == RelayAnswer::used_ticket) ++counters_->tickets_replayed;
    if (answer == RelayAnswer::peer_missing) ++counters_->peers_missing;
  }

  static std::array<std::byte, 1> byte_of(RelayAnswer answer) { return {static_cast<std::byte>(answer)}; }

  static asio::awaitable<void> answer(Attempt& attempt, RelayAnswer answer) {
    const auto byte = byte_of(answer);
    if (auto sent = co_await net::write_all(attempt.pipe(), byte); !sent) co_return;
    attempt.pipe().shutdown_send();
    attempt.cancel_after(handshake_patience);
    std::array<std::byte, 256> ignored;
    Result<std::size_t> got = 1;
    while (got && *got > 0) got = co_await net::read_some(attempt.pipe(), ignored);
  }

  std::shared_ptr<Bucket> rate_of(const PeerKey& key) {
    auto& weak = rates_[key];
    auto rate = weak.lock();
    if (!rate) {
      const double bytes = options_.rate_mbit * 1e6 / 8;
      rate = std::make_shared<Bucket>(bytes, std::max(least_rate_burst, bytes / 10));
      weak = rate;
    }
    return rate;
  }

  void join(std::uint64_t connection, Waiting first, Waiting second) {
    const auto joined = byte_of(RelayAnswer::joined);
    for (const Waiting* side : {&first, &second}) {
      ByteSpan byte = joined;
      (void)side->pipe->try_write(byte);  // an empty connection takes a byte; if it is broken, passing on ends at once
    }
    if (!first.caller) std::swap(first, second);
    ++counters_->links;
    tell(Event::What::link_began, "", short_name(first.peer) + " to " + short_name(second.peer));
    const auto who = short_name(first.peer) + " to " + short_name(second.peer);
    auto link = std::make_shared<PassedLink>(PassedLink::Side{std::move(first.pipe), rate_of(first.peer)},
                                             PassedLink::Side{std::move(second.pipe), rate_of(second.peer)},
                                             std::shared_ptr<std::uint64_t>(counters_, &counters_->bytes));
    links_[connection] = link;
    // Weak: a link may outlive the server, and the server must not live as long as its links.
    link->start([weak_self = weak_from_this(), connection, who, weak_link = std::weak_ptr(link)] {
      const auto self = weak_self.lock();
      const auto ended = weak_link.lock();
      if (self) self->link_ended(connection, who, ended ? ended->bytes() : 0);
    });
  }

  void link_ended(std::uint64_t connection, const std::string& who, std::uint64_t bytes) {
    links_.erase(connection);
    broker_.link_ended(connection);
    tell(Event::What::link_ended, "", who, std::format("{} bytes", bytes));
  }

  // ---- deadlines

  asio::awaitable<void> sweep() {
    while (!stopped_) {
      sweep_timer_.expires_after(sweep_pause);
      co_await sweep_timer_.async_wait(as_values);
      if (stopped_) break;
      const auto now = Clock::now();
      for (const auto& [id, session] : sessions_) {
        if (now - session.heard > options_.control_silence) session.channel->close();
      }
      for (const auto& [connection, link] : links_) {
        if (now - link->moved() > options_.link_silence) link->close();
      }
      for (auto it = waiting_.begin(); it != waiting_.end();) {
        const auto each = it++;
        if (now >= each->second.until) give_up(each);
      }
      std::erase_if(rates_, [](const auto& entry) { return entry.second.expired(); });
      broker_.forget_old(now);
    }
  }

  /// The other side did not come.
  void give_up(std::map<std::uint64_t, Waiting>::iterator waiting) {
    count(RelayAnswer::peer_missing);
    const auto missing = byte_of(RelayAnswer::peer_missing);
    ByteSpan byte = missing;
    (void)waiting->second.pipe->try_write(byte);
    waiting->second.pipe->close();
    broker_.link_ended(waiting->first);
    waiting_.erase(waiting);
  }

  net::Strand strand_;
  Acceptor acceptor_;
  asio::steady_timer wake_, sweep_timer_;
  std::shared_ptr<const net::TlsContext> tls_;
  const ServerOptions options_;
  Broker broker_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::shared_ptr<StunService> stun_;
  OnEvent on_event_;
  Bucket events_;
  net::CallbackGate gate_;
  std::list<Guest> guests_;
  ControlId last_control_ = 0;
  std::map<ControlId, Session> sessions_;
  std::map<const RelayChannel*, ControlId> control_ids_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::map<std::uint64_t, std::shared_ptr<PassedLink>> links_;
  std::map<PeerKey, std::weak_ptr<Bucket>> rates_;
  bool stopped_ = false;
};

namespace {

error_code bind_and_listen(Acceptor& acceptor, const Tcp::endpoint& endpoint, const std::string& congestion_control) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (error) return error;
  error_code ignored;
  acceptor.set_option(asio::socket_base::reuse_address(true), ignored);
  if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), ignored);
  net::set_congestion_control(acceptor.native_handle(), congestion_control);
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return error;
}

/// A port that the system picked for TCP may be taken for UDP: then it picks another.
constexpr int port_tries = 16;

struct Bound {
  Acceptor acceptor;
  std::shared_ptr<net::UdpSocket> udp;
};

Result<Bound> bind_both(asio::io_context& context, const net::Strand& strand, const ServerOptions& options) {
  const auto where = net::parse_endpoint(options.listen);
  if (!where) return std::unexpected(where.error());
  error_code error;
  Tcp::resolver resolver(context);
  const auto found = resolver.resolve(where->host, std::to_string(where->port), Tcp::resolver::passive, error);
  if (error || found.empty())
    return fail(ErrorKind::invalid_input, "cannot listen on {}: the host is not known: {}", options.listen, error.message());
  Error last;
  for (int tries = where->port == 0 ? port_tries : 1; tries > 0; --tries) {
    Acceptor acceptor(strand);
    error = bind_and_listen(acceptor, found.begin()->endpoint(), options.congestion_control);
    if (error) return fail(ErrorKind::io, "cannot listen on {}: {}; choose another address or port", options.listen, error.message());
    const auto bound = acceptor.local_endpoint(error);
    auto udp = net::UdpSocket::bind(strand, {bound.address(), bound.port()});
    if (udp) return Bound{std::move(acceptor), std::move(*udp)};
    last = std::move(udp.error());
  }
  return std::unexpected(std::move(last));
}

}  // namespace

Server::Server(std::shared_ptr<State> state, std::string address, PeerKey key)
    : state_(std::move(state)), address_(std::move(address)), key_(key) {}

Server::~Server() { state_->stop(); }

void Server::ask_counters(std::function<void(const Counters&)> then) const { state_->ask_counters(std::move(then)); }

Result<std::unique_ptr<Server>> Server::open(asio::io_context& context, net::Identity identity, ServerOptions options, OnEvent on_event) {
  auto tls = net::TlsContext::create(identity, std::nullopt);
  if (!tls) return pass(tls);
  options.max_handshakes = std::max<std::size_t>(options.max_handshakes, 1);
  const net::Strand strand = asio::make_strand(context);
  auto bound = bind_both(context, strand, options);
  if (!bound) return pass(bound);
  error_code ignored;
  std::string address = net::to_text(bound->acceptor.local_endpoint(ignored));
  auto state = std::make_shared<State>(strand, std::move(bound->acceptor), std::move(bound->udp), std::move(*tls), std::move(options),
                                       std::move(on_event));
  state->start();
  return std::unique_ptr<Server>(new Server(std::move(state), std::move(address), identity.key()));
}

}  // namespace linkcpp::relay
