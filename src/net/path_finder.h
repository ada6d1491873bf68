// Looks for a direct path between the two ends of a session: discovers own addresses, tells the peer, punches, connects.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/connection.h"
#include "net/path_offer.h"
#include "net/punch.h"
#include "net/quic_hub.h"
#include "net/stun.h"

namespace linkcpp::net {

struct PathFinderKnobs {
  std::chrono::milliseconds stun_pause{150};  ///< between questions to one server
  int stun_tries = 5;
  std::chrono::milliseconds retry_lost{1000};  ///< after a direct path that was found has died
  std::chrono::seconds retry_first{15};        ///< after an attempt that found nothing; doubles
  std::chrono::seconds retry_longest{600};
  bool map_port = false;  ///< asks the router to keep a port open, where there is one that does so
  Puncher::Knobs punch;
};

/// One for each session. The session carries its offers; the hub's socket carries the rest, so that the NAT's mapping is the one that QUIC
/// will use. On the dialling side it also makes the connection.
///
/// Threading: everything on the hub's strand; handlers too. Dropping it ends everything without a callback.
class PathFinder : public std::enable_shared_from_this<PathFinder> {
 public:
  struct Handlers {
    /// To be sent to the peer's PathFinder, whatever the way.
    std::function<void(Bytes offer)> send_offer;
    /// Dialling side: a direct, authenticated connection.
    std::function<void(std::shared_ptr<Connection>)> on_connection;
    /// How the search stands, in one sentence, whenever that changes.
    std::function<void(const std::string& state)> on_state{};
  };
  /// What an operator wants to know.
  struct Report {
    std::vector<Candidate> own, peers;
    std::vector<std::pair<std::string, Udp::endpoint>> seen_by;  ///< STUN server and what it saw
    std::optional<Udp::endpoint> found;
    std::chrono::nanoseconds round_trip{0};
    std::chrono::nanoseconds took{0};  ///< from the first offer to the answer that found it
    int attempts = 0;
    std::string state;  ///< one sentence
  };

  /// `stun_servers`: UDP addresses that answer STUN (relays, backbones). `extra`: mapped ports.
  PathFinder(std::shared_ptr<QuicEndpoint> endpoint, bool dialer, std::vector<Udp::endpoint> stun_servers, Handlers handlers,
             PathFinderKnobs knobs = {});
  ~PathFinder();
  PathFinder(const PathFinder&) = delete;
  PathFinder& operator=(const PathFinder&) = delete;

  /// Begins a new attempt; one that runs is dropped. The accepting side needs no start: it answers offers.
  void start();
  void received_offer(ByteSpan offer);
  /// Another address of this node became known (a router keeps a port open).
  void add_candidate(const Candidate& candidate);
  /// The direct path is lost: looks again after a pause.
  void lost();
  [[nodiscard]] const Report& report() const { return report_; }

 private:
  void gather();
  void ask(std::size_t server, int tries_left);
  void offer();
  void begin_punching();
  void tick();
  void connect(const Puncher::Found& found);
  void retry_later();
  void retry_after(std::chrono::nanoseconds pause);
  void say(std::string state);
  void arm(std::chrono::nanoseconds at);
  [[nodiscard]] static std::chrono::nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }

  std::shared_ptr<QuicEndpoint> endpoint_;
  const std::shared_ptr<QuicHub> hub_;
  const bool dialer_;
  const std::vector<Udp::endpoint> servers_;
  Handlers handlers_;
  const PathFinderKnobs knobs_;
  boost::asio::steady_timer timer_, retry_timer_;
  std::vector<std::shared_ptr<boost::asio::steady_timer>> stun_timers_;
  std::map<std::size_t, StunId> stun_ids_;
  std::optional<PunchKey> key_;
  std::optional<Puncher> puncher_;
  std::shared_ptr<QuicConnection> attempt_;
  std::chrono::nanoseconds begun_{0};
  std::chrono::seconds pause_;
  Report report_;
};

}  // namespace linkcpp::net
