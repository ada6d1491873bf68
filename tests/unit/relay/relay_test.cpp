// Whole relays on loopback: links through them, who is refused, tickets, floods, restarts, slow readers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <future>

#include "net/relay_client.h"
#include "net/session_transport.h"
#include "net/stun.h"
#include "net/udp_socket.h"
#include "relay/admin.h"
#include "relay/server.h"
#include "unit/net/cut_proxy.h"
#include "unit/net/harness.h"

namespace linkcpp::relay {
namespace {

using namespace net;  // the harness
using testing::AllOf;
using testing::HasSubstr;

std::string told(const Error& error) { return error.message; }

/// A relay on a loop of its own.
class Relay {
 public:
  explicit Relay(ServerOptions options = open_to_all(), Identity identity = new_identity()) {
    std::signal(SIGPIPE, SIG_IGN);
    auto opened = Server::open(loop_.context(), std::move(identity), std::move(options), [this](const Event& event) { events.put(event); });
    if (!opened) throw std::runtime_error(opened.error().message);
    server_ = std::move(*opened);
  }
  ~Relay() {
    server_.reset();
    std::promise<void> settled;  // its sockets close on the loop
    boost::asio::post(loop_.context(), [&] { boost::asio::post(loop_.context(), [&] { settled.set_value(); }); });
    settled.get_future().wait();
  }
  static ServerOptions open_to_all() {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.access.allow_all();
    return options;
  }
  [[nodiscard]] std::string where() const { return server_->address(); }
  [[nodiscard]] std::string address(const std::string& how = "relay://") const { return how + server_->address(); }
  [[nodiscard]] const PeerKey& key() const { return server_->key(); }
  Counters counters() {
    std::promise<Counters> promise;
    server_->ask_counters([&](const Counters& counters) { promise.set_value(counters); });
    return promise.get_future().get();
  }
  /// Until the counters are so.
  bool wait_for(const std::function<bool(const Counters&)>& so) {
    for (const auto end = Clock::now() + patience; Clock::now() < end; std::this_thread::sleep_for(2ms)) {
      if (so(counters())) return true;
    }
    return false;
  }
  Mailbox<Event> events;

 private:
  Loop loop_;
  std::unique_ptr<Server> server_;
};

/// Somebody who listens at an address, whatever it is.
struct Station {
  Mailbox<LinkPtr> links;
  Mailbox<Refusal> refusals;
  std::unique_ptr<Listener> listener;
  Station(boost::asio::io_context& context, const std::string& address, const Credentials& credentials, const LinkKnobs& knobs) {
    listener = Listener::open(
                   context, address, credentials, knobs, [this](LinkPtr link) { links.put(std::move(link)); },
                   [this](const std::string& endpoint, const Error& error) { refusals.put({endpoint, error}); })
                   .value();
  }
};

class RelayTest : public testing::Test {
 protected:
  void expect_exchange(const LinkPtr& from, const LinkPtr& to, const std::vector<std::size_t>& sizes) {
    Recorder at_from, at_to;
    from->start(at_from.handlers());
    to->start(at_to.handlers());
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      from->send(frame_of(sizes[i], i));
      to->send(frame_of(sizes[i], i + 100));
    }
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      const auto there = at_to.frames->take(), back = at_from.frames->take();
      ASSERT_TRUE(there && back) << i;
      EXPECT_TRUE(same(there->body, pattern(sizes[i], i)));
      EXPECT_TRUE(same(back->body, pattern(sizes[i], i + 100)));
    }
  }
  std::string to(const Relay& relay, const PeerKey& key, const std::string& how = "relay://") {
    return relay.address(how) + "/" + key_text(key);
  }
  Nodes nodes_;
  Loop backbone_loop_, worker_loop_{2};
};

class RelayedTest : public RelayTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, RelayedTest, testing::Values("relay://", "relay+ws://"),
                         [](const auto& each) { return std::string(each.param).contains("ws") ? "ws" : "tcp"; });

