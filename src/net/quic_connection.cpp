#include "net/quic_connection.h"

#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "net/handshake_words.h"
#include "net/link_words.h"
#include "net/quic_hub.h"
#include "net/tls_identity.h"
#include "wire/text.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// What an unauthenticated peer may send. A request of a resumed connection must fit.
constexpr std::uint64_t first_window = 256u << 10;
/// What an authenticated one may have under way.
constexpr std::uint64_t full_window = 128u << 20;
constexpr std::uint64_t stream_window = 16u << 20;
constexpr std::uint64_t max_single_streams = 2048;
constexpr std::size_t max_packet = 1452;  // Ethernet less IPv6 and UDP headers; PMTUD finds what goes through
constexpr std::size_t max_batch = 40 * max_packet;
constexpr auto quic_flush_deadline = std::chrono::seconds(1);
constexpr auto linger = std::chrono::milliseconds(300);
constexpr std::uint64_t code_done = 0, code_violation = 1, code_refused = 2;
constexpr std::size_t max_close_text = 200;
constexpr auto backstop_idle = std::chrono::seconds(60);

std::chrono::steady_clock::time_point time_point(ngtcp2_tstamp t) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(t));
}
ngtcp2_duration ticks(std::chrono::nanoseconds t) { return static_cast<ngtcp2_duration>(t.count()); }

SharedFrame shared(Bytes frame) { return std::make_shared<const Bytes>(std::move(frame)); }

/// A path as ngtcp2 wants it. Both ends' addresses must outlive it.
struct Way {
  SocketAddress local, remote;
  [[nodiscard]] ngtcp2_path path() { return {{local.get(), local.length}, {remote.get(), remote.length}, nullptr}; }
};

}  // namespace

/// ngtcp2's callbacks. All run inside a call of ngtcp2, that is with the mutex held; reading ones on the strand.
struct QuicHooks {
  static QuicConnection& of(void* user) { return *static_cast<QuicConnection*>(user); }

  static void random(std::uint8_t* to, std::size_t n, const ngtcp2_rand_ctx*) { RAND_bytes(to, static_cast<int>(n)); }

  static int new_id(ngtcp2_conn*, ngtcp2_cid* id, ngtcp2_stateless_reset_token* token, std::size_t n, void* user) {
    auto& self = of(user);
    const auto hub = self.common_.hub.lock();
    if (!hub) return NGTCP2_ERR_CALLBACK_FAILURE;
    *id = hub->make_id(n, self.shared_from_this());
    hub->reset_token(*id, token->data);
    return 0;
  }
  static int remove_id(ngtcp2_conn*, const ngtcp2_cid* id, void* user) {
    if (const auto hub = of(user).common_.hub.lock()) hub->forget_id(*id);
    return 0;
  }
  static int stream_bytes(ngtcp2_conn*, std::uint32_t flags, std::int64_t stream, std::uint64_t, const std::uint8_t* data, std::size_t n,
                          void* user, void*) {
    return of(user).stream_bytes(stream, (flags & NGTCP2_STREAM_DATA_FLAG_FIN) != 0, std::as_bytes(std::span(data, n)));
  }
  static int acknowledged(ngtcp2_conn*, std::int64_t stream, std::uint64_t offset, std::uint64_t n, void* user, void*) {
    of(user).outgoing_.acknowledged(stream, offset + n);
    return 0;
  }
  static int stream_closed(ngtcp2_conn* quic, std::uint32_t, std::int64_t stream, std::uint64_t, void* user, void*) {
    auto& self = of(user);
    if (ngtcp2_conn_is_local_stream2(quic, stream) != 0) {
      self.outgoing_.closed(stream);
    } else {
      self.incoming_.closed(stream);
      ngtcp2_conn_extend_max_streams_uni(quic, 1);
    }
    return 0;
  }
  static int stream_reset(ngtcp2_conn*, std::int64_t, std::uint64_t, std::uint64_t, void* user, void*) {
    of(user).fail_with({ErrorKind::invalid_input, std::format("the peer {} gave up a stream in the middle", of(user).endpoint_)});
    return 0;
  }
  static int more_streams(ngtcp2_conn*, std::uint64_t, void* user) {
    of(user).outgoing_.may_open();
    return 0;
  }
  static int more_window(ngtcp2_conn*, std::int64_t stream, std::uint64_t, void* user, void*) {
    of(user).outgoing_.unblocked(stream);
    return 0;
  }
  static int handshake_done(ngtcp2_conn*, void* user) {
    of(user).handshake_done();
    return 0;
  }
  static int send_key(ngtcp2_conn*, ngtcp2_encryption_level level, void* user) {
    if (level == NGTCP2_ENCRYPTION_LEVEL_1RTT) of(user).keys_arrived();
    return 0;
  }
  static int early_rejected(ngtcp2_conn*, void* user) {
    of(user).rejected_early_data();
    return 0;
  }
  static int reset(ngtcp2_conn*, const ngtcp2_pkt_stateless_reset2*, void* user) {
    of(user).forgotten_ = true;
    return 0;
  }
  static int new_token(ngtcp2_conn*, const std::uint8_t* token, std::size_t n, void* user) {
    of(user).token_.assign(token, token + n);
    return 0;
  }

