// Which NAT it is, through the lab's translators; what cannot be known; and asking real sockets.
#include "net/nat_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <future>

#include "lab/nat.h"
#include "net/nat_probe.h"
#include "support/lab_packets.h"
#include "unit/net/quic_harness.h"

namespace linkcpp::net {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;
namespace ip = boost::asio::ip;

ip::address ip_of(const char* text) { return ip::make_address(text); }
Udp::endpoint udp_at(const char* text, std::uint16_t port) { return {ip_of(text), port}; }

const std::vector<ip::address> own_addresses{ip_of("192.168.1.7")};
const std::vector<Udp::endpoint> stun_servers{udp_at("198.18.0.1", 7103), udp_at("198.18.0.2", 7103), udp_at("198.18.0.2", 7101)};

/// What stun_servers see of 192.168.1.7:7000 behind NATs, the nearest first.
std::vector<StunSight> seen_through(std::vector<lab::NatShape> shapes, const std::vector<Udp::endpoint>& to = stun_servers) {
  std::vector<lab::Nat> nats;
  for (std::size_t i = 0; i < shapes.size(); ++i) nats.emplace_back(shapes[i], i + 1);
  std::vector<StunSight> sights;
  for (const Udp::endpoint& server : to) {
    Bytes packet = lab::packet_of(lab::Protocol::udp, {ip_of("192.168.1.7").to_v4().to_uint(), 7000},
                                  {server.address().to_v4().to_uint(), server.port()});
    for (lab::Nat& nat : nats) nat.outbound(packet, 0s);
    const auto from = lab::flow_of(packet)->from;
    sights.push_back({.server = server, .seen = Udp::endpoint(ip::make_address_v4(from.address), from.port)});
  }
  return sights;
}

lab::NatShape nat_of(lab::NatKind kind, const char* outside = "203.0.113.9") {
  return {.kind = kind, .outside = ip_of(outside).to_v4().to_uint()};
}

TEST(NatKindTest, EveryNatOfTheLabIsRecognised) {
  for (const auto kind : {lab::NatKind::full_cone, lab::NatKind::address_restricted, lab::NatKind::port_restricted}) {
    const auto verdict = judge_nat(seen_through({nat_of(kind)}), own_addresses, 7000);
    EXPECT_EQ(verdict.kind, NatKind::cone);
    EXPECT_EQ(verdict.outside, udp_at("203.0.113.9", 7000));
    EXPECT_TRUE(verdict.keeps_port);
    EXPECT_FALSE(verdict.carrier_grade);
  }
  const auto verdict = judge_nat(seen_through({nat_of(lab::NatKind::symmetric)}), own_addresses, 7000);
  EXPECT_EQ(verdict.kind, NatKind::symmetric);
  EXPECT_THAT(verdict.why, HasSubstr("address and port"));
  EXPECT_EQ(
      judge_nat(seen_through({nat_of(lab::NatKind::symmetric, "100.64.0.3"), nat_of(lab::NatKind::full_cone)}), own_addresses, 7000).kind,
      NatKind::symmetric)
      << "the worst of several decides";
}

TEST(NatKindTest, WithoutNatOthersSeeAnOwnAddress) {
  const auto verdict = judge_nat(seen_through({}), own_addresses, 7000);
  EXPECT_EQ(verdict.kind, NatKind::open);
  EXPECT_TRUE(verdict.keeps_port);
  EXPECT_THAT(verdict.not_known, testing::Contains(HasSubstr("firewall")));
}

TEST(NatKindTest, OneServerCannotTell) {
  const auto verdict = judge_nat(seen_through({nat_of(lab::NatKind::full_cone)}, {stun_servers[0]}), own_addresses, 7000);
  EXPECT_EQ(verdict.kind, NatKind::unknown);
  EXPECT_EQ(verdict.outside, udp_at("203.0.113.9", 7000));
  EXPECT_THAT(verdict.not_known, testing::ElementsAre(HasSubstr("second server")));
  const auto two_ports =
      judge_nat(seen_through({nat_of(lab::NatKind::full_cone)}, {stun_servers[1], stun_servers[2]}), own_addresses, 7000);
  EXPECT_EQ(two_ports.kind, NatKind::cone);
  EXPECT_THAT(two_ports.not_known, testing::Contains(HasSubstr("several ports")));
}

TEST(NatKindTest, ServersInTheOwnNetworkSayNothingAboutTheNat) {
  auto sights = seen_through({nat_of(lab::NatKind::full_cone)});
  sights.push_back({.server = udp_at("192.168.1.2", 7103), .seen = udp_at("192.168.1.7", 7000)});
  EXPECT_EQ(judge_nat(sights, own_addresses, 7000).kind, NatKind::cone);
  const auto alone = judge_nat(std::span(sights).last(1), own_addresses, 7000);
  EXPECT_EQ(alone.kind, NatKind::open);
  EXPECT_THAT(alone.not_known, testing::Contains(HasSubstr("own network")));
}

TEST(NatKindTest, SilenceIsNotTheSameAsNotAsking) {
  EXPECT_EQ(judge_nat({}, own_addresses, 7000).kind, NatKind::unknown);
  const std::vector<StunSight> silent{{.server = stun_servers[0], .seen = {}}, {.server = stun_servers[1], .seen = {}}};
  const auto verdict = judge_nat(silent, own_addresses, 7000);
  EXPECT_EQ(verdict.kind, NatKind::no_udp);
  EXPECT_THAT(verdict.why, HasSubstr("none of 2"));
}

TEST(NatKindTest, ANatOfTheProviderIsSeen) {
  const auto sights = seen_through({nat_of(lab::NatKind::full_cone, "100.64.0.3"), nat_of(lab::NatKind::full_cone)});
  EXPECT_FALSE(judge_nat(sights, own_addresses, 7000).carrier_grade) << "nobody could know";
  EXPECT_THAT(judge_nat(sights, own_addresses, 7000, ip_of("100.64.0.3")).carrier_why, HasSubstr("100.64.0.3"));
  EXPECT_THAT(judge_nat(sights, own_addresses, 7000, ip_of("10.0.0.3")).carrier_why, HasSubstr("another NAT"));
  EXPECT_FALSE(judge_nat(sights, own_addresses, 7000, ip_of("203.0.113.9")).carrier_grade);
  EXPECT_TRUE(judge_nat(sights, std::vector{ip_of("100.80.0.1")}, 7000).carrier_grade);
}

TEST(NatKindTest, WhoCanMeetDirectly) {
  using enum NatKind;
  EXPECT_EQ(direct_chance(symmetric, symmetric), DirectChance::no);
  EXPECT_EQ(direct_chance(symmetric, cone), DirectChance::rarely);
  EXPECT_EQ(direct_chance(symmetric, open), DirectChance::yes);
  EXPECT_EQ(direct_chance(cone, cone), DirectChance::yes);
  EXPECT_EQ(direct_chance(open, no_udp), DirectChance::no);
  EXPECT_EQ(direct_chance(open, unknown), DirectChance::yes);
  EXPECT_EQ(direct_chance(cone, unknown), DirectChance::unknown);
}

TEST(NatKindTest, AddressesOfTheWholeInternet) {
  for (const char* text : {"8.8.8.8", "198.18.0.1", "2001:db8::1", "172.32.0.1", "100.128.0.1"})
    EXPECT_TRUE(is_global(ip_of(text))) << text;
  for (const char* text :
       {"10.1.2.3", "172.31.0.1", "192.168.0.1", "100.64.0.1", "127.0.0.1", "169.254.1.1", "fe80::1", "fd00::1", "::1"}) {
    EXPECT_FALSE(is_global(ip_of(text))) << text;
  }
}

Result<NatProbeAnswers> probe_from(Loop& loop, std::vector<Udp::endpoint> to, NatProbeKnobs knobs) {
  std::promise<Result<NatProbeAnswers>> done;
  boost::asio::co_spawn(loop.context(), probe_nat(boost::asio::make_strand(loop.context()), std::move(to), knobs),
                        [&](const std::exception_ptr&, Result<NatProbeAnswers> answers) { done.set_value(std::move(answers)); });
  return done.get_future().get();
}

TEST(NatProbeTest, NodesThatTakeQuicAnswer) {
  Nodes nodes;
  Loop loop;
  const QuicNode one(loop.context(), nodes.backbone_credentials(), nodes.knobs),
      two(loop.context(), nodes.backbone_credentials(), nodes.knobs);
  const auto answers = probe_from(loop, {one.endpoint->local(), two.endpoint->local()}, {}).value();
  ASSERT_EQ(answers.sights.size(), 2u);
  for (const StunSight& sight : answers.sights) {
    EXPECT_EQ(sight.seen, udp_at("127.0.0.1", answers.local_port));
    EXPECT_GT(sight.round_trip, 0ns);
  }
}

TEST(NatProbeTest, SilenceEndsAtTheLimit) {
  Loop loop;
  const auto begun = std::chrono::steady_clock::now();
  const auto answers = probe_from(loop, {udp_at("127.0.0.1", 9)}, {.first_pause = 20ms, .limit = 150ms}).value();
  EXPECT_FALSE(answers.sights[0].seen);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 2s);
  EXPECT_THAT(probe_from(loop, {}, {})->sights, IsEmpty());
}

}  // namespace
}  // namespace linkcpp::net
