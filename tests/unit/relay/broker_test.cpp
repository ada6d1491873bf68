// The relay's decisions: who may be there, who meets whom, how often, and with which tickets. Time is the test's.
#include "relay/broker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace linkcpp::relay {
namespace {

using namespace std::chrono_literals;
using net::PeerKey;
using net::RelayAnswer;
using testing::HasSubstr;

PeerKey key_of(std::uint8_t fill) {
  PeerKey key;
  key.bytes.fill(fill);
  return key;
}
const PeerKey backbone_key = key_of(1), worker_key = key_of(2), other_key = key_of(3), stranger_key = key_of(9);
constexpr net::TlsSession::ExportedKey exported{7};
constexpr net::RelayMembership membership{5};

class BrokerTest : public testing::Test {
 protected:
  Access access() const {
    Access list;
    list.allow(backbone_key);
    return list;
  }
  Limits limits;
  Clock::time_point now = Clock::time_point() + 1h;
  std::optional<Broker> made;
  Broker& broker() {
    if (!made) made.emplace(access(), limits);
    return *made;
  }
  net::RelayJoin joining(const PeerKey& node, const PeerKey& whose = backbone_key, const net::RelayMembership& with = membership) {
    return {whose, net::relay_proof(with, exported, node, whose).value()};
  }
  /// Backbone is 1, worker 2; both listen.
  void both_here() {
    ASSERT_TRUE(broker().arrive(1, backbone_key) && broker().register_backbone(1, membership) && broker().listen(1));
    ASSERT_TRUE(broker().arrive(2, worker_key) && broker().join(2, joining(worker_key), exported) && broker().listen(2));
  }
};

TEST_F(BrokerTest, IntroducesNodesOfOneSwarm) {
  both_here();
  const auto there = broker().connect(2, backbone_key, now);
  ASSERT_TRUE(there) << there.error().message;
  EXPECT_EQ(there->called, 1u);
  EXPECT_EQ(there->caller_key, worker_key);
  const auto caller = broker().redeem(there->tickets.caller, now), called = broker().redeem(there->tickets.called, now);
  EXPECT_EQ(caller.ticket.answer, RelayAnswer::joined);
  EXPECT_EQ(called.ticket.answer, RelayAnswer::joined);
  EXPECT_EQ(caller.ticket.connection, called.ticket.connection);
  EXPECT_TRUE(caller.ticket.caller && !called.ticket.caller);
  EXPECT_EQ(caller.peer, worker_key);
  EXPECT_EQ(called.peer, backbone_key);
  EXPECT_EQ(broker().n_links(), 1u);
  broker().link_ended(caller.ticket.connection);
  EXPECT_EQ(broker().n_links(), 0u);
  EXPECT_TRUE(broker().connect(1, worker_key, now));
}

TEST_F(BrokerTest, BackbonesMustBeAllowed) {
  ASSERT_TRUE(broker().arrive(1, stranger_key));
  const auto refused = broker().register_backbone(1, membership);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::unauthorized);
  EXPECT_THAT(refused.error().message, HasSubstr("--allow " + net::key_text(stranger_key)));
  Access all;
  all.allow_all();
  Broker open(all, limits);
  EXPECT_TRUE(open.arrive(1, stranger_key) && open.register_backbone(1, membership));
}

TEST_F(BrokerTest, NodesMustProveWhoseTheyAre) {
  ASSERT_TRUE(broker().arrive(2, worker_key));
  EXPECT_EQ(broker().join(2, joining(worker_key), exported).error().kind, ErrorKind::unavailable) << "the backbone is not here";
  ASSERT_TRUE(broker().arrive(1, backbone_key) && broker().register_backbone(1, membership));
  EXPECT_EQ(broker().join(2, joining(other_key), exported).error().kind, ErrorKind::unauthorized) << "another node's proof";
  EXPECT_EQ(broker().join(2, joining(worker_key, backbone_key, {6}), exported).error().kind, ErrorKind::unauthorized) << "another secret";
  EXPECT_EQ(broker().join(2, joining(worker_key), {8}).error().kind, ErrorKind::unauthorized) << "another connection's proof";
  EXPECT_FALSE(broker().listen(2));
  EXPECT_FALSE(broker().connect(2, backbone_key, now));
  EXPECT_TRUE(broker().join(2, joining(worker_key), exported));
  EXPECT_FALSE(broker().join(2, joining(worker_key), exported)) << "twice";
  EXPECT_FALSE(broker().register_backbone(2, membership)) << "twice";
}

