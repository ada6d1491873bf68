// WebSocket on real connections: the upgrade and what else web clients and servers say, control frames, and the web's TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr WebSocketMask test_mask{std::byte{9}, std::byte{8}, std::byte{7}, std::byte{6}};
const std::string upgrade_request =
    "GET /swarm HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

class WebSocketTest : public testing::Test {
 protected:
  Nodes nodes_;
  Loop loop_;
  std::unique_ptr<Host> host_ = std::make_unique<Host>(loop_.context(), nodes_.backbone_credentials(), nodes_.knobs);

  std::string answer_to(std::string_view request) {
    RawPeer peer(host_->reached());
    peer.send_bytes(request);
    return peer.receive_text();
  }
  Error refusal() {
    const auto refusal = host_->refusals.take();
    if (!refusal) ADD_FAILURE() << "nobody was refused";
    return refusal ? refusal->error : Error{};
  }
  /// After whatever happened, an honest worker still gets in.
  ~WebSocketTest() override {
    Guest guest(loop_.context(), {"ws://" + host_->reached() + "/any/path?x"}, nodes_.worker_credentials(), nodes_.knobs);
    EXPECT_TRUE(guest.links.take()) << "an honest worker was kept out afterwards";
    guest.dialer.reset();
  }
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST_F(WebSocketTest, TheAcceptKeyIsThatOfTheRfc) {
  RawPeer peer(host_->reached());
  peer.send_bytes(upgrade_request);
  std::string answer;
  while (!answer.ends_with("\r\n\r\n")) answer += static_cast<char>(peer.receive_bytes(1).at(0));
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 101 "), HasSubstr("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n")));
}

TEST_F(WebSocketTest, AnythingElseGetsAnAnswerThatSaysWhatThisIs) {
  struct Case {
    std::string request, status, why;
  };
  const std::vector<Case> cases = {
      {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "426", "asks for no WebSocket"},
      {"GET /favicon.ico HTTP/1.0\r\n\r\n", "426", "asks for no WebSocket"},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "405", "only GET"},
      {"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", "405", "only GET"},
      {replaced(upgrade_request, "Version: 13", "Version: 8"), "426", "version 13"},
      {replaced(upgrade_request, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""), "400", "Sec-WebSocket-Key"},
      {replaced(upgrade_request, "dGhlIHNhbXBsZSBub25jZQ==", "short"), "400", "Sec-WebSocket-Key"},
      {replaced(upgrade_request, "HTTP/1.1", "HTTP/1.0"), "400", "HTTP/1.1"},
      {"GET\r\n\r\n", "400", "not HTTP"},
      {"GET / HTTP/9.9\r\n\r\n", "400", "not HTTP"},
      {"SSH-2.0-OpenSSH_9.6\r\n\r\n", "400", "not HTTP"},
      {"GET / HTTP/1.1\r\nbad header\r\n\r\n", "400", "not HTTP"},
      {"GET / HTTP/1.1\r\nX: "s + '\0' + "\r\n\r\n", "400", "not HTTP"},
  };
  for (const Case& c : cases) {
    const std::string answer = answer_to(c.request);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + c.status)) << c.request;
    EXPECT_THAT(answer, AllOf(HasSubstr("This is a node of a linkcpp swarm"), HasSubstr(c.why), HasSubstr("Connection: close")));
    EXPECT_LT(answer.size(), 1000u);
    const Error error = refusal();
    EXPECT_EQ(error.kind, ErrorKind::invalid_input);
    EXPECT_THAT(error.message, HasSubstr("web client"));
  }
}

