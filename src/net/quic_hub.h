// One UDP socket, and all QUIC connections on it; and whatever else arrives there (address discovery, hole punching).
#pragma once

#include <ngtcp2/ngtcp2.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "net/connection.h"
#include "net/quic_connection.h"
#include "net/quic_tls.h"
#include "net/stun.h"
#include "net/transport.h"
#include "net/udp_socket.h"

namespace linkcpp::net {

/// Sorts datagrams to connections by their ids, admits new ones, answers strangers as little as it can.
///
/// A stranger's first packet costs state only while few strangers are shaking hands; from `quic_retry_above` on they prove their address
/// first (RFC 9000, 8.1.2), and above `max_handshakes` they are not answered. Nothing here or in ngtcp2 answers an unproved address with
/// more than three times what came from it.
///
/// Threading: make_id, add_id, forget_id, reset_token, give_token and send_other from any thread; all else on the strand, unless it says
/// so. Lifetime: lives while the handle (QuicEndpoint) does, and then until its last connection has ended.
class QuicHub : public std::enable_shared_from_this<QuicHub> {
 public:
  static constexpr std::size_t id_bytes = 16;
  using OnConnection = std::function<void(std::shared_ptr<Connection>)>;
  using OnRefused = std::function<void(const std::string& endpoint, const Error&)>;
  using OnProbe = std::function<void(const Udp::endpoint& from, ByteSpan datagram)>;
  using OnStun = std::function<void(ByteSpan datagram)>;

  QuicHub(Strand strand, std::shared_ptr<UdpSocket> socket, std::shared_ptr<QuicTls> tls, Credentials credentials, LinkKnobs knobs);

  void start();
  void accept(OnConnection on_connection, OnRefused on_refused);
  /// Whom probes under a key (net/punch.h) are for, and answers to a STUN question. STUN questions are answered here.
  void expect_probes(std::uint64_t key_name, OnProbe on_probe) { probes_[key_name] = std::move(on_probe); }
  void forget_probes(std::uint64_t key_name) { probes_.erase(key_name); }
  void expect_stun(const StunId& id, OnStun on_stun) { stun_[id] = std::move(on_stun); }
  void forget_stun(const StunId& id) { stun_.erase(id); }
  std::shared_ptr<QuicConnection> dial(const Udp::endpoint& to, const std::string& address, QuicConnection::OnReady on_ready);
  void stop_accepting();
  /// No handle is left.
  void retire();

  void send_other(const Udp::endpoint& to, ByteSpan bytes) { socket_->send(to, bytes, bytes.size()); }
  [[nodiscard]] const Strand& strand() const { return strand_; }
  [[nodiscard]] Udp::endpoint local() const { return socket_->local(); }

  // ---- for connections
  static ngtcp2_cid random_id(std::size_t n = id_bytes);
  ngtcp2_cid make_id(std::size_t n, const std::shared_ptr<QuicConnection>& owner);
  void add_id(const ngtcp2_cid& id, const std::shared_ptr<QuicConnection>& owner);
  void forget_id(const ngtcp2_cid& id);
  void reset_token(const ngtcp2_cid& id, std::uint8_t* token) const;
  void give_token(ngtcp2_conn* quic, const Udp::endpoint& to) const;
  void forget(QuicConnection& connection);

 private:
  /// Looked up for each datagram, so without a string around it. Ids are random where we choose them; who chooses others only slows its own
  /// handshakes, of which there are few.
  struct Id {
    std::array<std::uint8_t, NGTCP2_MAX_CIDLEN> bytes{};
    std::size_t n = 0;
    Id(const std::uint8_t* id, std::size_t length);
    bool operator==(const Id&) const = default;
    struct Hash {
      std::size_t operator()(const Id& id) const;
    };
  };

  void read();
  void route(const UdpSocket::Datagram& datagram);
  void other(const UdpSocket::Datagram& datagram);
  void unknown(const ngtcp2_version_cid& header, const UdpSocket::Datagram& datagram);
  void admit(const UdpSocket::Datagram& datagram);
  std::shared_ptr<QuicConnection> find(const std::uint8_t* id, std::size_t n);
  [[nodiscard]] std::size_t unauthenticated() const;
  bool address_proved(QuicConnection::Arrival& arrival) const;
  void send_retry(const ngtcp2_pkt_hd& header, const Udp::endpoint& to);
  void send_reset(const ngtcp2_version_cid& header, std::size_t received, const Udp::endpoint& to);
  void send_versions(const ngtcp2_version_cid& header, const Udp::endpoint& to);
  bool may_answer_stranger();
  QuicConnection::Common common();

  Strand strand_;
  std::shared_ptr<UdpSocket> socket_;
  std::shared_ptr<QuicTls> tls_;
  std::shared_ptr<const Credentials> credentials_;
  LinkKnobs knobs_;
  std::array<std::uint8_t, 32> secret_{};  ///< of tokens and resets; the same after a restart
  OnConnection on_connection_;
  OnRefused on_refused_;
  std::map<std::uint64_t, OnProbe> probes_;
  std::map<StunId, OnStun> stun_;
  std::unordered_set<std::shared_ptr<QuicConnection>> connections_;
  std::unordered_set<QuicConnection*> accepted_;  ///< of these, not dialled
  bool retired_ = false;
  std::chrono::steady_clock::time_point stranger_second_{};
  int stranger_answers_ = 0;

  mutable std::mutex ids_mutex_;
  std::unordered_map<Id, std::weak_ptr<QuicConnection>, Id::Hash> ids_;
};

/// The handle of a hub. Links that it made live on without it. Threading: any thread; callbacks as of Listener and Dialer.
class QuicEndpoint {
 public:
  static Result<std::shared_ptr<QuicEndpoint>> open(Strand strand, const Udp::endpoint& where, const Credentials& credentials,
                                                    const LinkKnobs& knobs);
  ~QuicEndpoint();
  QuicEndpoint(const QuicEndpoint&) = delete;
  QuicEndpoint& operator=(const QuicEndpoint&) = delete;

  [[nodiscard]] const std::shared_ptr<QuicHub>& hub() const { return hub_; }
  [[nodiscard]] Udp::endpoint local() const { return hub_->local(); }

 private:
  explicit QuicEndpoint(std::shared_ptr<QuicHub> hub) : hub_(std::move(hub)) {}
  std::shared_ptr<QuicHub> hub_;
};

}  // namespace linkcpp::net
