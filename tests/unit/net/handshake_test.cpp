// Who gets in, who does not, and what each is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstring>

#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::string_view_literals;

class HandshakeTest : public OverTransports {
 protected:
  Nodes nodes_;
  Loop loop_;
  /// Made late, so that a test can turn knobs first.
  Host& host() {
    if (!host_) host_ = std::make_unique<Host>(loop_.context(), nodes_.backbone_credentials(), nodes_.knobs);
    return *host_;
  }
  Error refusal() {
    const auto refusal = host().refusals.take();
    if (!refusal) {
      ADD_FAILURE() << "nobody was refused";
      return {};
    }
    EXPECT_THAT(refusal->endpoint, testing::StartsWith("127.0.0.1:"));
    return refusal->error;
  }
  /// After whatever a stranger did, an honest worker still gets in.
  ~HandshakeTest() override {
    Guest guest(loop_.context(), {host().address()}, nodes_.worker_credentials(), nodes_.knobs);
    EXPECT_TRUE(guest.links.take()) << "an honest worker was kept out afterwards";
    EXPECT_TRUE(host().links.take());
    guest.dialer.reset();
  }

 private:
  std::unique_ptr<Host> host_;
};

INSTANTIATE_TEST_SUITE_P(Over, HandshakeTest, testing::Values("", "ws://"), transport_name);

TEST_P(HandshakeTest, BothSidesLearnEachOthersKey) {
  Guest guest(loop_.context(), {host().address()}, nodes_.worker_credentials(), nodes_.knobs);
  const auto at_worker = guest.links.take(), at_backbone = host().links.take();
  ASSERT_TRUE(at_worker && at_backbone);
  EXPECT_EQ((*at_worker)->peer(), nodes_.backbone.key());
  EXPECT_EQ((*at_backbone)->peer(), nodes_.worker.key());
  EXPECT_EQ((*at_worker)->endpoint(), host().reached());
  EXPECT_EQ((*at_worker)->kind(), scheme.empty() ? "tcp" : "ws");
  EXPECT_EQ((*at_backbone)->kind(), (*at_worker)->kind());
  EXPECT_THAT((*at_backbone)->endpoint(), testing::StartsWith("127.0.0.1:"));
  guest.dialer.reset();
}

TEST_P(HandshakeTest, ABackboneCanDialAWorkerThatListens) {
  Host worker(loop_.context(), nodes_.worker_credentials(), nodes_.knobs);
  Guest backbone(loop_.context(), {worker.address()}, nodes_.backbone_credentials(), nodes_.knobs);
  const auto at_worker = worker.links.take(), at_backbone = backbone.links.take();
  ASSERT_TRUE(at_worker && at_backbone);
  EXPECT_EQ((*at_worker)->peer(), nodes_.backbone.key());
  EXPECT_EQ((*at_backbone)->peer(), nodes_.worker.key());

  // Another backbone, even one that knows the secret, is not the pinned one.
  Nodes other;
  Guest stranger(loop_.context(), {worker.address()}, other.backbone_credentials(), nodes_.knobs);
  const auto refused = worker.refusals.take();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.kind, ErrorKind::unauthorized);
  EXPECT_THAT(refused->error.message, HasSubstr(short_name(other.backbone.key())));
  const auto failure = stranger.failures.take();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::unauthorized) << failure->message;
  EXPECT_THAT(failure->message, HasSubstr("names another backbone"));
}

TEST_P(HandshakeTest, WrongTokenIsToldToBoth) {
  Credentials wrong = nodes_.worker_credentials();
  wrong.secret = secret_of(8);
  Guest guest(loop_.context(), {host().address()}, wrong, nodes_.knobs);
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::unauthorized);
  EXPECT_THAT(error.message, AllOf(HasSubstr("wrong or outdated join token"), HasSubstr(short_name(nodes_.worker.key()))));
  const auto failure = guest.failures.take();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::unauthorized);
  EXPECT_THAT(failure->message, AllOf(HasSubstr("ask the backbone's operator for `linkcpp token`"), HasSubstr(host().address())));
  EXPECT_EQ(host().links.size(), 0u);
  EXPECT_EQ(guest.links.size(), 0u);
  // It keeps trying, at its slow pace.
  EXPECT_TRUE(guest.failures.take());
}

