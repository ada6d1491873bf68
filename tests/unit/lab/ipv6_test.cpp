// The second address family: routed through NATs, never translated, and kept out by their firewalls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/lab_packets.h"

namespace linkcpp::lab {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

Endpoint6 end6_of(const Network& network, std::size_t site, std::uint16_t port) { return {network.site(site).address6.value(), port}; }

TEST(Packet6, NoFlowInDamagedPackets) {
  const Endpoint6 from{{0x20, 1}, 1000}, to{{0x20, 2}, 53};
  for (const Protocol protocol : {Protocol::udp, Protocol::tcp, Protocol::icmp}) {
    const Bytes packet = packet6_of(protocol, from, to);
    ASSERT_TRUE(flow6_of(packet));
    EXPECT_EQ(flow6_of(packet)->from.address, from.address);
    EXPECT_FALSE(flow_of(packet));
    for (std::size_t n = 0; n < packet.size(); ++n) EXPECT_FALSE(flow6_of(ByteSpan(packet).first(n))) << n;
  }
  EXPECT_EQ(text_of(address6_of({}, 0)), "2001:2::2");
}

TEST(Network6, NeighboursAndTheWayThroughNats) {
  Network network(scenario(R"({"nat":[{"name":"cgn","delay_ms":20},{"name":"home","behind":"cgn","delay_ms":1,"ipv6_firewall":false}],
                               "node":[{"name":"s","ipv6":true,"delay_ms":5},{"name":"a","behind":"home","ipv6":true},
                                       {"name":"b","behind":"home","ipv6":true},{"name":"c","behind":"cgn","ipv6":true},{"name":"four"}]})"));
  constexpr std::size_t s = 2, a = 3, b = 4, c = 5;
  const auto sent = [&](std::size_t from, std::size_t to, Time at) {
    network.send(from, packet6_of(Protocol::udp, end6_of(network, from, 1), end6_of(network, to, 2)), at);
    return arrivals(network, at + 1s);
  };
  EXPECT_THAT(sent(a, b, 0s), ElementsAre(Arrival{b, 0})) << "behind one router";
  EXPECT_THAT(sent(a, c, 1s), ElementsAre(Arrival{c, 1001})) << "out of one, not out of the other";
  EXPECT_THAT(sent(c, a, 2s), ElementsAre(Arrival{a, 2001})) << "no firewall there";
  EXPECT_THAT(sent(a, s, 3s), ElementsAre(Arrival{s, 3026}));
  EXPECT_THAT(sent(s, b, 4s), ElementsAre()) << "the outer one has a firewall, and nobody asked";
  EXPECT_EQ(network.counters(0).refused, 1u);
  Bytes answer = packet6_of(Protocol::udp, end6_of(network, s, 2), end6_of(network, a, 1));
  network.send(s, answer, 5s);
  EXPECT_THAT(arrivals(network, 6s), ElementsAre(Arrival{a, 5026}));
  network.send(s, packet6_of(Protocol::udp, end6_of(network, s, 3), end6_of(network, a, 1)), 6s);
  EXPECT_THAT(arrivals(network, 7s), ElementsAre()) << "from another port";
  network.send(s, answer, 200s);
  EXPECT_THAT(arrivals(network, 201s), ElementsAre()) << "too late";
  network.send(s, packet6_of(Protocol::udp, end6_of(network, s, 1), {{0x20, 9}, 2}), 300s);
  EXPECT_THAT(arrivals(network, 301s), ElementsAre());
  EXPECT_EQ(network.counters(s).unroutable, 1u);
}

TEST(Network6, AddressesMoveToo) {
  Network network(scenario(R"({"nat":[{"name":"n"}],"node":[{"name":"s","ipv6":true},{"name":"a","ipv6":true}]})"));
  const Endpoint6 before = end6_of(network, 2, 1);
  network.move(2, 0);
  EXPECT_NE(network.site(2).address6, before.address);
  network.send(1, packet6_of(Protocol::tcp, end6_of(network, 1, 1), before), 0s);
  EXPECT_THAT(arrivals(network, 1s), ElementsAre());
  network.send(2, packet6_of(Protocol::tcp, end6_of(network, 2, 1), end6_of(network, 1, 2)), 1s);
  EXPECT_THAT(arrivals(network, 2s), ElementsAre(Arrival{1, 1000}));
}

}  // namespace
}  // namespace linkcpp::lab