TEST_F(BrokerTest, SwarmsDoNotMeet) {
  both_here();
  Access all;
  all.allow_all();
  Broker open(all, limits);
  ASSERT_TRUE(open.arrive(1, backbone_key) && open.register_backbone(1, membership) && open.listen(1));
  ASSERT_TRUE(open.arrive(2, stranger_key) && open.register_backbone(2, {9}) && open.listen(2));
  EXPECT_EQ(open.connect(2, backbone_key, now).error().kind, ErrorKind::not_found);
  EXPECT_EQ(open.connect(1, stranger_key, now).error().kind, ErrorKind::not_found);
}

TEST_F(BrokerTest, OnlyThoseWhoListenAreFoundAndTheNewestFirst) {
  ASSERT_TRUE(broker().arrive(1, backbone_key) && broker().register_backbone(1, membership));
  ASSERT_TRUE(broker().arrive(2, worker_key) && broker().join(2, joining(worker_key), exported));
  EXPECT_EQ(broker().connect(2, backbone_key, now).error().kind, ErrorKind::not_found);
  ASSERT_TRUE(broker().listen(1));
  EXPECT_EQ(broker().connect(2, backbone_key, now)->called, 1u);
  ASSERT_TRUE(broker().arrive(3, backbone_key) && broker().register_backbone(3, membership));
  EXPECT_EQ(broker().connect(2, backbone_key, now)->called, 1u);
  ASSERT_TRUE(broker().listen(3));
  EXPECT_EQ(broker().connect(2, backbone_key, now)->called, 3u);
  broker().leave(3);
  EXPECT_EQ(broker().connect(2, backbone_key, now)->called, 1u);
  broker().leave(1);
  EXPECT_EQ(broker().connect(2, backbone_key, now).error().kind, ErrorKind::not_found);
}

TEST_F(BrokerTest, AReplacedSecretSendsTheOthersAway) {
  both_here();
  ASSERT_TRUE(broker().arrive(3, backbone_key));
  const auto outdated = broker().register_backbone(3, {66});
  ASSERT_TRUE(outdated);
  EXPECT_THAT(*outdated, testing::ElementsAre(2u));
  ASSERT_TRUE(broker().arrive(4, worker_key));
  EXPECT_FALSE(broker().join(4, joining(worker_key), exported));
  ASSERT_TRUE(broker().arrive(5, other_key));
  EXPECT_TRUE(broker().join(5, joining(other_key, backbone_key, {66}), exported));
}

TEST_F(BrokerTest, LimitsHoldAndFreePlacesComeBack) {
  limits.max_controls_of_peer = 2;
  limits.max_controls = 4;
  ASSERT_TRUE(broker().arrive(1, worker_key) && broker().arrive(2, worker_key));
  EXPECT_THAT(broker().arrive(3, worker_key).error().message, HasSubstr("2 connections"));
  broker().leave(1);
  EXPECT_TRUE(broker().arrive(3, worker_key));
  EXPECT_TRUE(broker().arrive(4, backbone_key) && broker().arrive(5, other_key));
  EXPECT_THAT(broker().arrive(6, stranger_key).error().message, HasSubstr("as many as it may"));
}

TEST_F(BrokerTest, ConnectsAreLimitedByRateAndNumber) {
  limits.connects_per_second = 2;
  limits.connect_burst = 3;
  limits.max_links_of_peer = 5;
  both_here();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(broker().connect(2, backbone_key, now));
  EXPECT_THAT(broker().connect(2, backbone_key, now).error().message, HasSubstr("a second"));
  EXPECT_TRUE(broker().connect(1, worker_key, now)) << "somebody else's connects are not counted here";
  now += 1s;
  EXPECT_TRUE(broker().connect(2, backbone_key, now));
  EXPECT_THAT(broker().connect(2, backbone_key, now).error().message, HasSubstr("5 connections"));
  now += limits.ticket_lifetime;
  broker().forget_old(now);
  EXPECT_EQ(broker().n_links(), 0u) << "tickets that nobody used give their places back";
  EXPECT_TRUE(broker().connect(2, backbone_key, now));
}