TEST_P(HandshakeTest, WrongBackboneKeyIsNoticedByTheWorker) {
  Credentials wrong = nodes_.worker_credentials();
  wrong.expected_peer = new_identity().key();
  Guest guest(loop_.context(), {host().address()}, wrong, nodes_.knobs);
  const auto failure = guest.failures.take();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::unauthorized);
  EXPECT_THAT(failure->message, AllOf(HasSubstr("not the backbone that the join token names"), HasSubstr(short_name(nodes_.backbone.key())),
                                      HasSubstr(short_name(*wrong.expected_peer))));
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::unauthorized);
  EXPECT_THAT(error.message, HasSubstr("names another backbone"));
}

TEST_P(HandshakeTest, PlainTextClientIsDropped) {
  RawPeer peer(host().address());
  peer.send_raw("SSH-2.0-OpenSSH_9.6\r\n"sv.substr(scheme.empty() ? 4 : 0));  // letters would be taken for HTTP
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::invalid_input);
  EXPECT_THAT(error.message, HasSubstr("does not speak TLS"));
  EXPECT_TRUE(peer.wait_for_end());
}

TEST_P(HandshakeTest, GarbageInTheTlsHandshakeIsDropped) {
  RawPeer peer(host().address());
  Bytes garbage = pattern(4096, 1);
  garbage[0] = std::byte{22}, garbage[1] = std::byte{3}, garbage[2] = std::byte{1}, garbage[3] = std::byte{1}, garbage[4] = std::byte{0};
  peer.send_raw(garbage);
  EXPECT_EQ(refusal().kind, ErrorKind::invalid_input);
  EXPECT_TRUE(peer.wait_for_end());
}

TEST_P(HandshakeTest, SilentAndSlowClientsMeetTheDeadline) {
  nodes_.knobs.handshake_deadline = 700ms;
  RawPeer silent(host().address());
  RawPeer slow(host().address());
  std::atomic<bool> stop = false;
  std::thread drip([&] {
    const unsigned char hello[] = {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3};
    for (std::size_t i = 0; !stop && i < 200; ++i) {
      const std::byte byte = i < sizeof hello ? std::byte{hello[i]} : std::byte{0};
      if (!slow.send_raw(ByteSpan(&byte, 1))) break;
      std::this_thread::sleep_for(20ms);
    }
  });
  for (int i = 0; i < 2; ++i) {
    const Error error = refusal();
    EXPECT_EQ(error.kind, ErrorKind::timeout) << error.message;
    EXPECT_THAT(error.message, HasSubstr("stuck in the TLS handshake"));
  }
  EXPECT_TRUE(silent.wait_for_end());
  stop = true;
  drip.join();
  // Half a handshake: TLS is complete, the proof never comes.
  RawPeer half(host().address());
  const auto begun = half.tls(nodes_.worker);
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_THAT(refusal().message, HasSubstr("stuck in the exchange of proofs"));
  nodes_.knobs.handshake_deadline = 20s;
}

TEST_P(HandshakeTest, DisconnectsAreReported) {
  RawPeer visitor(host().address());
  visitor.close();  // said nothing: it may have measured the way, and is no news
  RawPeer peer(host().address());
  peer.send_raw("\x16");
  peer.close();
  EXPECT_THAT(refusal().message, HasSubstr("closed the connection during the TLS handshake"));
  RawPeer after(host().address());
  ASSERT_TRUE(after.tls(nodes_.worker));
  after.close();
  EXPECT_EQ(refusal().kind, ErrorKind::unavailable);
}

TEST_P(HandshakeTest, GarbageAfterTlsIsRefused) {
  RawPeer peer(host().address());
  ASSERT_TRUE(peer.tls(nodes_.worker));
  peer.send(pattern(100, 3));
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::invalid_input);
  EXPECT_THAT(error.message, HasSubstr("not a linkcpp frame"));
  const auto answer = peer.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.type, wire::FrameType::refuse);
  EXPECT_FALSE(peer.receive());
}

