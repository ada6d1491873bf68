#include "net/direct_search.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "net/endpoint.h"
#include "wire/frame.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

constexpr std::size_t max_stun_servers = 4;
/// An offer makes this node send to addresses that the peer names: no more of that than an honest one needs.
constexpr int max_offers = 48;
constexpr auto offer_period = std::chrono::seconds(10);

/// Where an address may be asked by STUN: nodes and relays answer on the UDP port of their TCP port's number, web proxies do not.
std::optional<Endpoint> stun_server_of(const std::string& text) {
  const auto address = parse_address(text);
  if (!address || address->in_websocket()) return std::nullopt;
  return address->endpoint;
}

}  // namespace

// ---- one search ------------------------------------------------------------------------------------------------------

DirectSearch::DirectSearch(std::shared_ptr<QuicEndpoint> endpoint, bool dialer, std::vector<Udp::endpoint> stun_servers,
                           std::weak_ptr<Session> session, PathFinderKnobs knobs)
    : endpoint_(std::move(endpoint)),
      dialer_(dialer),
      stun_servers_(std::move(stun_servers)),
      session_(std::move(session)),
      knobs_(knobs) {}

DirectSearch::~DirectSearch() {
  if (finder_) asio::post(endpoint_->hub()->strand(), [endpoint = endpoint_, finder = std::move(finder_)] {});
}

void DirectSearch::make_finder() {
  if (finder_) return;
  PathFinder::Handlers handlers{
      .send_offer =
          [session = session_](const Bytes& offer) {
            if (const auto s = session.lock()) s->send(wire::make_frame(wire::FrameType::candidates, 0, offer));
          },
      .on_connection =
          [session = session_, weak = weak_from_this()](std::shared_ptr<Connection> connection) {
            const auto s = session.lock();
            if (!s) return;
            LinkPtr link = make_link(std::move(connection));
            const bool added = s->add_dialled_path(std::move(link), path_tag).has_value();
            const auto self = weak.lock();
            if (!self) return;
            self->found_ = added;
            if (!added) self->path_lost();
          },
      .on_state =
          [session = session_](const std::string& state) {
            if (const auto s = session.lock()) s->set_path_note(state);
          },
  };
  finder_ = std::make_shared<PathFinder>(endpoint_, dialer_, stun_servers_, std::move(handlers), knobs_);
  for (const Candidate& candidate : mapped_) finder_->add_candidate(candidate);
}

void DirectSearch::begin() {
  asio::post(endpoint_->hub()->strand(), [self = shared_from_this()] {
    if (self->found_) return;
    self->make_finder();
    self->finder_->start();
  });
}

bool DirectSearch::too_many_offers() {
  const auto now = std::chrono::steady_clock::now();
  if (now - offers_since_ > offer_period) offers_ = 0, offers_since_ = now;
  return ++offers_ > max_offers;
}

void DirectSearch::received_offer(ByteSpan offer) {
  asio::post(endpoint_->hub()->strand(), [self = shared_from_this(), bytes = Bytes(offer.begin(), offer.end())] {
    if (self->too_many_offers()) return;
    if (!self->dialer_) self->make_finder();
    if (self->finder_) self->finder_->received_offer(bytes);
  });
}

void DirectSearch::add_candidate(const Candidate& candidate) {
  asio::post(endpoint_->hub()->strand(), [self = shared_from_this(), candidate] {
    self->mapped_.push_back(candidate);
    if (self->finder_) self->finder_->add_candidate(candidate);
  });
}

void DirectSearch::path_lost() {
  asio::post(endpoint_->hub()->strand(), [self = shared_from_this()] {
    self->found_ = false;
    if (self->finder_) self->finder_->lost();
  });
}

// ---- their source ----------------------------------------------------------------------------------------------------

DirectPaths::DirectPaths(asio::io_context& context, const Credentials& credentials, const LinkKnobs& link, PathFinderKnobs knobs,
                         std::shared_ptr<QuicEndpoint> socket, const std::vector<std::string>& addresses,
                         QuicHub::OnConnection on_connection)
    : context_(context),
      strand_(asio::make_strand(context)),
      credentials_(credentials),
      link_(link),
      knobs_(knobs),
      addresses_(addresses),
      on_connection_(std::move(on_connection)),
      socket_(std::move(socket)) {}

void DirectPaths::start() {
  for (const std::string& text : addresses_) {
    const auto server = stun_server_of(text);
    if (!server) continue;
    auto resolver = std::make_shared<Udp::resolver>(strand_);
    resolver->async_resolve(server->host, std::to_string(server->port),
                            [resolver, weak = weak_from_this()](const boost::system::error_code& error, const auto& found) {
                              const auto self = weak.lock();
                              if (!self || error) return;
                              const std::lock_guard lock(self->mutex_);
                              for (const auto& entry : found) {
                                if (self->stun_servers_.size() < max_stun_servers) self->stun_servers_.push_back(entry.endpoint());
                              }
                            });
  }
}

std::shared_ptr<DirectSearch> DirectPaths::search(const std::weak_ptr<Session>& session, bool dialer) {
  const std::lock_guard lock(mutex_);
  if (!socket_) {
    for (const auto& any : {Udp::endpoint(Udp::v6(), 0), Udp::endpoint(Udp::v4(), 0)}) {
      if (auto opened = QuicEndpoint::open(asio::make_strand(context_), any, credentials_, link_)) {
        socket_ = std::move(*opened);
        break;
      }
    }
    if (!socket_) return nullptr;
    if (on_connection_) {
      asio::post(socket_->hub()->strand(), [hub = socket_->hub(), on_connection = on_connection_] {
        hub->accept(on_connection, [](const std::string&, const Error&) {});  // the peer's search says why
      });
    }
  }
  if (knobs_.map_port && !mapper_) map_port();
  auto search = std::make_shared<DirectSearch>(socket_, dialer, stun_servers_, session, knobs_);
  for (const Candidate& candidate : mapped_) search->add_candidate(candidate);
  std::erase_if(searches_, [](const auto& weak) { return weak.expired(); });
  searches_.push_back(search);
  return search;
}

/// With the lock.
void DirectPaths::map_port() {
  PortMapperKnobs knobs;
  knobs.farewell = std::chrono::milliseconds(1000);
  knobs.tcp = false;  // nobody listens there
  mapper_ = std::make_unique<PortMapper>(
      socket_->local().port(),
      [strand = strand_, weak = weak_from_this()](const PortMapper::Mapped& mapped) {  // on the mapper's thread, which may not end itself
        asio::post(strand, [weak, candidate = mapped.candidate] {
          if (const auto self = weak.lock()) self->add_mapped(candidate);
        });
      },
      [](const Error&) {}, knobs);  // most networks have no such router: linkcpp doctor says so
}

void DirectPaths::add_mapped(const Candidate& candidate) {
  std::vector<std::shared_ptr<DirectSearch>> searches;
  {
    const std::lock_guard lock(mutex_);
    mapped_ = {candidate};  // in place of an earlier one
    for (const auto& weak : searches_) {
      if (auto search = weak.lock()) searches.push_back(std::move(search));
    }
  }
  for (const auto& search : searches) search->add_candidate(candidate);
}

}  // namespace linkcpp::net