TEST_P(RelayedTest, LinksCarryFramesBothWays) {
  Relay relay;
  Station backbone(backbone_loop_.context(), relay.address(GetParam()), nodes_.backbone_credentials(), nodes_.knobs);
  EXPECT_EQ(backbone.listener->address(), to(relay, nodes_.backbone.key(), GetParam()));
  Guest worker(worker_loop_.context(), {to(relay, nodes_.backbone.key(), GetParam())}, nodes_.worker_credentials(), nodes_.knobs);
  const auto at_backbone = backbone.links.take(), at_worker = worker.links.take();
  ASSERT_TRUE(at_backbone && at_worker);
  EXPECT_EQ((*at_backbone)->kind(), "relay");
  EXPECT_EQ((*at_worker)->kind(), "relay");
  EXPECT_EQ((*at_worker)->peer(), nodes_.backbone.key());
  EXPECT_EQ((*at_backbone)->peer(), nodes_.worker.key());
  EXPECT_EQ((*at_worker)->endpoint(), relay.where());
  expect_exchange(*at_backbone, *at_worker, {12'288, 0, 1, 8u << 20, 12'288, 100'000, 8u << 20});
  const Counters counters = relay.counters();
  EXPECT_EQ(counters.links, 1u);
  EXPECT_EQ(counters.links_now, 1u);
  EXPECT_EQ(counters.swarms_now, 1u);
  EXPECT_EQ(counters.nodes_now, 2u);
  EXPECT_GT(counters.bytes, 32u << 20);
  worker.dialer.reset();
}

TEST_P(RelayedTest, BackbonesDialWorkersThatListenThere) {
  Relay relay;
  // The worker comes first, when the relay does not know its swarm yet, and tries again.
  Station worker(worker_loop_.context(), relay.address(GetParam()), nodes_.worker_credentials(), nodes_.knobs);
  const auto trouble = worker.refusals.take();
  ASSERT_TRUE(trouble);
  EXPECT_THAT(trouble->error.message, HasSubstr("is not at this relay now"));
  Guest backbone(backbone_loop_.context(), {to(relay, nodes_.worker.key(), GetParam())}, nodes_.backbone_credentials(), nodes_.knobs);
  const auto at_worker = worker.links.take(), at_backbone = backbone.links.take();
  ASSERT_TRUE(at_backbone && at_worker);
  expect_exchange(*at_backbone, *at_worker, {12'288, 1u << 20});
  backbone.dialer.reset();
}

TEST_P(RelayedTest, LinksAreMadeAnewAgainAndAgain) {
  nodes_.knobs.backoff_max = 5ms;
  auto options = Relay::open_to_all();
  options.limits.connects_per_second = 1000;
  Relay relay(options);
  Station backbone(backbone_loop_.context(), relay.address(GetParam()), nodes_.backbone_credentials(), nodes_.knobs);
  Guest worker(worker_loop_.context(), {to(relay, nodes_.backbone.key(), GetParam())}, nodes_.worker_credentials(), nodes_.knobs);
  for (std::uint32_t i = 0; i < 30; ++i) {
    const auto at_backbone = backbone.links.take(), at_worker = worker.links.take();
    ASSERT_TRUE(at_backbone && at_worker) << i;
    Recorder recorder, other;
    (*at_backbone)->start(recorder.handlers());
    (*at_worker)->start(other.handlers());
    (*at_worker)->send(frame_of(100, i));
    ASSERT_TRUE(recorder.frames->take()) << i;
    (i % 2 == 0 ? *at_backbone : *at_worker)->close({ErrorKind::unavailable, "next"});
    ASSERT_TRUE(recorder.closes->take() && other.closes->take()) << i;
  }
  worker.dialer.reset();
  EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.links_now == 0; })) << "links that ended are not forgotten";
}

TEST_F(RelayTest, OneSideMayComeByWebSocketAndTheOtherNot) {
  Relay relay;
  Station backbone(backbone_loop_.context(), relay.address(), nodes_.backbone_credentials(), nodes_.knobs);
  Guest worker(worker_loop_.context(), {relay.address("relay+ws://") + "/any/path"}, nodes_.worker_credentials(), nodes_.knobs);
  const auto at_backbone = backbone.links.take(), at_worker = worker.links.take();
  ASSERT_TRUE(at_backbone && at_worker);
  expect_exchange(*at_backbone, *at_worker, {12'288, 8u << 20, 1});
  worker.dialer.reset();
}

TEST_F(RelayTest, ARestartedRelayIsFoundAgain) {
  const Identity identity = new_identity();
  auto options = Relay::open_to_all();
  auto relay = std::make_unique<Relay>(options, identity);
  options.listen = relay->where();
  Station backbone(backbone_loop_.context(), relay->address(), nodes_.backbone_credentials(), nodes_.knobs);
  Guest worker(worker_loop_.context(), {to(*relay, nodes_.backbone.key())}, nodes_.worker_credentials(), nodes_.knobs);
  for (int i = 0; i < 3; ++i) {
    const auto at_backbone = backbone.links.take(), at_worker = worker.links.take();
    ASSERT_TRUE(at_backbone && at_worker) << i;
    Recorder recorder, other;
    (*at_backbone)->start(recorder.handlers());
    (*at_worker)->start(other.handlers());
    (*at_worker)->send(frame_of(12'288, 1));
    ASSERT_TRUE(recorder.frames->take());
    relay.reset();
    ASSERT_TRUE(recorder.closes->take()) << "the link ended with the relay";
    relay = std::make_unique<Relay>(options, identity);
  }
  worker.dialer.reset();
}

TEST_F(RelayTest, ARelayWithAnotherKeyIsNotTrustedAgain) {
  auto options = Relay::open_to_all();
  auto relay = std::make_unique<Relay>(options);
  options.listen = relay->where();
  Station backbone(backbone_loop_.context(), relay->address(), nodes_.backbone_credentials(), nodes_.knobs);
  ASSERT_TRUE(relay->wait_for([](const Counters& counters) { return counters.nodes_now == 1; }));
  relay.reset();
  relay = std::make_unique<Relay>(options);
  for (;;) {
    const auto trouble = backbone.refusals.take();
    ASSERT_TRUE(trouble);
    if (trouble->error.kind != ErrorKind::unauthorized) continue;
    EXPECT_THAT(trouble->error.message, AllOf(HasSubstr(key_text(relay->key())), HasSubstr("start this node again")));
    break;
  }
}

TEST_F(RelayTest, APinnedKeyIsChecked) {
  Relay relay;
  const std::string right = "relay://" + key_text(relay.key()) + "@" + relay.where();
  const std::string wrong = "relay://" + key_text(new_identity().key()) + "@" + relay.where();
  Station good(backbone_loop_.context(), right, nodes_.backbone_credentials(), nodes_.knobs);
  Guest worker(worker_loop_.context(), {wrong, right}, nodes_.worker_credentials(), nodes_.knobs);
  ASSERT_TRUE(worker.links.take()) << "an address without a node's key means the backbone of the token";
  const auto failure = worker.failures.take(10ms);
  if (failure) {
    EXPECT_THAT(failure->message, HasSubstr("its key is " + key_text(relay.key())));
  }
  worker.dialer.reset();
}

TEST_F(RelayTest, ADeadRelayIsPassedOver) {
  std::string dead;
  {
    dead = Relay().address();
  }
  Relay relay;
  Station backbone(backbone_loop_.context(), relay.address(), nodes_.backbone_credentials(), nodes_.knobs);
  Guest worker(worker_loop_.context(), {dead, relay.address()}, nodes_.worker_credentials(), nodes_.knobs);
  ASSERT_TRUE(worker.links.take());
  EXPECT_EQ((*backbone.links.take())->peer(), nodes_.worker.key());
  worker.dialer.reset();
}

TEST_F(RelayTest, TheRefusedAreToldWhyAndWhatHelps) {
  auto options = Relay::open_to_all();
  options.access = {};
  options.access.allow(nodes_.backbone.key());
  Relay relay(options);
  // A backbone that is not allowed.
  Nodes others;
  Station stranger(backbone_loop_.context(), relay.address(), others.backbone_credentials(), nodes_.knobs);
  const auto refused = stranger.refusals.take();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.kind, ErrorKind::unauthorized);
  EXPECT_THAT(refused->error.message, HasSubstr("--allow " + key_text(others.backbone.key())));
  stranger.listener.reset();  // it would try again, faster than the relay takes from one address
  // A worker of a backbone that is not here, of one that does not listen, and one with a wrong token.
  const auto failure_of = [&](const Credentials& credentials) {
    Guest guest(worker_loop_.context(), {relay.address()}, credentials, nodes_.knobs);
    const auto failure = guest.failures.take();
    guest.dialer.reset();
    return failure.value_or(Error{});
  };
  EXPECT_THAT(told(failure_of(others.worker_credentials())), HasSubstr("is not at this relay now; is it running"));
  EXPECT_THAT(told(failure_of(nodes_.worker_credentials())), HasSubstr("is not at this relay now; is it running"));
  Station backbone(backbone_loop_.context(), relay.address(), nodes_.backbone_credentials(), nodes_.knobs);
  ASSERT_TRUE(relay.wait_for([](const Counters& counters) { return counters.nodes_now >= 1; }));
  Credentials wrong = nodes_.worker_credentials();
  wrong.secret = secret_of(99);
  const Error error = failure_of(wrong);
  EXPECT_EQ(error.kind, ErrorKind::unauthorized);
  EXPECT_THAT(error.message, HasSubstr("wrong or outdated join token"));
  Guest worker(worker_loop_.context(), {to(relay, new_identity().key())}, nodes_.worker_credentials(), nodes_.knobs);
  EXPECT_THAT(told(worker.failures.take().value()), HasSubstr("does it listen at this relay"));
  worker.dialer.reset();
  EXPECT_GE(relay.counters().nodes_refused, 4u);
}

/// A swarm whose two nodes have nothing but the relay in common, until they find each other.
TEST_F(RelayTest, ASessionThatBeginsAtTheRelayMovesToADirectPathWithoutLosingAFrame) {
  Relay relay;
  SessionKnobs knobs;
  Mailbox<LinkPtr> taken, dialled;
  auto listener = SessionListener::open(
                      backbone_loop_.context(), {relay.address()}, nodes_.backbone_credentials(), nodes_.knobs, knobs,
                      [&](LinkPtr link) { taken.put(std::move(link)); }, [](const std::string&, const Error&) {})
                      .value();
  auto dialer = SessionDialer::start(
      worker_loop_.context(), {relay.address()}, nodes_.worker_credentials(), nodes_.knobs, knobs,
      [&](LinkPtr link) { dialled.put(std::move(link)); }, [](const Error&) {});
  LinkPtr worker = dialled.take().value(), backbone = taken.take().value();
  EXPECT_EQ(worker->kind(), "relay");
  Recorder at_worker, at_backbone;
  worker->start(at_worker.handlers());
  backbone->start(at_backbone.handlers());
  exchange_from_many_threads(backbone, worker, at_backbone, at_worker, Order::may_overtake);  // meanwhile it moves
  const auto direct = [&] { return worker->kind() == "quic" && backbone->kind() == "quic"; };
  for (const auto end = Clock::now() + patience; !direct() && Clock::now() < end;) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(direct()) << worker->kind() << ": " << worker->path_note();
  EXPECT_EQ(worker->paths().size(), 2u) << "the relay stays at hand";
  const auto through = relay.counters().bytes;
  exchange_from_many_threads(backbone, worker, at_backbone, at_worker, Order::may_overtake);
  EXPECT_LT(relay.counters().bytes - through, 100'000u) << "frames still take the relay";
  EXPECT_EQ(at_worker.frames->size() + at_backbone.frames->size() + at_worker.closes->size() + at_backbone.closes->size(), 0u);
  dialer.reset();
}

TEST_F(RelayTest, DirectAddressesAreUsedFirstAndTheRelayWhenTheyDie) {
  Relay relay;
  nodes_.knobs.quic_listen = false;  // what the proxy does not see cannot be cut
  SessionKnobs knobs;
  knobs.find_direct = false;
  Mailbox<LinkPtr> taken, dialled;
  auto listener = SessionListener::open(
                      backbone_loop_.context(), {"127.0.0.1:0", relay.address()}, nodes_.backbone_credentials(), nodes_.knobs, knobs,
                      [&](LinkPtr link) { taken.put(std::move(link)); }, [](const std::string&, const Error&) {})
                      .value();
  ASSERT_TRUE(relay.wait_for([](const Counters& counters) { return counters.nodes_now >= 1; }));
  CutProxy proxy(parse_address(listener->addresses().front())->endpoint.port);
  auto dialer = SessionDialer::start(
      worker_loop_.context(), {relay.address(), proxy.address()}, nodes_.worker_credentials(), nodes_.knobs, knobs,
      [&](LinkPtr link) { dialled.put(std::move(link)); }, [](const Error&) {});
  LinkPtr worker = dialled.take().value(), backbone = taken.take().value();
  EXPECT_EQ(worker->kind(), "tcp");
  Recorder at_worker, at_backbone;
  worker->start(at_worker.handlers());
  backbone->start(at_backbone.handlers());
  proxy.shut(true);
  proxy.cut();
  exchange_from_many_threads(backbone, worker, at_backbone, at_worker, Order::may_overtake);
  EXPECT_EQ(worker->kind(), "relay");
  proxy.shut(false);  // the direct path is back
  for (const auto end = Clock::now() + patience; worker->kind() != "tcp" && Clock::now() < end;) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(worker->kind(), "tcp");
  exchange_from_many_threads(backbone, worker, at_backbone, at_worker, Order::may_overtake);
  EXPECT_EQ(at_worker.closes->size() + at_backbone.closes->size(), 0u);
  dialer.reset();
}

TEST_F(RelayTest, WhoListensNamesNoNode) {
  const auto opened = Listener::open(backbone_loop_.context(), "relay://127.0.0.1:1/" + key_text(nodes_.worker.key()),
                                     nodes_.backbone_credentials(), nodes_.knobs, [](LinkPtr) {}, {});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, HasSubstr("relay://KEY@host:port"));
}

TEST_F(RelayTest, DestructionAtAnyMomentStopsCallbacks) {
  Relay relay;
  Station backbone(backbone_loop_.context(), relay.address(), nodes_.backbone_credentials(), nodes_.knobs);
  for (int i = 0; i < 40; ++i) {
    std::atomic<bool> alive = true, late = false;
    const auto noted = [&] {
      if (!alive) late = true;
    };
    auto dialer = Dialer::start(
        worker_loop_.context(), {relay.address()}, nodes_.worker_credentials(), nodes_.knobs, [&](LinkPtr) { noted(); },
        [&](const Error&) { noted(); });
    std::unique_ptr<Listener> listener = Listener::open(
                                             worker_loop_.context(), relay.address(), nodes_.worker_credentials(), nodes_.knobs,
                                             [&](LinkPtr) { noted(); }, [&](const std::string&, const Error&) { noted(); })
                                             .value();
    std::this_thread::sleep_for(std::chrono::microseconds(i * 250));
    dialer.reset();
    listener.reset();
    alive = false;
    std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(late) << i;
  }
}

// ---- tickets and data connections, by hand ---------------------------------------------------------------------------

/// Control connections of both nodes, for tests that open data connections by hand.
class ByHand : public RelayTest {
 protected:
  void come(Relay& relay) {
    const Address address = parse_address(relay.address()).value();
    const auto make = [&](const Credentials& credentials, RelayClient::Hooks hooks) {
      auto client = std::make_shared<RelayClient>(boost::asio::make_strand(loop_.context()), address,
                                                  std::make_shared<const Credentials>(credentials), nodes_.knobs, std::move(hooks));
      client->start();
      return client;
    };
    backbone_ = make(nodes_.backbone_credentials(), {.on_called = [this](const RelayIntroduce& called) { called_.put(called); }});
    ASSERT_TRUE(relay.wait_for([](const Counters& counters) { return counters.nodes_now == 1; }));
    worker_ = make(nodes_.worker_credentials(), {});
  }
  void TearDown() override {
    for (const auto& client : {backbone_, worker_}) {
      if (client) boost::asio::post(loop_.context(), [client] { client->stop(); });
    }
  }
  Result<RelayIntroduce> ask() {
    std::promise<Result<RelayIntroduce>> promise;
    boost::asio::co_spawn(
        loop_.context(),
        [&, client = worker_]() -> boost::asio::awaitable<void> { promise.set_value(co_await client->connect(nodes_.backbone.key())); },
        boost::asio::detached);
    return promise.get_future().get();
  }
  struct Tickets {
    RelayTicket caller, called;
  };
  Tickets tickets() {
    const auto caller = ask();
    EXPECT_TRUE(caller) << caller.error().message;
    const auto called = called_.take();
    EXPECT_TRUE(called);
    return {caller->ticket, called->ticket};
  }
  std::unique_ptr<RawPeer> open(const Relay& relay, const RelayTicket& ticket) {
    auto peer = std::make_unique<RawPeer>(relay.where());
    peer->send_bytes(encode_relay_preamble(ticket));
    return peer;
  }
  static int answer_of(RawPeer& peer) {
    const Bytes answer = peer.receive_bytes(1);
    return answer.empty() ? -1 : std::to_integer<int>(answer[0]);
  }
  std::pair<std::unique_ptr<RawPeer>, std::unique_ptr<RawPeer>> joined(const Relay& relay) {
    const Tickets pair = tickets();
    auto caller = open(relay, pair.caller), called = open(relay, pair.called);
    EXPECT_EQ(answer_of(*caller), 0);
    EXPECT_EQ(answer_of(*called), 0);
    return {std::move(caller), std::move(called)};
  }
  Loop loop_;
  Mailbox<RelayIntroduce> called_;
  std::shared_ptr<RelayClient> backbone_, worker_;
};

TEST_F(ByHand, BytesPassAsTheyComeAndSoDoEnds) {
  Relay relay;
  come(relay);
  auto [caller, called] = joined(relay);
  caller->send_bytes("one");
  EXPECT_EQ(called->receive_bytes(16).size(), 3u);
  called->send_bytes("four");
  EXPECT_EQ(caller->receive_bytes(16).size(), 4u);
  caller->end_sending();
  EXPECT_TRUE(called->receive_bytes(16).empty()) << "the end is passed on";
  called->send_bytes("still there");
  EXPECT_EQ(caller->receive_bytes(64).size(), 11u) << "but only in its own direction";
  called->end_sending();
  EXPECT_TRUE(caller->receive_bytes(16).empty());
  EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.links_now == 0 && counters.bytes == 18; }));
}

TEST_F(ByHand, AResetIsPassedOn) {
  Relay relay;
  come(relay);
  auto [caller, called] = joined(relay);
  caller->reset();
  EXPECT_TRUE(called->wait_for_end());
  EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.links_now == 0; }));
}