TEST_P(HandshakeTest, FramesBeforeTheProofAreRefused) {
  RawPeer peer(host().address());
  ASSERT_TRUE(peer.tls(nodes_.worker));
  peer.send(frame_of(64, 1));
  EXPECT_EQ(refusal().kind, ErrorKind::unauthorized);
  EXPECT_EQ(peer.receive()->header.type, wire::FrameType::refuse);
}

TEST_P(HandshakeTest, OversizedFrameBeforeTheProofIsRefusedByItsHeader) {
  RawPeer peer(host().address());
  ASSERT_TRUE(peer.tls(nodes_.worker));
  Bytes header = wire::begin_frame(wire::FrameType::auth, 0);
  const std::uint32_t length = wire::max_unauthenticated_body + 1;
  std::memcpy(header.data() + 8, &length, sizeof length);
  peer.send(header);
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::invalid_input);
  EXPECT_THAT(error.message, HasSubstr("4097"));
}

TEST_P(HandshakeTest, WrongAndReplayedProofsAreRefused) {
  const auto expect_refused = [&](RawPeer& peer) {
    EXPECT_EQ(refusal().kind, ErrorKind::unauthorized);
    const auto answer = peer.receive();
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->header.type, wire::FrameType::refuse);
    const auto refuse = wire::decode_refuse(answer->body);
    ASSERT_TRUE(refuse);
    EXPECT_EQ(refuse->reason, "wrong or outdated join token; ask the backbone's operator for `linkcpp token`");
  };
  const auto with = [&](const auto& action) {
    RawPeer peer(host().address());
    ASSERT_TRUE(peer.tls(nodes_.worker));
    action(peer);
    expect_refused(peer);
  };
  with([&](RawPeer& peer) { peer.send(wire::make_frame(wire::FrameType::auth, 0, {})); });
  with([&](RawPeer& peer) { peer.send(wire::make_frame(wire::FrameType::auth, 0, pattern(33, 1))); });
  with([&](RawPeer& peer) { peer.prove(nodes_.worker, secret_of(9)); });
  with([&](RawPeer& peer) { peer.prove(nodes_.backbone, nodes_.secret); });                // a proof for another key
  with([&](RawPeer& peer) { peer.prove(nodes_.worker, nodes_.secret, Role::backbone); });  // the other role's proof
  // A proof that was right on another connection.
  TlsSession::ExportedKey other{};
  const Proof stale = make_proof(nodes_.secret, Role::worker, other, nodes_.worker.key()).value();
  with([&](RawPeer& peer) { peer.send(wire::make_frame(wire::FrameType::auth, 0, std::as_bytes(std::span(stale)))); });
}

TEST_P(HandshakeTest, ARightProofIsAnsweredByTheBackbones) {
  RawPeer peer(host().address());
  ASSERT_TRUE(peer.tls(nodes_.worker, nodes_.backbone.key()));
  ASSERT_TRUE(peer.prove(nodes_.worker, nodes_.secret));
  const auto answer = peer.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.type, wire::FrameType::auth);
  EXPECT_EQ(answer->body.size(), 32u);
  ASSERT_TRUE(host().links.take());
}

TEST_P(HandshakeTest, AnotherProtocolVersionIsNamed) {
  RawPeer peer(host().address());
  ASSERT_TRUE(peer.tls(nodes_.worker));
  Bytes frame = wire::make_frame(wire::FrameType::auth, 0, pattern(32, 1));
  frame[4] = std::byte{9};
  peer.send(frame);
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::incompatible);
  EXPECT_THAT(error.message, AllOf(HasSubstr("version 9"), HasSubstr("version 2")));
  const auto answer = peer.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(wire::decode_refuse(answer->body)->kind, ErrorKind::incompatible);
}