  static ngtcp2_callbacks table() {
    ngtcp2_callbacks all{};
    all.client_initial = ngtcp2_crypto_client_initial_cb;
    all.recv_client_initial = ngtcp2_crypto_recv_client_initial_cb;
    all.recv_crypto_data = ngtcp2_crypto_recv_crypto_data_cb;
    all.encrypt = ngtcp2_crypto_encrypt_cb;
    all.decrypt = ngtcp2_crypto_decrypt_cb;
    all.hp_mask = ngtcp2_crypto_hp_mask_cb;
    all.recv_retry = ngtcp2_crypto_recv_retry_cb;
    all.update_key = ngtcp2_crypto_update_key_cb;
    all.delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb;
    all.delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb;
    all.get_path_challenge_data2 = ngtcp2_crypto_get_path_challenge_data2_cb;
    all.version_negotiation = ngtcp2_crypto_version_negotiation_cb;
    all.rand = random;
    all.get_new_connection_id2 = new_id;
    all.remove_connection_id = remove_id;
    all.recv_stream_data = stream_bytes;
    all.acked_stream_data_offset = acknowledged;
    all.stream_close = stream_closed;
    all.stream_reset = stream_reset;
    all.extend_max_local_streams_uni = more_streams;
    all.extend_max_stream_data = more_window;
    all.handshake_completed = handshake_done;
    all.recv_tx_key = send_key;
    all.tls_early_data_rejected = early_rejected;
    all.recv_new_token = new_token;
    all.recv_stateless_reset2 = reset;
    return all;
  }
};

QuicConnection::QuicConnection(Common common, Udp::endpoint remote, OnReady on_ready)
    : common_(std::move(common)),
      dialled_(std::move(remote)),
      remote_(dialled_),
      endpoint_(to_text(remote_)),
      echo_(FlightEcho::Knobs{.mode = common_.knobs.quic_echo}),
      on_ready_(std::move(on_ready)),
      timer_(common_.strand),
      close_timer_(common_.strand),
      heard_(Clock::now().time_since_epoch().count()) {
  ref_.user_data = this;
  ref_.get_conn = [](ngtcp2_crypto_conn_ref* ref) { return static_cast<QuicConnection*>(ref->user_data)->quic_.get(); };
}