TEST_F(ByHand, APreambleMayComeByteByByteAndDataRightBehindIt) {
  Relay relay;
  come(relay);
  const Tickets pair = tickets();
  RawPeer slow(relay.where());
  for (const std::byte byte : encode_relay_preamble(pair.caller)) {
    ASSERT_TRUE(slow.send_bytes(ByteSpan(&byte, 1)));
    std::this_thread::sleep_for(1ms);
  }
  Bytes eager = encode_relay_preamble(pair.called);
  eager.resize(eager.size() + 100'000);
  RawPeer fast(relay.where());
  fast.send_bytes(eager);
  EXPECT_EQ(answer_of(slow), 0);
  std::size_t got = 0;
  while (got < 100'000) {
    const std::size_t n = slow.receive_bytes().size();
    ASSERT_GT(n, 0u);
    got += n;
  }
}

TEST_F(ByHand, TicketsThatAreInventedOrUsedOrLateAreRefused) {
  auto options = Relay::open_to_all();
  options.limits.ticket_lifetime = 3000ms;  // what follows must not take so long
  Relay relay(options);
  come(relay);
  EXPECT_EQ(answer_of(*open(relay, {})), static_cast<int>(RelayAnswer::unknown_ticket));
  {
    const Tickets pair = tickets();
    const auto first = open(relay, pair.caller);
    EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.connections >= 4; }));
    EXPECT_EQ(answer_of(*open(relay, pair.caller)), static_cast<int>(RelayAnswer::used_ticket)) << "nor does it take the other's place";
    EXPECT_EQ(answer_of(*first), static_cast<int>(RelayAnswer::peer_missing));
    EXPECT_TRUE(first->wait_for_end());
  }
  const Tickets late = tickets();
  std::this_thread::sleep_for(3100ms);
  EXPECT_EQ(answer_of(*open(relay, late.caller)), static_cast<int>(RelayAnswer::expired_ticket));
  const Counters counters = relay.counters();
  EXPECT_EQ(counters.tickets_unknown, 1u);
  EXPECT_EQ(counters.tickets_replayed, 1u);
  EXPECT_EQ(counters.tickets_expired, 1u);
  EXPECT_EQ(counters.peers_missing, 1u);
  EXPECT_EQ(counters.links, 0u);
}