TEST_F(WebSocketTest, AHeaderMayNotBeEndless) {
  RawPeer peer(host_->reached());
  peer.send_bytes("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 40; ++i) peer.send_bytes("X-" + std::to_string(i) + ": " + std::string(1000, 'x') + "\r\n");
  EXPECT_THAT(refusal().message, HasSubstr("not HTTP"));
  EXPECT_TRUE(peer.wait_for_end());
  RawPeer line(host_->reached());
  line.send_bytes("GET /" + std::string(60'000, 'x'));
  EXPECT_EQ(refusal().kind, ErrorKind::invalid_input);
}

TEST_F(WebSocketTest, ARequestMayComeByteByByte) {
  for (const std::string& request : {upgrade_request, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"s}) {
    RawPeer peer(host_->reached());
    for (const char c : request) ASSERT_TRUE(peer.send_bytes(std::string_view(&c, 1)));
    std::string answer;
    while (!answer.ends_with("\r\n\r\n")) answer += static_cast<char>(peer.receive_bytes(1).at(0));
    EXPECT_THAT(answer, StartsWith(&request == &upgrade_request || request == upgrade_request ? "HTTP/1.1 101" : "HTTP/1.1 426"));
  }
}

TEST_F(WebSocketTest, ACutRequestIsReported) {
  for (std::size_t n = 1; n < upgrade_request.size(); n += 7) {
    RawPeer peer(host_->reached());
    peer.send_bytes(std::string_view(upgrade_request).substr(0, n));
    peer.close();
    const Error error = refusal();
    EXPECT_EQ(error.kind, ErrorKind::unavailable) << n;
    EXPECT_THAT(error.message, HasSubstr("during the WebSocket upgrade"));
  }
}

TEST_F(WebSocketTest, BytesBehindTheRequestBelongToTheStream) {
  // A client that does not wait for the answer, in one piece with its request.
  RawPeer peer(host_->reached());
  const auto request = std::as_bytes(std::span(upgrade_request));
  Bytes all(request.begin(), request.end());
  put_websocket_frame(all, WebSocketOpcode::binary, std::as_bytes(std::span("no TLS", 6)), test_mask);
  peer.send_bytes(all);
  EXPECT_THAT(refusal().message, HasSubstr("does not speak TLS"));
}

TEST_F(WebSocketTest, ASlowRequestMeetsTheDeadline) {
  Nodes hasty = nodes_;
  hasty.knobs.handshake_deadline = 300ms;
  Host host(loop_.context(), hasty.backbone_credentials(), hasty.knobs);
  RawPeer peer(host.reached());
  peer.send_bytes("GET / HT");
  const auto refused = host.refusals.take();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.kind, ErrorKind::timeout);
  EXPECT_THAT(refused->error.message, HasSubstr("stuck in the WebSocket upgrade"));
  EXPECT_TRUE(peer.wait_for_end());
}

// ---- frames ----------------------------------------------------------------------------------------------------------

/// A worker in a WebSocket, joined.
class RawWebWorker : public WebSocketTest {
 protected:
  void SetUp() override {
    nodes_.knobs.keep_warm = 1h;
    host_ = std::make_unique<Host>(loop_.context(), nodes_.backbone_credentials(), nodes_.knobs);
    peer_ = std::make_unique<RawPeer>("ws://" + host_->reached());
    ASSERT_TRUE(peer_->tls(nodes_.worker));
    ASSERT_TRUE(peer_->prove(nodes_.worker, nodes_.secret));
    ASSERT_EQ(peer_->receive()->header.type, wire::FrameType::auth);
    link_ = host_->links.take().value();
    link_->start(recorder_.handlers());
  }
  void say(WebSocketOpcode opcode, ByteSpan payload = {}) {
    Bytes frame;
    put_websocket_frame(frame, opcode, payload, test_mask);
    peer_->send_bytes(frame);
  }
  Bytes hear(std::size_t n) {
    Bytes all;
    while (all.size() < n) {
      const Bytes more = peer_->receive_bytes(n - all.size());
      if (more.empty()) break;
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  std::unique_ptr<RawPeer> peer_;
  LinkPtr link_;
  Recorder recorder_;
};

TEST_F(RawWebWorker, PingsAreAnswered) {
  say(WebSocketOpcode::ping, pattern(20, 1));
  Bytes expected;
  put_websocket_frame(expected, WebSocketOpcode::pong, pattern(20, 1), std::nullopt);
  EXPECT_EQ(hear(expected.size()), expected);
  say(WebSocketOpcode::pong, pattern(3, 1));
  say(WebSocketOpcode::ping);
  expected.clear();
  put_websocket_frame(expected, WebSocketOpcode::pong, {}, std::nullopt);
  EXPECT_EQ(hear(expected.size()), expected);
  EXPECT_EQ(recorder_.closes->size(), 0u);
}

TEST_F(RawWebWorker, AFloodOfPingsIsAnsweredWithinBounds) {
  Bytes flood;
  for (int i = 0; i < 20'000; ++i) put_websocket_frame(flood, WebSocketOpcode::ping, pattern(125, 1), test_mask);
  std::thread sender([&] { peer_->send_bytes(flood); });  // which never reads meanwhile
  sender.join();
  ASSERT_TRUE(peer_->send(frame_of(10, 1)));
  EXPECT_TRUE(recorder_.frames->take()) << "what follows the flood arrives";
}

TEST_F(RawWebWorker, ACloseIsAnsweredAndEndsTheLink) {
  Bytes frame;
  put_websocket_close(frame, WebSocketStatus::normal, test_mask);
  peer_->send_bytes(frame);
  Bytes expected;
  put_websocket_close(expected, WebSocketStatus::normal, std::nullopt);
  EXPECT_EQ(hear(expected.size()), expected);
  const auto error = recorder_.closes->take();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::unavailable);
  EXPECT_TRUE(peer_->wait_for_end());
}

TEST_F(RawWebWorker, ViolationsCloseTheLinkAndSayWhy) {
  struct Case {
    Bytes frame;
    const char* reason;
    int status;
  };
  Bytes unmasked, text, unknown, oversized;
  put_websocket_frame(unmasked, WebSocketOpcode::binary, pattern(5, 1), std::nullopt);
  put_websocket_frame(text, WebSocketOpcode::text, pattern(5, 1), test_mask);
  put_websocket_frame(unknown, static_cast<WebSocketOpcode>(5), pattern(5, 1), test_mask);
  for (const int byte : {0x89, 0xFE, 0x00, 0x80, 0, 0, 0, 0}) oversized.push_back(static_cast<std::byte>(byte));
  bool first = true;
  for (const Case& c : {Case{unmasked, "client must mask", 1002}, Case{text, "text message", 1003}, Case{unknown, "unknown kind", 1002},
                        Case{oversized, "more than 125", 1002}}) {
    if (!std::exchange(first, false)) SetUp();
    peer_->send_bytes(c.frame);
    const auto error = recorder_.closes->take();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind, ErrorKind::invalid_input);
    EXPECT_THAT(error->message, HasSubstr(c.reason));
    const Bytes said = hear(4);
    ASSERT_EQ(said.size(), 4u);
    EXPECT_EQ(std::to_integer<int>(said[0]), 0x88);
    EXPECT_EQ(std::to_integer<int>(said[2]) << 8 | std::to_integer<int>(said[3]), c.status);
  }
}

TEST_F(RawWebWorker, AClosingThatIsNotAnsweredIsBounded) {
  const auto start = Clock::now();
  link_->close({ErrorKind::unavailable, "enough"});
  EXPECT_EQ(recorder_.closes->take()->message, "enough");
  EXPECT_TRUE(peer_->wait_for_end());
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_F(WebSocketTest, AMaskOfZerosIsUnderstood) {
  Nodes nodes;
  nodes.knobs.websocket_mask = false;
  Host host(loop_.context(), nodes.backbone_credentials(), nodes.knobs);
  Guest guest(loop_.context(), {"ws://" + host.reached()}, nodes.worker_credentials(), nodes.knobs);
  const auto worker = guest.links.take(), backbone = host.links.take();
  ASSERT_TRUE(worker && backbone);
  Recorder recorder;
  (*backbone)->start(recorder.handlers());
  (*worker)->start({});
  (*worker)->send(frame_of(100'000, 1));
  const auto frame = recorder.frames->take();
  ASSERT_TRUE(frame);
  EXPECT_TRUE(frame->body == pattern(100'000, 1));
  guest.dialer.reset();
}

// ---- what servers answer ---------------------------------------------------------------------------------------------

/// A web server that says what a test wants to one client.
class WebServer {
 public:
  explicit WebServer(std::string answer) : answer_(std::move(answer)) {
    acceptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof where;
    ::bind(acceptor_, reinterpret_cast<sockaddr*>(&where), length);
    ::listen(acceptor_, 4);
    ::getsockname(acceptor_, reinterpret_cast<sockaddr*>(&where), &length);
    address_ = std::format("ws://127.0.0.1:{}", ntohs(where.sin_port));
    thread_ = std::thread([this] {
      for (int fd = -1; (fd = ::accept(acceptor_, nullptr, nullptr)) >= 0; ::close(fd)) {
        char request[4096];
        ::recv(fd, request, sizeof request, 0);
        ::send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
        ::shutdown(fd, SHUT_WR);
        while (::recv(fd, request, sizeof request, 0) > 0) {
        }
      }
    });
  }
  ~WebServer() {
    ::shutdown(acceptor_, SHUT_RDWR);
    thread_.join();
    ::close(acceptor_);
  }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  std::string answer_, address_;
  int acceptor_;
  std::thread thread_;
};

TEST(WebSocketDialTest, WhatServersAnswerIsToldToTheOperator) {
  Nodes nodes;
  Loop loop;
  struct Case {
    std::string answer, why;
    ErrorKind kind;
  };
  const std::vector<Case> cases = {
      {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404 Not Found", ErrorKind::unavailable},
      {"HTTP/1.1 403 No\r\n\r\n", "answered 403", ErrorKind::unauthorized},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "answered 200 OK", ErrorKind::unavailable},
      {"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n", "answered 301", ErrorKind::unavailable},
      {"HTTP/1.1 502 \x1b[31mBad\r\n\r\n", "is not HTTP", ErrorKind::invalid_input},
      {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong\r\n\r\n",
       "no WebSocket of the kind", ErrorKind::invalid_input},
      {"HTTP/1.1 101 Switching Protocols\r\n\r\n", "no WebSocket of the kind", ErrorKind::invalid_input},
      {"SSH-2.0-OpenSSH_9.6\r\n", "is not HTTP", ErrorKind::invalid_input},
      {"", "closed the connection during the WebSocket upgrade", ErrorKind::unavailable},
      {"HTTP/1.1 101 Sw", "closed the connection during the WebSocket upgrade", ErrorKind::unavailable},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x'), "HTTP", ErrorKind::invalid_input},
  };
  for (const Case& c : cases) {
    const WebServer server(c.answer);
    Guest guest(loop.context(), {server.address()}, nodes.worker_credentials(), nodes.knobs);
    const auto failure = guest.failures.take();
    ASSERT_TRUE(failure);
    EXPECT_THAT(failure->message, AllOf(HasSubstr(c.why), HasSubstr(server.address()))) << c.answer.substr(0, 60);
    EXPECT_EQ(failure->kind, c.kind) << failure->message;
    EXPECT_EQ(failure->message.find('\x1b'), std::string::npos);
    guest.dialer.reset();
  }
}

// ---- the web's TLS ---------------------------------------------------------------------------------------------------

class WebTlsTest : public testing::Test {
 protected:
  WebTlsTest() { scheme = "wss://"; }
  ~WebTlsTest() override { scheme.clear(); }
  Error failure(const std::string& host_name, const std::string& ca_file) {
    Nodes nodes;
    nodes.knobs.web_ca_file = ca_file;
    Host host(loop_.context(), nodes.backbone_credentials(), nodes.knobs);
    Guest guest(loop_.context(), {std::format("wss://{}:{}", host_name, host.front->port())}, nodes.worker_credentials(), nodes.knobs);
    const auto error = guest.failures.take();
    if (!error) ADD_FAILURE() << "the server was trusted";
    guest.dialer.reset();
    return error.value_or(Error{});
  }
  Loop loop_;
};

TEST_F(WebTlsTest, KindAndNamesAreThoseOfTheWeb) {
  Nodes nodes;
  Host host(loop_.context(), nodes.backbone_credentials(), nodes.knobs);
  for (const std::string name : {"localhost", "127.0.0.1"}) {
    Guest guest(loop_.context(), {std::format("wss://{}:{}/x", name, host.front->port())}, nodes.worker_credentials(), nodes.knobs);
    const auto worker = guest.links.take(), backbone = host.links.take();
    ASSERT_TRUE(worker && backbone) << guest.failures.take(0ms).value_or(Error{}).message;
    EXPECT_EQ((*worker)->kind(), "wss");
    EXPECT_EQ((*backbone)->kind(), "ws");
    guest.dialer.reset();
  }
}

TEST_F(WebTlsTest, ServersMustBeTrustedAndHaveTheirName) {
  const Error stranger = failure("localhost", "");
  EXPECT_EQ(stranger.kind, ErrorKind::unauthorized);
  EXPECT_THAT(stranger.message, AllOf(HasSubstr("not trusted"), HasSubstr("SSL_CERT_FILE")));
  const Error missing = failure("localhost", "/no/such/file.pem");
  EXPECT_EQ(missing.kind, ErrorKind::invalid_input);
  EXPECT_THAT(missing.message, HasSubstr("/no/such/file.pem"));
}

TEST_F(WebTlsTest, ACertificateForAnotherNameIsRefused) {
  Nodes nodes;
  Host host(loop_.context(), nodes.backbone_credentials(), nodes.knobs);
  // The front listens on 127.0.0.1 only, and only ::ffff:127.0.0.1 is another name for it that its certificate lacks.
  Guest guest(loop_.context(), {std::format("wss://[::ffff:127.0.0.1]:{}", host.front->port())}, nodes.worker_credentials(), nodes.knobs);
  const auto failure = guest.failures.take();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::unauthorized) << failure->message;
  EXPECT_THAT(failure->message, HasSubstr("mismatch"));
  guest.dialer.reset();
}

TEST_F(WebTlsTest, APortWithoutTlsIsNamed) {
  Nodes nodes;
  const WebServer plain("HTTP/1.1 400 Bad Request\r\n\r\n");
  Guest guest(loop_.context(), {"wss" + plain.address().substr(2)}, nodes.worker_credentials(), nodes.knobs);
  const auto failure = guest.failures.take();
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("the TLS handshake with 127.0.0.1 failed"));
  guest.dialer.reset();
}

}  // namespace
}  // namespace linkcpp::net
