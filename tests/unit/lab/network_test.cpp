#include "lab/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/lab_packets.h"

namespace linkcpp::lab {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Address inner_node = (10u << 24) + 5, outside = (198u << 24) + 7, server = (198u << 24) + 99, other_server = (198u << 24) + 98;

TEST(Packet, RewritingKeepsChecksums) {
  for (const Protocol protocol : {Protocol::udp, Protocol::tcp, Protocol::icmp}) {
    for (const std::size_t payload : {0u, 1u << 1, 1400u}) {
      Bytes packet =
          packet_of(protocol, {inner_node, 4000}, {server, protocol == Protocol::icmp ? std::uint16_t{4000} : std::uint16_t{53}}, payload);
      ASSERT_TRUE(sound(packet));
      set_source(packet, {outside, 65535});
      EXPECT_TRUE(sound(packet)) << static_cast<int>(protocol);
      EXPECT_EQ(flow_of(packet)->from, (Endpoint{outside, 65535}));
      set_destination(packet, {inner_node, 1});
      EXPECT_TRUE(sound(packet));
      EXPECT_EQ(flow_of(packet)->to, (Endpoint{inner_node, 1}));
    }
  }
}

TEST(Packet, NoFlowInDamagedPackets) {
  const Bytes sound_one = packet_of(Protocol::tcp, {inner_node, 4000}, {server, 80});
  for (std::size_t n = 0; n < sound_one.size(); ++n) EXPECT_FALSE(flow_of(ByteSpan(sound_one).first(n))) << n;
  Bytes fragment = sound_one;
  put16(fragment, 6, 0x2000);
  EXPECT_FALSE(flow_of(fragment));
  Bytes six = sound_one;
  six[0] = std::byte{0x65};
  EXPECT_FALSE(flow_of(six));
  Bytes long_header = sound_one;
  long_header[0] = std::byte{0x4F};
  EXPECT_FALSE(flow_of(long_header));
}

TEST(Line, DelayRateAndQueue) {
  Line line({.delay = 40ms, .bytes_per_second = 1e6, .queue_bytes = 3000}, 1);
  EXPECT_EQ(line.admit(1000, 0ms), Time(41ms));
  EXPECT_EQ(line.admit(1000, 0ms), Time(42ms));
  EXPECT_EQ(line.admit(1000, 0ms), Time(43ms));
  EXPECT_EQ(line.admit(1000, 0ms), std::nullopt) << "the queue is full";
  EXPECT_EQ(line.admit(1000, 1ms), Time(44ms));
  EXPECT_EQ(line.admit(500, 100ms), Time(140ms + 500us)) << "an idle line has no credit";
  EXPECT_EQ(line.counters().dropped, 1u);
}

TEST(Line, JitterKeepsTheOrder) {
  Line line({.delay = 10ms, .jitter = 20ms}, 7);
  Time last{}, sum{};
  for (int i = 0; i < 10'000; ++i) {
    const Time sent = i * 100ms;  // so far apart that order does not bind
    const Time late = *line.admit(100, sent) - sent;
    EXPECT_GE(late, Time(10ms));
    EXPECT_LE(late, Time(30ms));
    sum += late;
  }
  EXPECT_NEAR(static_cast<double>(sum.count()) / 1e10, 20.0, 0.3);
  Line dense({.delay = 10ms, .jitter = 20ms}, 7);
  for (int i = 0; i < 10'000; ++i) {
    const Time out = *dense.admit(100, i * 1ms);
    EXPECT_GE(out, last);
    last = out;
  }
}

TEST(Line, LossAndItsBursts) {
  for (const double burst : {1.0, 4.0, 20.0}) {
    for (const double loss : {0.005, 0.02, 0.3}) {
      Line line({.loss = loss, .burst = burst}, 3);
      constexpr int n = 400'000;
      int lost = 0, runs = 0;
      bool before = false;
      for (int i = 0; i < n; ++i) {
        const bool gone = !line.admit(100, Time{});
        lost += gone;
        runs += gone && !before;
        before = gone;
      }
      const double expected_run = burst > 1 ? burst : 1 / (1 - loss);
      // Runs are independent: the number of lost packets spreads as their square root times their length.
      const double spread = std::sqrt(n * loss * 2 * expected_run);
      EXPECT_NEAR(lost, n * loss, 5 * spread) << burst << ' ' << loss;
      EXPECT_NEAR(static_cast<double>(lost) / runs, expected_run, expected_run * 5 / std::sqrt(runs)) << burst << ' ' << loss;
    }
  }
}

TEST(Line, AllOrNothing) {
  Line none({.loss = 0}, 1), all({.loss = 1, .burst = 3}, 1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(none.admit(1, Time{}));
    EXPECT_FALSE(all.admit(1, Time{}));
  }
}

struct Asked {
  NatKind kind;
  bool stranger, same_address_other_port;  ///< who may answer
  bool same_port_to_all;
};

class NatKinds : public ::testing::TestWithParam<Asked> {};

TEST_P(NatKinds, MapAndFilterAsTheirNamesSay) {
  const auto [kind, stranger, same_address, same_port] = GetParam();
  Nat nat({.kind = kind, .outside = outside}, 1);
  Bytes out = packet_of(Protocol::udp, {inner_node, 4000}, {server, 53});
  ASSERT_TRUE(nat.outbound(out, 0ms));
  const Endpoint mapped = flow_of(out)->from;
  EXPECT_EQ(mapped.address, outside);
  const auto answered = [&](Endpoint from) {
    Bytes in = packet_of(Protocol::udp, from, mapped);
    const bool let_in = nat.inbound(in, 1ms);
    if (let_in) {
      EXPECT_EQ(flow_of(in)->to, (Endpoint{inner_node, 4000}));
    }
    return let_in;
  };
  EXPECT_TRUE(answered({server, 53}));
  EXPECT_EQ(answered({server, 54}), same_address);
  EXPECT_EQ(answered({other_server, 53}), stranger);
  Bytes second = packet_of(Protocol::udp, {inner_node, 4000}, {other_server, 53});
  ASSERT_TRUE(nat.outbound(second, 2ms));
  EXPECT_EQ(flow_of(second)->from == mapped, same_port);
}

INSTANTIATE_TEST_SUITE_P(All, NatKinds,
                         ::testing::Values(Asked{NatKind::full_cone, true, true, true},
                                           Asked{NatKind::address_restricted, false, true, true},
                                           Asked{NatKind::port_restricted, false, false, true},
                                           Asked{NatKind::symmetric, false, false, false}));

TEST(Nat, MappingsExpireAndAnswersDoNotKeepThem) {
  Nat nat({.outside = outside, .udp_timeout = 30s}, 1);
  Bytes out = packet_of(Protocol::udp, {inner_node, 4000}, {server, 53});
  ASSERT_TRUE(nat.outbound(out, 0s));
  const Endpoint mapped = flow_of(out)->from;
  const auto answered = [&](Time at) {
    Bytes in = packet_of(Protocol::udp, {server, 53}, mapped);
    return nat.inbound(in, at);
  };
  EXPECT_TRUE(answered(29s));
  EXPECT_FALSE(answered(30s)) << "only what leaves refreshes";
  Bytes again = packet_of(Protocol::udp, {inner_node, 4000}, {server, 53});
  ASSERT_TRUE(nat.outbound(again, 40s));
  EXPECT_TRUE(answered(60s));
  EXPECT_EQ(nat.mappings(), 1u);
}

TEST(Nat, ClosedConnectionsAreForgottenSoon) {
  Nat nat({.outside = outside}, 1);
  Bytes out = packet_of(Protocol::tcp, {inner_node, 4000}, {server, 80});
  ASSERT_TRUE(nat.outbound(out, 0s));
  const auto answered = [&](Time at) {
    Bytes in = packet_of(Protocol::tcp, {server, 80}, {outside, 4000});
    return nat.inbound(in, at);
  };
  EXPECT_TRUE(answered(3600s));
  Bytes end = packet_of(Protocol::tcp, {inner_node, 4000}, {server, 80}, 0, 0x11);
  ASSERT_TRUE(nat.outbound(end, 3600s));
  EXPECT_TRUE(answered(3601s)) << "the other side says goodbye, too";
}

TEST(Nat, PortsOfManyInnerNodesDoNotMix) {
  Nat nat({.kind = NatKind::full_cone, .outside = outside}, 5);
  std::set<std::uint16_t> ports;
  for (Address i = 0; i < 500; ++i) {
    Bytes out = packet_of(Protocol::udp, {inner_node + i, 4000}, {server, 53});
    ASSERT_TRUE(nat.outbound(out, 0s));
    ports.insert(flow_of(out)->from.port);
    Bytes in = packet_of(Protocol::udp, {server, 53}, flow_of(out)->from);
    ASSERT_TRUE(nat.inbound(in, 0s));
    EXPECT_EQ(flow_of(in)->to.address, inner_node + i);
  }
  EXPECT_EQ(ports.size(), 500u);
}

TEST(Nat, PingsGoThrough) {
  Nat nat({.outside = outside}, 1);
  Bytes out = packet_of(Protocol::icmp, {inner_node, 77}, {server, 77});
  ASSERT_TRUE(nat.outbound(out, 0s));
  Bytes in = packet_of(Protocol::icmp, {server, flow_of(out)->from.port}, {outside, flow_of(out)->from.port});
  in[20] = std::byte{0};  // an answer
  EXPECT_TRUE(nat.inbound(in, 1s));
}

TEST(Network, DelaysOfBothEndsAddUp) {
  const Scenario wan = scenario(R"({"node":[{"name":"a","delay_ms":10},{"name":"b","delay_ms":30,"up":{"delay_ms":5}}]})");
  Network network(wan);
  const Endpoint a{wan.sites[0].address, 1}, b{wan.sites[1].address, 2};
  network.send(0, packet_of(Protocol::udp, a, b), 0ms);
  EXPECT_EQ(network.next(), Time(10ms));
  EXPECT_THAT(arrivals(network, 1s), ElementsAre(Arrival{1, 40}));
  network.send(1, packet_of(Protocol::udp, b, a), 100ms);
  EXPECT_THAT(arrivals(network, 1s), ElementsAre(Arrival{0, 115}));
  network.send(0, packet_of(Protocol::udp, a, {12345, 2}), 200ms);
  EXPECT_THAT(arrivals(network, 1s), ElementsAre());
  EXPECT_EQ(network.counters(0).unroutable, 1u);
}

TEST(Network, TwoNatsInARow) {
  const Scenario wan = scenario(R"({"nat":[{"name":"cgn","kind":"symmetric","delay_ms":20},{"name":"home","behind":"cgn","delay_ms":1}],
                                    "node":[{"name":"server"},{"name":"phone","behind":"home","delay_ms":3},{"name":"tv","behind":"home"}]})");
  Network network(wan);
  const Endpoint server_end{wan.sites[2].address, 9}, phone{wan.sites[3].address, 4000};
  network.send(3, packet_of(Protocol::udp, phone, server_end), 0ms);
  Endpoint seen;
  network.advance(1s, [&](std::size_t node, const Bytes& packet, Time due) {
    EXPECT_EQ(node, 2u);
    EXPECT_EQ(due, Time(24ms));
    seen = flow_of(packet)->from;
  });
  EXPECT_EQ(seen.address, wan.sites[0].address) << "the outermost NAT's";
  network.send(2, packet_of(Protocol::udp, server_end, seen), 1s);
  EXPECT_THAT(arrivals(network, 2s), ElementsAre(Arrival{3, 1024}));
  // Neighbours reach each other without the NAT.
  network.send(4, packet_of(Protocol::udp, {wan.sites[4].address, 1}, phone), 2s);
  EXPECT_THAT(arrivals(network, 3s), ElementsAre(Arrival{3, 2003}));
  // Nobody reaches the phone from outside unasked.
  network.send(2, packet_of(Protocol::udp, server_end, {seen.address, static_cast<std::uint16_t>(seen.port ^ 1)}), 3s);
  EXPECT_THAT(arrivals(network, 4s), ElementsAre());
  EXPECT_EQ(network.counters(0).refused, 1u);
}