TEST_F(ByHand, ASlowReaderDoesNotFillTheRelay) {
  Relay relay;
  come(relay);
  auto [caller, called] = joined(relay);
  const std::size_t taken = caller->send_until_blocked(300ms);
  EXPECT_LT(taken, 32u << 20) << "more than sockets and one kernel pipe hold";
  EXPECT_GT(taken, 64u << 10);
  // And nothing is lost when it reads after all.
  std::size_t got = 0;
  while (got < taken) {
    const std::size_t n = called->receive_bytes().size();
    ASSERT_GT(n, 0u);
    got += n;
  }
  EXPECT_EQ(got, taken);
}

TEST_F(ByHand, ARateIsKept) {
  auto options = Relay::open_to_all();
  options.rate_mbit = 8;  // a megabyte a second, of which a quarter at once
  Relay relay(options);
  come(relay);
  auto [caller, called] = joined(relay);
  const auto start = Clock::now();
  std::thread sender([&, peer = caller.get()] { peer->send_bytes(Bytes(1u << 20)); });
  std::size_t got = 0;
  while (got < 1u << 20) got += called->receive_bytes().size();
  sender.join();
  EXPECT_GE(Clock::now() - start, 600ms);
}

TEST_F(ByHand, SilentLinksAndNodesEnd) {
  auto options = Relay::open_to_all();
  options.link_silence = 300ms;
  options.control_silence = 300ms;
  nodes_.knobs.relay_ping = 1h;
  nodes_.knobs.backoff_min = nodes_.knobs.backoff_max = 1h;
  Relay relay(options);
  come(relay);
  auto [caller, called] = joined(relay);
  EXPECT_TRUE(caller->wait_for_end());
  EXPECT_TRUE(called->wait_for_end());
  EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.nodes_now == 0 && counters.links_now == 0; }));
}