QuicConnection::~QuicConnection() {
  if (state_ != State::finished && farewell_.empty() && quic_) {
    const std::lock_guard lock(mutex_);
    farewell({ErrorKind::unavailable, ""});
  }
  if (ssl_) {
    SSL_set_app_data(ssl_.get(), nullptr);
    // QUIC has no closing alerts. Without them OpenSSL takes the connection for cut off and forgets the ticket that it gave.
    SSL_set_shutdown(ssl_.get(), SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
  }
  quic_.reset();
  if (crypto_ != nullptr) ngtcp2_crypto_ossl_ctx_del(crypto_);
}

ngtcp2_tstamp QuicConnection::now() { return ticks(Clock::now().time_since_epoch()); }

// ---- setting up ------------------------------------------------------------------------------------------------------

ngtcp2_settings QuicConnection::make_settings() const {
  ngtcp2_settings settings;
  ngtcp2_settings_default(&settings);
  settings.initial_ts = now();
  settings.initial_rtt = ticks(common_.knobs.quic_initial_rtt);
  settings.cc_algo = common_.knobs.quic_congestion_control == "bbr"    ? NGTCP2_CC_ALGO_BBR
                     : common_.knobs.quic_congestion_control == "reno" ? NGTCP2_CC_ALGO_RENO
                                                                       : NGTCP2_CC_ALGO_CUBIC;
  settings.handshake_timeout = ticks(common_.knobs.handshake_deadline);
  settings.max_tx_udp_payload_size = max_packet;
  settings.max_window = full_window;
  settings.max_stream_window = full_window;
  return settings;
}

ngtcp2_transport_params QuicConnection::make_params() {
  ngtcp2_transport_params params;
  ngtcp2_transport_params_default(&params);
  params.initial_max_streams_uni = max_single_streams;
  params.initial_max_stream_data_uni = stream_window;
  params.initial_max_data = first_window;
  params.max_idle_timeout = ticks(backstop_idle);
  // What a peer adds to its probe timeout for us (RFC 9002, 6.2.1): acknowledgements here are never held back for long.
  params.max_ack_delay = NGTCP2_MILLISECONDS;
  params.active_connection_id_limit = 4;
  return params;
}

Result<> QuicConnection::tie(SslPtr ssl, bool server) {
  ssl_ = std::move(ssl);
  server_ = server;
  const int configured =
      server ? ngtcp2_crypto_ossl_configure_server_session(ssl_.get()) : ngtcp2_crypto_ossl_configure_client_session(ssl_.get());
  if (configured != 0 || ngtcp2_crypto_ossl_ctx_new(&crypto_, ssl_.get()) != 0) return tls_broken("start TLS inside QUIC");
  QuicTls::allow_early_data(ssl_.get());
  SSL_set_app_data(ssl_.get(), &ref_);
  QuicTlsUser::attach(ssl_.get(), this);
  ngtcp2_conn_set_tls_native_handle(quic_.get(), crypto_);
  ngtcp2_conn_set_keep_alive_timeout(quic_.get(), ticks(common_.knobs.keep_warm));
  close_timer_.expires_after(common_.knobs.handshake_deadline);
  close_timer_.async_wait([weak = weak_from_this()](const error_code& cancelled) {
    const auto self = weak.lock();
    if (!self || cancelled || self->state_ == State::open) return;
    self->abort(
        {ErrorKind::timeout,
         std::format("no authenticated link came up within {} ms; the peer got stuck in {}", self->common_.knobs.handshake_deadline.count(),
                     self->state_ == State::proving ? "the exchange of proofs" : "the QUIC handshake; does a firewall drop UDP?")});
  });
  return {};
}

Result<> QuicConnection::connect(const std::string& address) {
  const auto hub = common_.hub.lock();
  if (!hub) return fail(ErrorKind::unavailable, "the UDP socket is closed");
  address_ = address;
  std::optional<Resumption> resume;
  if (common_.knobs.quic_resume) resume = common_.tls->take(address);
  auto ssl = common_.tls->client(resume ? &*resume : nullptr);
  if (!ssl) return pass(ssl);

  const std::unique_lock lock(mutex_);
  const ngtcp2_cid peer_id = QuicHub::random_id(), own_id = hub->make_id(QuicHub::id_bytes, shared_from_this());
  Way way{SocketAddress(common_.socket->local()), SocketAddress(remote_)};
  const ngtcp2_path path = way.path();
  auto settings = make_settings();
  if (resume && !resume->token.empty()) {
    settings.token = resume->token.data();
    settings.tokenlen = resume->token.size();
  }
  const auto params = make_params();
  const auto callbacks = QuicHooks::table();
  ngtcp2_conn* quic = nullptr;
  if (const int rc =
          ngtcp2_conn_client_new(&quic, &peer_id, &own_id, &path, NGTCP2_PROTO_VER_V1, &callbacks, &settings, &params, nullptr, this);
      rc != 0) {
    return fail(ErrorKind::internal, "cannot start a QUIC connection: {}", ngtcp2_strerror(rc));
  }
  quic_.reset(quic);
  const X509* certificate = resume && resume->session ? SSL_SESSION_get0_peer(resume->session.get()) : nullptr;
  if (auto tied = tie(std::move(*ssl), false); !tied) return tied;
  if (const auto key = ed25519_key(certificate);
      key && ngtcp2_conn_decode_and_set_0rtt_transport_params(quic, resume->params.data(), resume->params.size()) == 0) {
    early_data_ = may_send_ = true;
    seen_key_ = key;
    peer_ = *key;
    // Posted: the caller is not ready for its link before this returns.
    asio::post(common_.strand, [self = shared_from_this()] { self->opened(); });
    return {};
  }
  pump();
  return {};
}

Result<> QuicConnection::accept(const Arrival& arrival) {
  const auto hub = common_.hub.lock();
  auto ssl = common_.tls->server();
  if (!ssl) return pass(ssl);
  const std::lock_guard lock(mutex_);
  const ngtcp2_cid own_id = hub->make_id(QuicHub::id_bytes, shared_from_this());
  auto settings = make_settings();
  auto params = make_params();
  params.original_dcid = arrival.original ? *arrival.original : arrival.header.dcid;
  params.original_dcid_present = 1;
  if (arrival.original) {
    params.retry_scid = arrival.header.dcid;
    params.retry_scid_present = 1;
  }
  params.stateless_reset_token_present = 1;
  hub->reset_token(own_id, params.stateless_reset_token);
  if (arrival.address_proved) {
    settings.token = arrival.header.token;
    settings.tokenlen = arrival.header.tokenlen;
    settings.token_type = arrival.original ? NGTCP2_TOKEN_TYPE_RETRY : NGTCP2_TOKEN_TYPE_NEW_TOKEN;
  }
  Way way{SocketAddress(common_.socket->local()), SocketAddress(remote_)};
  const ngtcp2_path path = way.path();
  const auto callbacks = QuicHooks::table();
  ngtcp2_conn* quic = nullptr;
  if (const int rc = ngtcp2_conn_server_new(&quic, &arrival.header.scid, &own_id, &path, arrival.header.version, &callbacks, &settings,
                                            &params, nullptr, this);
      rc != 0) {
    return fail(ErrorKind::internal, "cannot accept a QUIC connection: {}", ngtcp2_strerror(rc));
  }
  quic_.reset(quic);
  hub->add_id(arrival.header.dcid, shared_from_this());  // until the client has learned ours
  return tie(std::move(*ssl), true);
}

// ---- TLS -------------------------------------------------------------------------------------------------------------

bool QuicConnection::check_key(const std::optional<PeerKey>& key) {
  bad_certificate_ = !key;
  if (!key) return false;
  seen_key_ = key;
  wrong_peer_ = common_.tls->expected_peer() && *common_.tls->expected_peer() != *key;
  return !wrong_peer_;
}

void QuicConnection::got_ticket(std::shared_ptr<SSL_SESSION> session) {
  std::array<std::uint8_t, 512> params;
  const auto n = ngtcp2_conn_encode_0rtt_transport_params2(quic_.get(), params.data(), params.size());
  if (n <= 0 || address_.empty()) return;
  common_.tls->keep(address_, {std::move(session), {params.data(), params.data() + n}, token_});
}

/// Data can be sent from now on that the peer will be able to read: in a server's case together with its handshake.
void QuicConnection::keys_arrived() {
  outgoing_.may_open();
  if (!server_) return;
  can_prove_ = true;
  resumed_ = SSL_session_reused(ssl_.get()) == 1;
  if (resumed_) seen_key_ = ed25519_key(SSL_get0_peer_certificate(ssl_.get()));
}

void QuicConnection::handshake_done() {
  handshake_complete_ = can_prove_ = true;
  outgoing_.may_open();
  if (server_) return;
  resumed_ = SSL_session_reused(ssl_.get()) == 1;
  if (may_send_) ngtcp2_conn_extend_max_offset(quic_.get(), full_window - first_window);  // open already
  if (early_data_ && SSL_get_early_data_status(ssl_.get()) != SSL_EARLY_DATA_ACCEPTED) {
    ngtcp2_conn_tls_early_data_rejected(quic_.get());  // calls rejected_early_data()
  }
  early_data_ = false;
  early_.clear();
}

/// What was sent with the first packet was dropped unread: everything is sent again, after proofs if the ticket was not taken at all.
void QuicConnection::rejected_early_data() {
  outgoing_ = {};
  incoming_ = {};
  auto frames = std::exchange(early_, {});
  if (SSL_session_reused(ssl_.get()) == 1) {
    incoming_.set_limit(wire::max_frame_body);  // the peer stays the one that was proved before
    for (auto& frame : frames) outgoing_.push(std::move(frame));
  } else {
    may_send_ = false;
    held_.insert(held_.begin(), std::make_move_iterator(frames.begin()), std::make_move_iterator(frames.end()));
  }
  early_data_ = false;
}

int QuicConnection::stream_bytes(std::int64_t stream, bool last, ByteSpan bytes) {
  if (auto taken = incoming_.received(stream, bytes, last); !taken) {
    fail_with(violation(endpoint_, taken.error().kind, taken.error().message));
    return 0;
  }
  // The bytes are ours now, so the windows may move on.
  ngtcp2_conn_extend_max_stream_offset(quic_.get(), stream, bytes.size());
  ngtcp2_conn_extend_max_offset(quic_.get(), bytes.size());
  return 0;
}

// ---- sending, mutex held -----------------------------------------------------------------------------------------------

void QuicConnection::fail_with(Error reason) {
  if (!error_) error_ = std::move(reason);
}

bool QuicConnection::open_stream() {
  std::int64_t id = 0;
  if (ngtcp2_conn_open_uni_stream(quic_.get(), &id, nullptr) != 0) {
    outgoing_.no_stream_left();
    return false;
  }
  outgoing_.opened(id);
  return true;
}

/// One packet. 0: nothing to send, or not now.
ngtcp2_ssize QuicConnection::write_packet(std::span<std::uint8_t> into) {
  ngtcp2_path_storage path;
  ngtcp2_path_storage_zero(&path);
  ngtcp2_pkt_info info{};
  bool whole_window_used = false;
  for (;;) {
    auto chunk = whole_window_used ? std::nullopt : outgoing_.next();
    if (chunk && !chunk->stream) {
      open_stream();
      continue;
    }
    std::array<ngtcp2_vec, 16> parts;
    const std::size_t n_parts = chunk ? chunk->n_parts : 0;
    for (std::size_t i = 0; i < n_parts; ++i) {
      parts[i] = {reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(chunk->parts[i].data())), chunk->parts[i].size()};
    }
    const std::uint32_t flags =
        !chunk ? NGTCP2_WRITE_STREAM_FLAG_NONE : NGTCP2_WRITE_STREAM_FLAG_MORE | (chunk->last ? NGTCP2_WRITE_STREAM_FLAG_FIN : 0U);
    ngtcp2_ssize taken = -1;
    const ngtcp2_ssize n = ngtcp2_conn_writev_stream(quic_.get(), &path.path, &info, into.data(), into.size(), &taken, flags,
                                                     chunk ? *chunk->stream : -1, parts.data(), n_parts, now());
    if (chunk && taken > 0) outgoing_.wrote(*chunk->stream, static_cast<std::size_t>(taken));
    if (n == NGTCP2_ERR_WRITE_MORE) continue;
    if (n == NGTCP2_ERR_STREAM_DATA_BLOCKED) {
      if (ngtcp2_conn_get_max_data_left2(quic_.get()) == 0) {
        whole_window_used = true;
      } else {
        outgoing_.blocked(*chunk->stream);
      }
      continue;
    }
    if (n == NGTCP2_ERR_STREAM_SHUT_WR || n == NGTCP2_ERR_STREAM_NOT_FOUND) {
      outgoing_.closed(*chunk->stream);
      continue;
    }
    if (n > 0) {
      const auto to = endpoint_of(path.path.remote.addr, path.path.remote.addrlen);
      if (to != remote_) {
        flush();
        remote_ = to;
      }
    }
    return n;
  }
}

