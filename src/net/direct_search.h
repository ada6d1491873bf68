// Direct paths for sessions that begin at a relay: the sockets that find them, and one search for each session.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/path_finder.h"
#include "net/port_mapper.h"
#include "net/quic_hub.h"
#include "net/session_link.h"

namespace linkcpp::net {

/// Of one session. Its offers travel in frames of type `candidates` over whatever carries the session at that moment. Threading: any
/// thread. Dropping it ends the search; the session keeps what was found.
class DirectSearch : public std::enable_shared_from_this<DirectSearch> {
 public:
  /// What the session's paths are tagged with that were found here.
  static constexpr unsigned path_tag = 0x70756E63;

  DirectSearch(std::shared_ptr<QuicEndpoint> endpoint, bool dialer, std::vector<Udp::endpoint> stun_servers, std::weak_ptr<Session> session,
               PathFinderKnobs knobs);
  ~DirectSearch();
  DirectSearch(const DirectSearch&) = delete;
  DirectSearch& operator=(const DirectSearch&) = delete;

  /// Dialling side: looks for a direct path, unless it has one. To be called for each connection to a relay: what was under way over the
  /// one before may be lost.
  void begin();
  void received_offer(ByteSpan offer);
  void add_candidate(const Candidate& candidate);
  /// The path that was found is gone.
  void path_lost();

 private:
  void make_finder();
  bool too_many_offers();

  const std::shared_ptr<QuicEndpoint> endpoint_;
  const bool dialer_;
  const std::vector<Udp::endpoint> stun_servers_;
  const std::weak_ptr<Session> session_;
  const PathFinderKnobs knobs_;
  // On the hub's strand:
  std::shared_ptr<PathFinder> finder_;
  std::vector<Candidate> mapped_;
  bool found_ = false;
  std::chrono::steady_clock::time_point offers_since_{};
  int offers_ = 0;
};

/// Where searches come from: one for each dialer or listener of sessions. Threading: any thread.
class DirectPaths : public std::enable_shared_from_this<DirectPaths> {
 public:
  /// `socket`: a listener's, to be shared; none: one is opened when the first search needs it. `addresses`: those of relays and peers,
  /// whose UDP ports may tell this node how it is seen. `on_connection`: connections that peers make to a socket of its own.
  DirectPaths(boost::asio::io_context& context, const Credentials& credentials, const LinkKnobs& link, PathFinderKnobs knobs,
              std::shared_ptr<QuicEndpoint> socket, const std::vector<std::string>& addresses, QuicHub::OnConnection on_connection);

  /// Finds out where the addresses are. Searches that begin before know no STUN server.
  void start();
  /// None if this machine has no UDP.
  std::shared_ptr<DirectSearch> search(const std::weak_ptr<Session>& session, bool dialer);

 private:
  void map_port();
  /// The socket's port is open on the router, under this address; searches offer it too.
  void add_mapped(const Candidate& candidate);

  boost::asio::io_context& context_;
  const Strand strand_;
  const Credentials credentials_;
  const LinkKnobs link_;
  const PathFinderKnobs knobs_;
  const std::vector<std::string> addresses_;
  const QuicHub::OnConnection on_connection_;
  std::mutex mutex_;
  std::shared_ptr<QuicEndpoint> socket_;
  std::vector<Udp::endpoint> stun_servers_;
  std::vector<Candidate> mapped_;
  std::vector<std::weak_ptr<DirectSearch>> searches_;
  std::unique_ptr<PortMapper> mapper_;
};

}  // namespace linkcpp::net