TEST(Network, HairpinOnlyWhereItIsOn) {
  for (const bool on : {false, true}) {
    const Scenario wan = scenario(std::format(R"({{"nat":[{{"name":"n","kind":"full-cone","hairpin":{}}}],
                                    "node":[{{"name":"a","behind":"n"}},{{"name":"b","behind":"n"}},{{"name":"s"}}]}})",
                                              on));
    Network network(wan);
    const Endpoint a{wan.sites[1].address, 5000}, b{wan.sites[2].address, 6000}, s{wan.sites[3].address, 1};
    network.send(2, packet_of(Protocol::udp, b, s), 0ms);
    ASSERT_THAT(arrivals(network, 1ms), ElementsAre(Arrival{3, 0}));
    network.send(1, packet_of(Protocol::udp, a, {wan.sites[0].address, 6000}), 2ms);
    EXPECT_EQ(arrivals(network, 1s).size(), on ? 1u : 0u);
  }
}

/// The same seed gives the same history.
TEST(Network, HistoriesRepeat) {
  const auto history = [](int seed) {
    const Scenario wan =
        scenario(std::format(R"({{"seed":{},"defaults":{{"loss":0.2,"jitter_ms":9,"burst":3}},"node":[{{"name":"w","count":3}}]}})", seed));
    Network network(wan);
    for (int i = 0; i < 200; ++i)
      network.send(static_cast<std::size_t>(i % 3),
                   packet_of(Protocol::udp, {wan.sites[static_cast<std::size_t>(i % 3)].address, 1},
                             {wan.sites[static_cast<std::size_t>((i + 1) % 3)].address, 2}),
                   i * 1ms);
    return arrivals(network, 10s);
  };
  EXPECT_EQ(history(1), history(1));
  EXPECT_NE(history(1), history(2));
}