TEST_F(ByHand, ANodeThatSaysTooMuchIsCutOffAndOthersAreNot) {
  Relay relay;
  come(relay);
  // A worker that pings without pause, on a control connection made by hand.
  const Identity identity = new_identity();
  RawPeer talker(relay.where());
  ASSERT_TRUE(talker.tls(identity));
  const auto proof =
      relay_proof(relay_membership(nodes_.secret).value(), talker.exported(relay_exporter_label), identity.key(), nodes_.backbone.key());
  ASSERT_TRUE(talker.send(encode_relay_message(RelayJoin{nodes_.backbone.key(), proof.value()})));
  for (int i = 0; i < 5000; ++i) {
    if (!talker.send(encode_relay_message(RelayPing{1}))) break;
  }
  EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.floods > 0 && counters.nodes_now == 2; }));
  const auto [caller, called] = joined(relay);
  caller->send_bytes("x");
  EXPECT_EQ(called->receive_bytes(1).size(), 1u);
}

TEST_F(ByHand, AFloodOfConnectionsLeavesRoomForOthers) {
  auto options = Relay::open_to_all();
  options.max_handshakes_of_address = 10;
  Relay relay(options);
  std::vector<std::unique_ptr<RawPeer>> idlers;
  for (int i = 0; i < 30; ++i) idlers.push_back(std::make_unique<RawPeer>(relay.where()));
  EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.floods >= 20; }));
  idlers.clear();
  come(relay);
  joined(relay);
}

