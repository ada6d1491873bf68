#include "net/quic_hub.h"

#include <ngtcp2/ngtcp2_crypto.h>
#include <ngtcp2/ngtcp2_crypto_ossl.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <utility>

#include "net/hmac.h"
#include "net/punch.h"
#include "net/tls_identity.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr auto retry_lifetime = 10 * NGTCP2_SECONDS;
constexpr auto token_lifetime = 24 * 3600 * NGTCP2_SECONDS;
/// Answers to packets that belong to nothing, each second: enough to tell peers of a restart.
constexpr int max_stranger_answers = 200;
/// A reset must be shorter than what caused it, or two nodes could answer each other for ever (RFC 9000, 10.3.3).
constexpr std::size_t least_reset = NGTCP2_MIN_STATELESS_RESET_RANDLEN + NGTCP2_STATELESS_RESET_TOKENLEN;
constexpr std::size_t batches_in_a_row = 8;

/// Tokens must outlive the process's clock.
ngtcp2_tstamp wall_clock() {
  return static_cast<ngtcp2_tstamp>(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

/// Derived from the node's private key, so that after a restart peers still believe that a reset is ours.
bool derive_secret(const Identity& identity, std::array<std::uint8_t, 32>& secret) {
  std::array<std::uint8_t, 32> key{};
  std::size_t length = key.size();
  if (EVP_PKEY_get_raw_private_key(identity.private_key(), key.data(), &length) != 1) return false;
  constexpr std::string_view label = "linkcpp quic secret v1";
  const auto derived = hmac_sha256(key, std::as_bytes(std::span(label)));
  if (derived) secret = *derived;
  return derived.has_value();
}

}  // namespace

QuicHub::QuicHub(Strand strand, std::shared_ptr<UdpSocket> socket, std::shared_ptr<QuicTls> tls, Credentials credentials, LinkKnobs knobs)
    : strand_(std::move(strand)),
      socket_(std::move(socket)),
      tls_(std::move(tls)),
      credentials_(std::make_shared<const Credentials>(std::move(credentials))),
      knobs_(std::move(knobs)) {
  knobs_.keep_warm = std::max(knobs_.keep_warm, std::chrono::milliseconds(1));
  if (!derive_secret(credentials_->identity, secret_)) RAND_bytes(secret_.data(), static_cast<int>(secret_.size()));
}

QuicConnection::Common QuicHub::common() { return {weak_from_this(), strand_, socket_, tls_, credentials_, knobs_}; }

void QuicHub::start() { read(); }

void QuicHub::accept(OnConnection on_connection, OnRefused on_refused) {
  on_connection_ = std::move(on_connection);
  on_refused_ = std::move(on_refused);
}

void QuicHub::stop_accepting() {
  on_connection_ = {};
  on_refused_ = {};
  for (const auto& connection : std::vector(connections_.begin(), connections_.end())) {
    if (accepted_.contains(connection.get()) && !connection->established()) {
      connection->abort({ErrorKind::unavailable, "this node stopped listening"});
    }
  }
}

void QuicHub::retire() {
  stop_accepting();
  probes_.clear();
  stun_.clear();
  retired_ = true;
  if (connections_.empty()) socket_->cancel();
}

std::shared_ptr<QuicConnection> QuicHub::dial(const Udp::endpoint& to, const std::string& address, QuicConnection::OnReady on_ready) {
  auto connection = std::make_shared<QuicConnection>(common(), to, std::move(on_ready));
  connections_.insert(connection);
  if (auto begun = connection->connect(address); !begun) connection->abort(begun.error());
  return connection;
}

// ---- connection ids ----------------------------------------------------------------------------------------------------

QuicHub::Id::Id(const std::uint8_t* id, std::size_t length) : n(std::min(length, bytes.size())) { std::copy_n(id, n, bytes.begin()); }

std::size_t QuicHub::Id::Hash::operator()(const Id& id) const {
  std::size_t hash = 0;
  std::memcpy(&hash, id.bytes.data(), sizeof hash);
  return hash;
}

ngtcp2_cid QuicHub::random_id(std::size_t n) {
  ngtcp2_cid id{};
  id.datalen = n;
  RAND_bytes(id.data, static_cast<int>(n));
  return id;
}

ngtcp2_cid QuicHub::make_id(std::size_t n, const std::shared_ptr<QuicConnection>& owner) {
  const ngtcp2_cid id = random_id(n);
  add_id(id, owner);
  return id;
}

void QuicHub::add_id(const ngtcp2_cid& id, const std::shared_ptr<QuicConnection>& owner) {
  const std::lock_guard lock(ids_mutex_);
  ids_.insert_or_assign(Id(id.data, id.datalen), owner);
}

void QuicHub::forget_id(const ngtcp2_cid& id) {
  const std::lock_guard lock(ids_mutex_);
  ids_.erase(Id(id.data, id.datalen));
}

std::shared_ptr<QuicConnection> QuicHub::find(const std::uint8_t* id, std::size_t n) {
  const std::lock_guard lock(ids_mutex_);
  const auto found = ids_.find(Id(id, n));
  return found == ids_.end() ? nullptr : found->second.lock();
}

void QuicHub::reset_token(const ngtcp2_cid& id, std::uint8_t* token) const {
  ngtcp2_crypto_generate_stateless_reset_token(token, secret_.data(), secret_.size(), &id);
}

void QuicHub::give_token(ngtcp2_conn* quic, const Udp::endpoint& to) const {
  const SocketAddress address(to);
  std::array<std::uint8_t, NGTCP2_CRYPTO_MAX_REGULAR_TOKENLEN> token;
  const auto n =
      ngtcp2_crypto_generate_regular_token(token.data(), secret_.data(), secret_.size(), address.get(), address.length, wall_clock());
  if (n > 0) ngtcp2_conn_submit_new_token(quic, token.data(), static_cast<std::size_t>(n));
}

void QuicHub::forget(QuicConnection& connection) {
  {
    const std::lock_guard lock(ids_mutex_);
    std::erase_if(ids_, [&](const auto& entry) {
      const auto owner = entry.second.lock();
      return !owner || owner.get() == &connection;
    });
  }
  accepted_.erase(&connection);
  connections_.erase(connection.shared_from_this());
  if (retired_ && connections_.empty()) socket_->cancel();
}

std::size_t QuicHub::unauthenticated() const {
  return static_cast<std::size_t>(std::ranges::count_if(accepted_, [](const QuicConnection* one) { return !one->established(); }));
}

// ---- datagrams -------------------------------------------------------------------------------------------------------

void QuicHub::read() {
  socket_->when_readable([self = shared_from_this()](bool open) {
    if (!open) return;
    std::vector<std::shared_ptr<QuicConnection>> touched;
    for (std::size_t i = 0; i < batches_in_a_row; ++i) {
      const auto datagrams = self->socket_->receive();
      if (datagrams.empty()) break;
      for (const auto& datagram : datagrams) self->route(datagram);
    }
    for (const auto& connection : self->connections_) {
      if (connection->take_touched()) touched.push_back(connection);
    }
    for (const auto& connection : touched) connection->settle();
    self->read();
  });
}

void QuicHub::route(const UdpSocket::Datagram& datagram) {
  if (datagram.bytes.empty()) return;
  const auto* data = reinterpret_cast<const std::uint8_t*>(datagram.bytes.data());
  // QUIC sets the second bit of each packet (RFC 9000, 17); STUN and our probes do not (RFC 9443).
  if ((data[0] & 0x40U) == 0) return other(datagram);
  ngtcp2_version_cid header{};
  const int rc = ngtcp2_pkt_decode_version_cid(&header, data, datagram.bytes.size(), id_bytes);
  if (rc == NGTCP2_ERR_VERSION_NEGOTIATION) {
    if (on_connection_) send_versions(header, datagram.from);
    return;
  }
  if (rc != 0) return;
  if (const auto connection = find(header.dcid, header.dcidlen)) return connection->receive(datagram.from, datagram.bytes);
  if ((data[0] & 0x80U) == 0) return unknown(header, datagram);
  if (on_connection_) admit(datagram);
}

void QuicHub::other(const UdpSocket::Datagram& datagram) {
  if (const auto name = probe_key_name(datagram.bytes)) {
    if (const auto found = probes_.find(*name); found != probes_.end()) {
      const auto handler = found->second;  // it may forget itself
      handler(datagram.from, datagram.bytes);
    }
    return;
  }
  if (!is_stun(datagram.bytes)) return;
  if (const auto question = parse_stun_request(datagram.bytes)) {
    if (may_answer_stranger()) send_other(datagram.from, make_stun_answer(*question, datagram.from));
    return;
  }
  StunId id{};
  std::memcpy(id.data(), datagram.bytes.data() + 8, id.size());
  if (const auto found = stun_.find(id); found != stun_.end()) {
    const auto handler = found->second;
    handler(datagram.bytes);
  }
}

/// A packet of no connection that we know. If it comes from where a peer is, it may be that peer's word that it forgot us (RFC 9000, 10.3),
/// which looks like any packet and only the connection can tell.
void QuicHub::unknown(const ngtcp2_version_cid& header, const UdpSocket::Datagram& datagram) {
  bool known_address = false;
  for (const auto& connection : connections_) {
    if (connection->remote() != datagram.from) continue;
    known_address = true;
    connection->receive(datagram.from, datagram.bytes);
  }
  if (!known_address) send_reset(header, datagram.bytes.size(), datagram.from);
}

void QuicHub::admit(const UdpSocket::Datagram& datagram) {
  QuicConnection::Arrival arrival{.from = datagram.from};
  const auto* data = reinterpret_cast<const std::uint8_t*>(datagram.bytes.data());
  if (ngtcp2_accept(&arrival.header, data, datagram.bytes.size()) != 0) return;
  const std::size_t strangers = unauthenticated();
  if (strangers >= knobs_.max_handshakes) return;
  arrival.address_proved = address_proved(arrival);
  if (!arrival.address_proved && strangers >= knobs_.quic_retry_above) {
    if (may_answer_stranger()) send_retry(arrival.header, datagram.from);
    return;
  }
  auto connection = std::make_shared<QuicConnection>(
      common(), datagram.from, [weak = weak_from_this(), from = to_text(datagram.from)](Result<std::shared_ptr<Connection>> ready) {
        const auto self = weak.lock();
        if (!self) return;
        if (ready && self->on_connection_) self->on_connection_(std::move(*ready));
        if (!ready && self->on_refused_) self->on_refused_(from, ready.error());
      });
  connections_.insert(connection);
  accepted_.insert(connection.get());
  if (auto accepted = connection->accept(arrival); !accepted) return connection->abort(accepted.error());
  connection->receive(datagram.from, datagram.bytes);
}

/// Looks at the token of a first packet: one of a Retry that we sent a moment ago, or of an earlier connection from the same address.
bool QuicHub::address_proved(QuicConnection::Arrival& arrival) const {
  const auto& header = arrival.header;
  if (header.tokenlen == 0) return false;
  const SocketAddress address(arrival.from);
  if (header.token[0] == NGTCP2_CRYPTO_TOKEN_MAGIC_RETRY2) {
    ngtcp2_cid original{};
    if (ngtcp2_crypto_verify_retry_token2(&original, header.token, header.tokenlen, secret_.data(), secret_.size(), header.version,
                                          address.get(), address.length, &header.dcid, retry_lifetime, wall_clock()) != 0) {
      return false;
    }
    arrival.original = original;
    return true;
  }
  return header.token[0] == NGTCP2_CRYPTO_TOKEN_MAGIC_REGULAR &&
         ngtcp2_crypto_verify_regular_token(header.token, header.tokenlen, secret_.data(), secret_.size(), address.get(), address.length,
                                            token_lifetime, wall_clock()) == 0;
}

bool QuicHub::may_answer_stranger() {
  const auto now = Clock::now();
  if (now - stranger_second_ > std::chrono::seconds(1)) {
    stranger_second_ = now;
    stranger_answers_ = 0;
  }
  return stranger_answers_++ < max_stranger_answers;
}

void QuicHub::send_retry(const ngtcp2_pkt_hd& header, const Udp::endpoint& to) {
  const ngtcp2_cid id = random_id();
  const SocketAddress address(to);
  std::array<std::uint8_t, NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN2> token;
  const auto length = ngtcp2_crypto_generate_retry_token2(token.data(), secret_.data(), secret_.size(), header.version, address.get(),
                                                          address.length, &id, &header.dcid, wall_clock());
  if (length < 0) return;
  std::array<std::uint8_t, 512> packet;
  const auto n = ngtcp2_crypto_write_retry(packet.data(), packet.size(), header.version, &header.scid, &id, &header.dcid, token.data(),
                                           static_cast<std::size_t>(length));
  if (n > 0) send_other(to, std::as_bytes(std::span(packet)).first(static_cast<std::size_t>(n)));
}

void QuicHub::send_reset(const ngtcp2_version_cid& header, std::size_t received, const Udp::endpoint& to) {
  if (received <= least_reset || header.dcidlen != id_bytes || !may_answer_stranger()) return;
  ngtcp2_cid id{};
  ngtcp2_cid_init(&id, header.dcid, header.dcidlen);
  ngtcp2_stateless_reset_token token{};
  reset_token(id, token.data);
  std::array<std::uint8_t, 24> noise;
  RAND_bytes(noise.data(), static_cast<int>(noise.size()));
  std::array<std::uint8_t, noise.size() + NGTCP2_STATELESS_RESET_TOKENLEN> packet;
  const std::size_t size = std::min(packet.size(), received - 1);
  const auto n = ngtcp2_pkt_write_stateless_reset2(packet.data(), size, &token, noise.data(), size - NGTCP2_STATELESS_RESET_TOKENLEN);
  if (n > 0) send_other(to, std::as_bytes(std::span(packet)).first(static_cast<std::size_t>(n)));
}

void QuicHub::send_versions(const ngtcp2_version_cid& header, const Udp::endpoint& to) {
  if (!may_answer_stranger()) return;
  constexpr std::array<std::uint32_t, 1> versions{NGTCP2_PROTO_VER_V1};
  std::uint8_t noise = 0;
  RAND_bytes(&noise, 1);
  std::array<std::uint8_t, 128> packet;
  const auto n = ngtcp2_pkt_write_version_negotiation(packet.data(), packet.size(), noise, header.scid, header.scidlen, header.dcid,
                                                      header.dcidlen, versions.data(), versions.size());
  if (n > 0) send_other(to, std::as_bytes(std::span(packet)).first(static_cast<std::size_t>(n)));
}

// ---- the handle ------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<QuicEndpoint>> QuicEndpoint::open(Strand strand, const Udp::endpoint& where, const Credentials& credentials,
                                                         const LinkKnobs& knobs) {
  static const int initialized = ngtcp2_crypto_ossl_init();
  if (initialized != 0) return fail(ErrorKind::internal, "the QUIC library cannot use OpenSSL; are their versions the packaged ones?");
  auto tls = QuicTls::create(credentials);
  if (!tls) return pass(tls);
  auto socket = UdpSocket::bind(strand, where);
  if (!socket) return pass(socket);
  auto hub = std::make_shared<QuicHub>(strand, std::move(*socket), std::move(*tls), credentials, knobs);
  asio::dispatch(strand, [hub] { hub->start(); });
  return std::shared_ptr<QuicEndpoint>(new QuicEndpoint(std::move(hub)));
}

QuicEndpoint::~QuicEndpoint() {
  asio::post(hub_->strand(), [hub = hub_] { hub->retire(); });
}

}  // namespace linkcpp::net