void QuicConnection::flush() {
  if (batch_.empty()) return;
  common_.socket->send(remote_, std::as_bytes(std::span(batch_)), segment_);
  batch_.clear();
}

/// Packs and sends what may be sent now.
void QuicConnection::pump() {
  if (!quic_ || ngtcp2_conn_in_closing_period2(quic_.get()) != 0 || ngtcp2_conn_in_draining_period2(quic_.get()) != 0) return;
  const bool carries = !outgoing_.all_written();
  const std::size_t quantum = std::max<std::size_t>(ngtcp2_conn_get_send_quantum2(quic_.get()), max_packet);
  std::array<std::uint8_t, max_packet> packet;
  std::size_t sent = 0;
  while (sent < quantum) {
    const ngtcp2_ssize n = write_packet(packet);
    if (n < 0) {
      fail_with(describe(static_cast<int>(n)));
      break;
    }
    if (n == 0) break;
    const auto size = static_cast<std::size_t>(n);
    // Datagrams of one call are equally long, but for the last.
    if (!batch_.empty() && (size > segment_ || batch_.size() + size > max_batch || batch_.size() % segment_ != 0)) flush();
    if (batch_.empty()) segment_ = size;
    batch_.insert(batch_.end(), packet.data(), packet.data() + size);
    sent += size;
  }
  if (carries && sent > 0 && handshake_complete_ && batch_.size() == sent) {
    ngtcp2_conn_info info;
    ngtcp2_conn_get_conn_info2(quic_.get(), &info);
    const std::chrono::nanoseconds at(now());
    echo_.losses(info.pkt_lost, at);
    if (const auto pause = echo_.flight(sent, at)) {
      asio::post(common_.strand, [self = shared_from_this(), copy = batch_, segment = segment_, to = remote_, pause = *pause]() mutable {
        auto timer = std::make_shared<asio::steady_timer>(self->common_.strand, pause);
        timer->async_wait([timer, socket = self->common_.socket, copy = std::move(copy), segment, to](const error_code& error) {
          if (!error) socket->send(to, std::as_bytes(std::span(copy)), segment);
        });
      });
    }
  }
  flush();
  if (sent > 0) ngtcp2_conn_update_pkt_tx_time(quic_.get(), now());
  arm();
  if (error_) asio::post(common_.strand, [self = shared_from_this()] { self->settle(); });
}