TEST_F(ByHand, ACrowdAtAllPlacesMustMakeRoom) {
  auto options = Relay::open_to_all();
  options.max_handshakes = 4;
  Relay relay(options);
  std::vector<std::unique_ptr<RawPeer>> idlers;
  for (int i = 0; i < 12; ++i) idlers.push_back(std::make_unique<RawPeer>(relay.where()));
  come(relay);
  joined(relay);
}

TEST_F(RelayTest, GarbageOfEveryKindIsRefused) {
  Relay relay;
  {
    RawPeer web(relay.where());
    web.send_bytes("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_THAT(web.receive_text(), AllOf(HasSubstr("426"), HasSubstr("This is a relay of linkcpp")));
    RawPeer noise(relay.where());
    noise.send_bytes(std::string(100, '\x7f'));
    EXPECT_TRUE(noise.wait_for_end());
    RawPeer version(relay.where());
    Bytes preamble = encode_relay_preamble({});
    preamble[4] = std::byte{9};
    version.send_bytes(preamble);
    EXPECT_TRUE(version.wait_for_end());
    RawPeer plain(relay.where());
    ASSERT_TRUE(plain.tls(nodes_.worker));
    plain.send(std::as_bytes(std::span("hello, relay", 12)));
    EXPECT_TRUE(plain.wait_for_end());
    RawPeer early(relay.where());
    ASSERT_TRUE(early.tls(nodes_.worker));
    early.send(encode_relay_message(RelayListen{}));
    EXPECT_TRUE(early.wait_for_end());
  }
  Station backbone(backbone_loop_.context(), relay.address(), nodes_.backbone_credentials(), nodes_.knobs);
  Guest worker(worker_loop_.context(), {relay.address()}, nodes_.worker_credentials(), nodes_.knobs);
  EXPECT_TRUE(worker.links.take()) << "an honest worker was kept out afterwards";
  worker.dialer.reset();
}

TEST_F(RelayTest, StunIsAnsweredOnTheSamePort) {
  Relay relay;
  const Endpoint endpoint = parse_endpoint(relay.where()).value();
  boost::asio::io_context context;
  boost::asio::ip::udp::socket socket(context, {boost::asio::ip::udp::v4(), 0});
  const boost::asio::ip::udp::endpoint to(boost::asio::ip::make_address(endpoint.host), endpoint.port);
  const timeval limit{.tv_sec = 30, .tv_usec = 0};
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const StunId id{1, 2, 3};
  socket.send_to(boost::asio::buffer("noise", 5), to);
  const Bytes request = make_stun_request(id);
  socket.send_to(boost::asio::buffer(request.data(), request.size()), to);
  Bytes answer(100);
  const ssize_t n = ::recv(socket.native_handle(), answer.data(), answer.size(), 0);
  ASSERT_GT(n, 0);
  answer.resize(static_cast<std::size_t>(n));
  const auto found = parse_stun_answer(answer, id);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->port(), socket.local_endpoint().port());
  for (int i = 0; i < 200; ++i) socket.send_to(boost::asio::buffer(request.data(), request.size()), to);
  EXPECT_TRUE(relay.wait_for([](const Counters& counters) { return counters.stun_answers + counters.stun_ignored >= 150; }));
  EXPECT_LT(relay.counters().stun_answers, 80u) << "nobody may ask without end";
}

