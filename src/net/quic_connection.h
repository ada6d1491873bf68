// A Link over QUIC (RFC 9000) by ngtcp2: the connection itself. Its socket and its siblings are QuicHub's.
#pragma once

#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_ossl.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/auth.h"
#include "net/connection.h"
#include "net/flight_echo.h"
#include "net/link_user.h"
#include "net/quic_streams.h"
#include "net/quic_tls.h"
#include "net/transport.h"
#include "net/udp_socket.h"

namespace linkcpp::net {

class QuicHub;

/// Threads: send() packs and sends on the calling thread, so that a frame leaves at once whoever drives the io_context. Everything else
/// runs on the hub's strand. ngtcp2's object is guarded by mutex_; handlers are called without it.
///
/// Proofs as over TLS (docs/protocol.md, 2.3), worker first, each as soon as the exporter allows: a server's travels with its handshake. A
/// resumed connection needs none: its ticket was given after both.
class QuicConnection final : public Connection, public QuicTlsUser, public std::enable_shared_from_this<QuicConnection> {
 public:
  /// Once: the authenticated connection, or why there is none. A client that resumes gets it before the first packet has left.
  using OnReady = std::function<void(Result<std::shared_ptr<Connection>>)>;

  struct Common {
    std::weak_ptr<QuicHub> hub;
    Strand strand;
    std::shared_ptr<UdpSocket> socket;
    std::shared_ptr<QuicTls> tls;
    std::shared_ptr<const Credentials> credentials;
    LinkKnobs knobs;
  };
  /// A first packet of a client, accepted by ngtcp2_accept().
  struct Arrival {
    ngtcp2_pkt_hd header;
    std::optional<ngtcp2_cid> original;  ///< if a Retry came before
    bool address_proved = false;
    Udp::endpoint from;
  };

  QuicConnection(Common common, Udp::endpoint remote, OnReady on_ready);
  ~QuicConnection() override;
  QuicConnection(const QuicConnection&) = delete;
  QuicConnection& operator=(const QuicConnection&) = delete;

  /// Begins a handshake as a client. On the strand. `address`: under which tickets are kept.
  Result<> connect(const std::string& address);
  Result<> accept(const Arrival& arrival);

  // ---- called by the hub, on the strand
  void receive(const Udp::endpoint& from, ByteSpan packet);
  /// Whether receive() was called since the last time.
  bool take_touched() { return std::exchange(touched_, false); }
  /// After a batch of receive(): acknowledges, sends, delivers.
  void settle();
  /// Ends an attempt, or the connection, with this error.
  void abort(Error reason);
  [[nodiscard]] const Udp::endpoint& remote() const { return dialled_; }
  [[nodiscard]] bool established() const { return state_ == State::open || state_ == State::leaving; }

  // ---- Connection
  void start(Link::Handlers handlers) override;
  void send(SharedFrame frame) override;
  void close(Error reason) override;
  void abandon() override;
  [[nodiscard]] bool sending() const override;
  [[nodiscard]] LinkStats stats() const override;
  [[nodiscard]] const PeerKey& peer() const override { return peer_; }
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::string_view kind() const override { return "quic"; }
  void when_finished(std::function<void()> hook) override { user_.when_finished(std::move(hook)); }

  // ---- QuicTlsUser
  bool check_key(const std::optional<PeerKey>& key) override;
  void got_ticket(std::shared_ptr<ssl_session_st> session) override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { handshake, proving, open, leaving, finished };
  friend struct QuicHooks;

  [[nodiscard]] static ngtcp2_tstamp now();
  ngtcp2_settings make_settings() const;
  static ngtcp2_transport_params make_params();
  Result<> tie(SslPtr ssl, bool server);
  [[nodiscard]] Role role() const { return common_.credentials->is_backbone ? Role::backbone : Role::worker; }

  // ---- with the mutex held
  void pump();
  ngtcp2_ssize write_packet(std::span<std::uint8_t> into);
  bool open_stream();
  void flush();
  void arm();
  void fail_with(Error reason);
  [[nodiscard]] bool all_arrived() const { return outgoing_.all_acknowledged() && held_.empty(); }
  [[nodiscard]] Error describe(int code);
  Result<> send_proof();
  bool give_ticket();  ///< whether there is something to send now
  void keys_arrived();
  void handshake_done();
  void rejected_early_data();
  int stream_bytes(std::int64_t stream, bool last, ByteSpan bytes);

  // ---- on the strand
  void step();
  void prove();
  void refuse(const Error& reason);
  Result<bool> check_proofs();
  void opened();
  void deliver();
  void on_timer();
  void schedule(ngtcp2_tstamp expiry);
  void watch_silence();
  void begin_close();
  void farewell(const Error& reason);
  void finish(Error reason);

  const Common common_;
  const Udp::endpoint dialled_;  ///< where the peer was first
  Udp::endpoint remote_;         ///< … and is now; mutex
  PeerKey peer_;
  std::string endpoint_, address_;

  mutable std::mutex mutex_;
  ngtcp2_crypto_conn_ref ref_{};
  std::unique_ptr<ngtcp2_conn, void (*)(ngtcp2_conn*)> quic_{nullptr, ngtcp2_conn_del};
  ngtcp2_crypto_ossl_ctx* crypto_ = nullptr;
  SslPtr ssl_;
  OutgoingStreams outgoing_;
  std::vector<SharedFrame> early_;  ///< sent before the handshake was complete, in case the peer refuses early data
  std::vector<SharedFrame> held_;   ///< accepted before the proofs were made
  std::vector<std::uint8_t> batch_;
  std::size_t segment_ = 0;  ///< size of the datagrams in batch_
  FlightEcho echo_;
  std::optional<Error> error_;  ///< found with the mutex held, told on the strand
  std::optional<Error> close_reason_;
  std::vector<std::uint8_t> token_;
  bool server_ = false, resumed_ = false, early_data_ = false, can_prove_ = false, proof_sent_ = false, handshake_complete_ = false;
  bool ticket_given_ = false;
  bool may_send_ = false;  ///< frames of the user may travel
  bool closing_ = false, wrong_peer_ = false, bad_certificate_ = false, forgotten_ = false;
  std::optional<PeerKey> seen_key_;

  // Strand only.
  State state_ = State::handshake;
  IncomingStreams incoming_;
  OnReady on_ready_;
  LinkUser user_;
  boost::asio::steady_timer timer_, close_timer_;
  bool proof_checked_ = false, touched_ = false;
  int close_answers_ = 0;
  std::vector<std::uint8_t> farewell_;  ///< the closing packet, repeated when the peer goes on

  std::atomic<ngtcp2_tstamp> armed_{UINT64_MAX};  ///< when timer_ fires
  FrameCounters counters_;
  std::atomic<Clock::rep> heard_;
};

}  // namespace linkcpp::net