TEST_F(BrokerTest, TalkersAreLimited) {
  limits.messages_per_second = 10;
  limits.message_burst = 20;
  both_here();
  int said = 0;
  while (said < 1000 && broker().may_speak(2, now)) ++said;
  EXPECT_EQ(said, 20);
  EXPECT_TRUE(broker().may_speak(1, now));
  now += 1s;
  EXPECT_TRUE(broker().may_speak(2, now));
  EXPECT_FALSE(broker().may_speak(77, now));
}

TEST_F(BrokerTest, TicketsServeOnceAndNotForLong) {
  both_here();
  const auto first = broker().connect(2, backbone_key, now);
  ASSERT_TRUE(first);
  EXPECT_EQ(broker().redeem({}, now).ticket.answer, RelayAnswer::unknown_ticket);
  EXPECT_EQ(broker().redeem(first->tickets.caller, now).ticket.answer, RelayAnswer::joined);
  EXPECT_EQ(broker().redeem(first->tickets.caller, now).ticket.answer, RelayAnswer::used_ticket);
  EXPECT_EQ(broker().redeem(first->tickets.called, now + limits.ticket_lifetime).ticket.answer, RelayAnswer::expired_ticket);
  const auto second = broker().connect(2, backbone_key, now);
  ASSERT_TRUE(second);
  EXPECT_EQ(broker().redeem(second->tickets.caller, now).ticket.answer, RelayAnswer::joined);
  broker().link_ended(broker().redeem(second->tickets.caller, now).ticket.connection);  // of 0: nothing
  now += 10 * limits.ticket_lifetime;
  broker().forget_old(now);
  EXPECT_EQ(broker().redeem(first->tickets.caller, now).ticket.answer, RelayAnswer::unknown_ticket) << "forgotten";
}

TEST_F(BrokerTest, NothingIsRememberedOfThoseWhoLeft) {
  both_here();
  EXPECT_EQ(broker().n_swarms(), 1u);
  broker().leave(1);
  EXPECT_EQ(broker().n_swarms(), 1u) << "its worker is still here";
  broker().leave(2);
  broker().leave(2);
  EXPECT_EQ(broker().n_swarms(), 0u);
  EXPECT_EQ(broker().n_controls(), 0u);
}

TEST(BucketTest, FillsSteadilyAndAllowsDebt) {
  Bucket bucket(10, 5);
  auto now = Clock::time_point() + 1h;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(bucket.take(1, now));
  EXPECT_FALSE(bucket.take(1, now));
  now += 100ms;
  EXPECT_TRUE(bucket.take(1, now));
  EXPECT_EQ(bucket.pause(now), Clock::duration::zero());
  bucket.owe(20, now);
  EXPECT_GE(bucket.pause(now), 1900ms);
  EXPECT_LE(bucket.pause(now), 2100ms);
  now += 3s;
  EXPECT_EQ(bucket.pause(now), Clock::duration::zero());
  EXPECT_FALSE(bucket.full(now) && bucket.take(6, now));
  Bucket unlimited(0, 0);
  unlimited.owe(1e12, now);
  EXPECT_EQ(unlimited.pause(now), Clock::duration::zero());
  EXPECT_TRUE(unlimited.take(1e12, now));
}

TEST(AccessTest, ReadsFilesOfKeys) {
  const auto path = std::filesystem::temp_directory_path() / std::format("linkcpp-access-{}", ::getpid());
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write("# backbones\n\n  " + net::key_text(backbone_key) + "  # Ann's\r\n" + net::key_text(worker_key) + "\n");
  Access access;
  ASSERT_TRUE(access.allow_file(path));
  EXPECT_TRUE(access.allows(backbone_key) && access.allows(worker_key));
  EXPECT_FALSE(access.allows(stranger_key));
  write(net::key_text(backbone_key) + "\nnonsense\n");
  EXPECT_THAT(access.allow_file(path).error().message, testing::AllOf(HasSubstr(path.string()), HasSubstr("line 2")));
  std::filesystem::remove(path);
  EXPECT_EQ(access.allow_file(path).error().kind, ErrorKind::not_found);
}

}  // namespace
}  // namespace linkcpp::relay