/// Sets the timer, unless it goes off early enough by itself: it looks anew then.
void QuicConnection::arm() {
  ngtcp2_tstamp expiry = ngtcp2_conn_get_expiry2(quic_.get());
  if (handshake_complete_) expiry = std::min(expiry, now() + 100 * NGTCP2_MILLISECONDS);  // looks after silence, too
  ngtcp2_tstamp armed = armed_.load(std::memory_order_relaxed);
  while (expiry < armed) {
    if (!armed_.compare_exchange_weak(armed, expiry)) continue;
    asio::dispatch(common_.strand, [self = shared_from_this(), expiry] { self->schedule(expiry); });
    return;
  }
}

void QuicConnection::send(SharedFrame frame) {
  const std::lock_guard lock(mutex_);
  if (closing_ || frame->empty() || !quic_) return;
  if (outgoing_.unwritten() + frame->size() > common_.knobs.max_queued_bytes) {
    closing_ = true;
    fail_with(stuck_peer(endpoint_, common_.knobs));
    asio::post(common_.strand, [self = shared_from_this()] { self->settle(); });
    return;
  }
  counters_.sent(frame->size());
  if (!may_send_) return held_.push_back(std::move(frame));
  if (early_data_) early_.push_back(frame);
  outgoing_.push(std::move(frame));
  pump();
}

bool QuicConnection::sending() const {
  const std::lock_guard lock(mutex_);
  return !outgoing_.all_written() || !held_.empty();
}

LinkStats QuicConnection::stats() const {
  LinkStats stats = counters_.stats();
  stats.heard = Clock::time_point(Clock::duration(heard_.load(std::memory_order_relaxed)));
  const std::lock_guard lock(mutex_);
  if (!quic_ || !handshake_complete_) return stats;
  ngtcp2_conn_info info;
  ngtcp2_conn_get_conn_info2(quic_.get(), &info);
  const auto us = [](ngtcp2_duration t) { return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::nanoseconds(t)); };
  stats.rtt = us(info.smoothed_rtt);
  if (info.min_rtt != UINT64_MAX) stats.rtt_min = us(info.min_rtt);
  return stats;
}