TEST(Scenario, MistakesAreNamed) {
  const auto error = [](const std::string& text) {
    const auto parsed = parse_scenario(text);
    return parsed ? std::string("none") : parsed.error().message;
  };
  EXPECT_THAT(error("x"), HasSubstr("not JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("is not a table"));
  EXPECT_THAT(error("{}"), HasSubstr("no [[node]]"));
  EXPECT_THAT(error(R"({"node":[{"name":"a","los":1}]})"), HasSubstr("node 1 has no member 'los'"));
  EXPECT_THAT(error(R"({"node":[{"name":"a","loss":1.5}]})"), HasSubstr("node 1.loss is not a number from 0 to 1"));
  EXPECT_THAT(error(R"({"node":[{"name":"a","up":{"delay_ms":"x"}}]})"), HasSubstr("node 1.up.delay_ms"));
  EXPECT_THAT(error(R"({"node":[{"name":"a"},{"name":"a"}]})"), HasSubstr("node 2.name 'a' is there already"));
  EXPECT_THAT(error(R"({"node":[{"name":"a b"}]})"), HasSubstr("letters"));
  EXPECT_THAT(error(R"({"node":[{"name":"a","behind":"n"}]})"), HasSubstr("names no [[nat]]"));
  EXPECT_THAT(error(R"({"nat":[{"name":"n","kind":"round"}],"node":[{"name":"a"}]})"), HasSubstr("'round'"));
  EXPECT_THAT(error(R"({"node":[{"name":"a","count":201}]})"), HasSubstr("count"));
  EXPECT_THAT(error(R"({"node":{"name":"a"}})"), HasSubstr("[[node]]"));
  EXPECT_THAT(error(R"({"defaults":{"nat":"x"},"node":[{"name":"a"}]})"), HasSubstr("[defaults] has no member 'nat'"));
  EXPECT_THAT(error(R"({"seed":[],"node":[{"name":"a"}]})"), HasSubstr("the file.seed is not a number"));
  EXPECT_THAT(error(R"({"node":[{"name":"a","count":null}]})"), HasSubstr("node 1.count is not a number"));
  EXPECT_THAT(error(R"({"nodes":[]})"), HasSubstr("'nodes'"));
}

}  // namespace
}  // namespace linkcpp::lab