TEST_P(HandshakeTest, OlderTlsIsRefused) {
  struct Free {
    void operator()(SSL_CTX* c) const { SSL_CTX_free(c); }
    void operator()(SSL* s) const { SSL_free(s); }
  };
  const std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  const std::unique_ptr<SSL, Free> ssl(SSL_new(context.get()));
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
  SSL_connect(ssl.get());
  char* data = nullptr;
  const long n = BIO_get_mem_data(out, &data);
  ASSERT_GT(n, 0);
  RawPeer peer(host().address());
  peer.send_raw(std::string_view(data, static_cast<std::size_t>(n)));
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::incompatible);
  EXPECT_THAT(error.message, HasSubstr("TLS 1.3"));
}

/// A TLS 1.3 client with any key and any algorithm.
void connect_with(const std::string& address, const char* algorithm) {
  std::shared_ptr<EVP_PKEY> key(algorithm == nullptr ? nullptr : EVP_PKEY_Q_keygen(nullptr, nullptr, algorithm, "P-256"), EVP_PKEY_free);
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  std::shared_ptr<X509> certificate(X509_new(), X509_free);
  if (key) {
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    SSL_CTX_use_certificate(context.get(), certificate.get());
    SSL_CTX_use_PrivateKey(context.get(), key.get());
  }
  const Endpoint endpoint = parse_endpoint(address).value();
  std::unique_ptr<BIO, decltype([](BIO* b) { BIO_free_all(b); })> bio(BIO_new_connect(std::format("127.0.0.1:{}", endpoint.port).c_str()));
  ASSERT_EQ(BIO_do_connect(bio.get()), 1);
  std::shared_ptr<SSL> ssl(SSL_new(context.get()), SSL_free);
  BIO_up_ref(bio.get());
  SSL_set_bio(ssl.get(), bio.get(), bio.get());
  SSL_connect(ssl.get());
  char byte;
  SSL_read(ssl.get(), &byte, 1);
}

TEST_P(HandshakeTest, ForeignKeysAndNoCertificateAreRefused) {
  if (!scheme.empty()) GTEST_SKIP() << "OpenSSL's client knows no WebSocket";
  connect_with(host().address(), "EC");
  EXPECT_NE(refusal().message, "");
  connect_with(host().address(), nullptr);
  EXPECT_NE(refusal().message, "");
  EXPECT_EQ(host().links.size(), 0u);
}

TEST_P(HandshakeTest, AHostileBackboneIsRefusedByTheWorker) {
  // It has the pinned key, but not the secret: it answers a right proof with a wrong one.
  Credentials impostor = nodes_.backbone_credentials();
  impostor.secret = secret_of(1);
  Host bad(loop_.context(), impostor, nodes_.knobs);
  Guest guest(loop_.context(), {bad.address()}, nodes_.worker_credentials(), nodes_.knobs);
  EXPECT_EQ(guest.failures.take()->kind, ErrorKind::unauthorized);
  EXPECT_EQ(guest.links.size(), 0u);
}

TEST_P(HandshakeTest, CrowdOfIdlersCannotKeepWorkersOut) {
  nodes_.knobs.max_handshakes = 4;
  std::vector<std::unique_ptr<RawPeer>> idlers;
  for (int i = 0; i < 12; ++i) idlers.push_back(std::make_unique<RawPeer>(host().address()));
  Guest guest(loop_.context(), {host().address()}, nodes_.worker_credentials(), nodes_.knobs);
  EXPECT_TRUE(guest.links.take(20s));
  EXPECT_TRUE(host().links.take(1s));
  const Error error = refusal();
  EXPECT_EQ(error.kind, ErrorKind::unavailable);
  EXPECT_THAT(error.message, HasSubstr("4 connections were shaking hands"));
  guest.dialer.reset();
}

TEST_P(HandshakeTest, FloodOfCutHandshakesLeavesNoTrace) {
  for (std::uint32_t i = 0; i < 60; ++i) {
    RawPeer peer(host().address());
    switch (i % 4) {
      case 0:
        peer.reset();
        break;
      case 1:
        peer.send_raw(pattern(i * 13, i));
        peer.reset();
        break;
      case 2:
        peer.send_raw("\x16\x03\x01");
        break;
      case 3:
        ASSERT_TRUE(peer.tls(nodes_.worker));
        peer.reset();
        break;
    }
  }
}

}  // namespace
}  // namespace linkcpp::net