// ---- receiving -------------------------------------------------------------------------------------------------------

void QuicConnection::receive(const Udp::endpoint& from, ByteSpan packet) {
  if (state_ == State::finished) return;
  if (!farewell_.empty()) {  // the peer goes on: it may have missed the end
    if (close_answers_++ < 3) common_.socket->send(from, std::as_bytes(std::span(farewell_)), farewell_.size());
    return;
  }
  touched_ = true;
  Way way{SocketAddress(common_.socket->local()), SocketAddress(from)};
  const ngtcp2_path path = way.path();
  const ngtcp2_pkt_info info{};
  const std::lock_guard lock(mutex_);
  if (!quic_ || error_) return;
  const int rc =
      ngtcp2_conn_read_pkt(quic_.get(), &path, &info, reinterpret_cast<const std::uint8_t*>(packet.data()), packet.size(), now());
  if (rc != 0) return fail_with(describe(rc));
  heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

Error QuicConnection::describe(int code) {
  if (wrong_peer_) return wrong_peer_error(*seen_key_, *common_.tls->expected_peer());
  if (bad_certificate_) return bad_certificate_error();
  if (code == NGTCP2_ERR_DRAINING) {
    if (forgotten_) return {ErrorKind::unavailable, std::format("the peer {} forgot this connection: was it started again?", endpoint_)};
    const ngtcp2_ccerr* said = ngtcp2_conn_get_ccerr2(quic_.get());
    const bool alert = said->type == NGTCP2_CCERR_TYPE_TRANSPORT && said->error_code >= NGTCP2_CRYPTO_ERROR &&
                       said->error_code < NGTCP2_CRYPTO_ERROR + 256;
    if (alert && said->error_code == NGTCP2_CRYPTO_ERROR + SSL_AD_BAD_CERTIFICATE) return key_rejected_error();
    Error closed = closed_by_peer(endpoint_, incoming_.in_frame());
    const std::string_view reason(reinterpret_cast<const char*>(said->reason), said->reasonlen);
    if (!reason.empty()) closed.message += ": " + wire::plain_text(reason, max_shown_reason);
    return closed;
  }
  if (code == NGTCP2_ERR_IDLE_CLOSE || code == NGTCP2_ERR_HANDSHAKE_TIMEOUT) {
    return {ErrorKind::timeout, std::format("the peer {} does not answer; is it down, or does a firewall drop UDP?", endpoint_)};
  }
  if (code == NGTCP2_ERR_CRYPTO) {
    return {ErrorKind::invalid_input, std::format("TLS handshake inside QUIC failed: {} (alert {})", openssl_reason(),
                                                  static_cast<int>(ngtcp2_conn_get_tls_alert2(quic_.get())))};
  }
  return {ErrorKind::invalid_input, std::format("the QUIC connection to {} broke: {}", endpoint_, ngtcp2_strerror(code))};
}

void QuicConnection::settle() {
  if (state_ == State::finished) return;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) pump();
  }
  step();
}

/// Looks what the state allows next.
void QuicConnection::step() {
  std::optional<Error> error;
  bool can_check = false;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
    can_check = handshake_complete_ && seen_key_ && (state_ == State::handshake || state_ == State::proving);
    // An early link whose ticket was not taken: strangers after all.
    if (state_ == State::open && !may_send_ && !error) {
      state_ = State::proving;
      proof_checked_ = false;
    }
    if (state_ == State::open && !error && give_ticket()) pump();
  }
  if (error && can_check) {  // perhaps the peer said why before it closed
    if (const auto checked = check_proofs(); !checked) error = checked.error();
  }
  if (!error && (state_ == State::handshake || state_ == State::proving)) prove();
  if (state_ == State::open) deliver();  // also what came before an error
  if (error) return finish(std::move(*error));
  bool flushed = false;
  {
    const std::lock_guard lock(mutex_);
    flushed = closing_ && close_reason_ && all_arrived();
  }
  if (flushed) begin_close();
}

// ---- proofs ----------------------------------------------------------------------------------------------------------

Result<> QuicConnection::send_proof() {
  const auto exported = export_key(ssl_.get(), auth_exporter_label);
  if (!exported) return std::unexpected(exported.error());
  const auto proof = make_proof(common_.credentials->secret, role(), *exported, common_.credentials->identity.key());
  if (!proof) return std::unexpected(proof.error());
  outgoing_.push(shared(wire::make_frame(wire::FrameType::auth, 0, std::as_bytes(std::span(*proof)))));
  proof_sent_ = true;
  return {};
}