TEST(AdminTest, AnswersWhatItKnowsAndNothingElse) {
  Loop loop;
  std::unique_ptr<Admin> admin =
      Admin::open(loop.context(), "127.0.0.1:0", [](std::function<void(std::string)> then) { then("some 1\n"); }).value();
  const auto ask = [&](std::string_view request) {
    RawPeer peer(admin->address());
    peer.send_bytes(request);
    return peer.receive_text();
  };
  EXPECT_THAT(ask("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"), AllOf(HasSubstr("200 OK"), HasSubstr("\r\n\r\nsome 1\n")));
  EXPECT_THAT(ask("GET /health HTTP/1.0\r\n\r\n"), HasSubstr("ok\n"));
  EXPECT_THAT(ask("GET /etc/passwd HTTP/1.1\r\n\r\n"), HasSubstr("404"));
  EXPECT_THAT(ask("POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("404"));
  EXPECT_EQ(ask(std::string(20'000, 'x')), "");
  std::vector<std::unique_ptr<RawPeer>> idlers;
  for (int i = 0; i < 8; ++i) idlers.push_back(std::make_unique<RawPeer>(admin->address()));
  EXPECT_THAT(ask("GET /health HTTP/1.1\r\n\r\n"), HasSubstr("ok\n"));
  admin.reset();
  for (const auto& idler : idlers) EXPECT_TRUE(idler->wait_for_end());
  EXPECT_FALSE(Admin::open(loop.context(), "nonsense", {}));
}

TEST(CountersTest, AreShownInBothForms) {
  Counters counters;
  counters.bytes = 12345;
  EXPECT_THAT(prometheus_text(counters), AllOf(HasSubstr("# TYPE linkcpp_relay_bytes_total counter\nlinkcpp_relay_bytes_total 12345\n"),
                                               HasSubstr("# TYPE linkcpp_relay_links_now gauge\nlinkcpp_relay_links_now 0\n")));
  EXPECT_THAT(json_text(counters), HasSubstr("\"bytes\":12345"));
}

}  // namespace
}  // namespace linkcpp::relay