/// True when the peer's proof has come and is right; false while it is awaited.
Result<bool> QuicConnection::check_proofs() {
  if (proof_checked_) return true;
  const Role peer_role = role() == Role::worker ? Role::backbone : Role::worker;
  auto frame = incoming_.next_ordered();
  if (!frame) return pass(frame);
  if (!*frame) return false;
  const auto exported = [this] {
    const std::lock_guard lock(mutex_);
    return export_key(ssl_.get(), auth_exporter_label);
  }();
  if (!exported) return std::unexpected(exported.error());
  const auto expected = make_proof(common_.credentials->secret, peer_role, *exported, *seen_key_);
  if (!expected) return std::unexpected(expected.error());
  if ((*frame)->header.type == wire::FrameType::auth && check_proof((*frame)->body, *expected)) return proof_checked_ = true;
  return std::unexpected(unproved(**frame, peer_role, *seen_key_));
}

/// A backbone tells the peer why, and waits until it has heard that.
void QuicConnection::refuse(const Error& reason) {
  if (role() == Role::backbone) {
    const std::lock_guard lock(mutex_);
    outgoing_.push(shared(refusal_frame(reason)));
    pump();
  }
  close(reason);
}

void QuicConnection::prove() {
  bool resumed = false, ready = false;
  {
    const std::lock_guard lock(mutex_);
    if (error_ || !can_prove_ || closing_) return;
    // A server's proof may leave before it knows the client; a resumed connection is one that was proved before.
    resumed = resumed_ && seen_key_.has_value();
    if (!resumed && role() == Role::worker && !proof_sent_) {
      if (auto sent = send_proof(); !sent) fail_with(sent.error());
      pump();
    }
    ready = handshake_complete_ && seen_key_.has_value();
  }
  if (resumed) {
    peer_ = *seen_key_;
    return opened();
  }
  if (!ready) return;
  state_ = State::proving;
  const auto checked = check_proofs();
  if (!checked) return refuse(checked.error());
  const std::lock_guard lock(mutex_);
  if (!*checked) return;
  if (!proof_sent_) {
    if (auto sent = send_proof(); !sent) return fail_with(sent.error());
  }
  peer_ = *seen_key_;
  asio::post(common_.strand, [self = shared_from_this()] { self->opened(); });
}

/// For the next time. The token lets the peer be answered at length at once; the ticket also lets it speak at once. A resumed connection is
/// open before its handshake is complete, and OpenSSL gives no ticket before that.
bool QuicConnection::give_ticket() {
  if (!server_ || !handshake_complete_ || ticket_given_) return false;
  ticket_given_ = true;
  if (const auto hub = common_.hub.lock()) hub->give_token(quic_.get(), remote_);
  SSL_new_session_ticket(ssl_.get());
  SSL_do_handshake(ssl_.get());
  return true;
}

/// The peer is authenticated.
void QuicConnection::opened() {
  if (state_ == State::open || state_ == State::leaving || state_ == State::finished) return;
  state_ = State::open;
  {
    const std::lock_guard lock(mutex_);
    incoming_.set_limit(wire::max_frame_body);
    may_send_ = true;
    for (auto& frame : std::exchange(held_, {})) outgoing_.push(std::move(frame));
    if (!early_data_) {
      close_timer_.cancel();
      ngtcp2_conn_extend_max_offset(quic_.get(), full_window - first_window);
      give_ticket();
      pump();
    }
  }
  if (auto ready = std::exchange(on_ready_, {})) ready(std::static_pointer_cast<Connection>(shared_from_this()));
  // An early connection begins at the latest now; what its user has sent meanwhile travels with the first packet.
  asio::post(common_.strand, [self = shared_from_this()] { self->settle(); });
}

// ---- the link --------------------------------------------------------------------------------------------------------

void QuicConnection::start(Link::Handlers handlers) {
  asio::dispatch(common_.strand, [self = shared_from_this(), handlers = std::move(handlers)]() mutable {
    if (!self->user_.start(std::move(handlers))) return;
    // Posted: a caller that is on the strand may not be ready for frames before it returns.
    asio::post(self->common_.strand, [self] { self->settle(); });
  });
}

void QuicConnection::deliver() {
  while (user_.started() && state_ == State::open) {
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
    }
    auto frame = incoming_.next();
    if (!frame) {
      const std::lock_guard lock(mutex_);
      return fail_with(violation(endpoint_, frame.error().kind, frame.error().message));
    }
    if (!*frame) return;
    counters_.received(wire::frame_header_bytes + (*frame)->body.size());
    switch ((*frame)->header.type) {
      case wire::FrameType::ping:
        send(shared(wire::make_frame(wire::FrameType::pong, (*frame)->header.request, (*frame)->body)));
        break;
      case wire::FrameType::pong:
        break;
      case wire::FrameType::auth: {
        const std::lock_guard lock(mutex_);
        return fail_with(second_proof(endpoint_));
      }
      default:
        user_.deliver(**frame);
    }
  }
}

// ---- timers ----------------------------------------------------------------------------------------------------------

void QuicConnection::schedule(ngtcp2_tstamp expiry) {
  if (state_ == State::finished || !farewell_.empty()) return;
  timer_.expires_at(time_point(expiry));
  timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    if (auto self = weak.lock(); self && !error) self->on_timer();
  });
}

void QuicConnection::on_timer() {
  if (state_ == State::finished) return;
  armed_.store(UINT64_MAX, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    if (!quic_ || error_) return;
    if (ngtcp2_conn_get_expiry2(quic_.get()) <= now()) {
      if (const int rc = ngtcp2_conn_handle_expiry(quic_.get(), now()); rc != 0) fail_with(describe(rc));
    }
  }
  watch_silence();
  settle();
}

void QuicConnection::watch_silence() {
  const std::lock_guard lock(mutex_);
  if (!handshake_complete_ || error_) return;
  ngtcp2_conn_info info;
  ngtcp2_conn_get_conn_info2(quic_.get(), &info);
  const auto silent = Clock::now().time_since_epoch() - Clock::duration(heard_.load(std::memory_order_relaxed));
  if (silent < silence_limit(common_.knobs, std::chrono::nanoseconds(info.smoothed_rtt))) return;
  // If datagrams wait in the socket, it was this process that did not listen (stopped, or starved of CPU).
  if (common_.socket->has_waiting()) return;
  fail_with(silent_peer(endpoint_, silent));
}

// ---- closing ---------------------------------------------------------------------------------------------------------

void QuicConnection::close(Error reason) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closing_, true)) return;
    close_reason_ = std::move(reason);
  }
  asio::post(common_.strand, [self = shared_from_this()] {
    if (self->state_ == State::finished || self->state_ == State::leaving) return;
    bool flushed = false;
    {
      const std::lock_guard lock(self->mutex_);
      flushed = self->all_arrived();
    }
    if (flushed) return self->begin_close();
    self->close_timer_.expires_after(quic_flush_deadline);
    self->close_timer_.async_wait([weak = self->weak_from_this()](const error_code& error) {
      if (auto again = weak.lock(); again && !error) again->begin_close();
    });
  });
}

void QuicConnection::abandon() {
  user_.mute();
  close({ErrorKind::unavailable, "the link was dropped"});
  asio::post(common_.strand, [self = shared_from_this()] { self->user_.forget(); });
}

void QuicConnection::begin_close() {
  if (state_ == State::leaving || state_ == State::finished) return;
  Error reason;
  {
    const std::lock_guard lock(mutex_);
    reason = close_reason_ ? *close_reason_ : Error{ErrorKind::unavailable, "closed"};
  }
  finish(std::move(reason));
}

void QuicConnection::abort(Error reason) { finish(std::move(reason)); }

/// Writes and sends the closing packet. Mutex held.
void QuicConnection::farewell(const Error& reason) {
  if (!quic_ || ngtcp2_conn_in_draining_period2(quic_.get()) != 0 || ngtcp2_conn_in_closing_period2(quic_.get()) != 0) return;
  ngtcp2_ccerr error;
  ngtcp2_ccerr_default(&error);
  std::string text;
  if (!handshake_complete_ && ngtcp2_conn_get_tls_alert2(quic_.get()) != 0) {
    ngtcp2_ccerr_set_tls_alert(&error, ngtcp2_conn_get_tls_alert2(quic_.get()), nullptr, 0);
  } else {
    const std::uint64_t code = reason.kind == ErrorKind::invalid_input  ? code_violation
                               : reason.kind == ErrorKind::unauthorized ? code_refused
                                                                        : code_done;
    if (code == code_violation) text = reason.message.substr(0, max_close_text);
    ngtcp2_ccerr_set_application_error(&error, code, reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  std::array<std::uint8_t, max_packet> packet;
  ngtcp2_path_storage path;
  ngtcp2_path_storage_zero(&path);
  ngtcp2_pkt_info info{};
  const auto n = ngtcp2_conn_write_connection_close(quic_.get(), &path.path, &info, packet.data(), packet.size(), &error, now());
  if (n <= 0) return;
  farewell_.assign(packet.data(), packet.data() + n);
  common_.socket->send(remote_, std::as_bytes(std::span(farewell_)), farewell_.size());
}

/// Ends the connection, with the first reason that was found. Its ids live on for a moment, to tell a peer that missed the end.
void QuicConnection::finish(Error reason) {
  if (state_ == State::finished || state_ == State::leaving) return;
  const bool was_ready = !on_ready_;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closing_, true) && close_reason_) reason = *close_reason_;  // close() was first
    farewell(reason);
    outgoing_ = {};
    held_.clear();
    early_.clear();
  }
  state_ = State::leaving;
  timer_.cancel();
  close_timer_.cancel();
  close_timer_.expires_after(linger);
  close_timer_.async_wait([self = shared_from_this()](const error_code&) {
    self->state_ = State::finished;
    if (const auto hub = self->common_.hub.lock()) hub->forget(*self);
  });
  if (was_ready) return user_.end(std::move(reason));
  if (auto ready = std::exchange(on_ready_, {})) ready(std::unexpected(std::move(reason)));
}

}  // namespace linkcpp::net
