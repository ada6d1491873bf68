// Routes longer than their lines, filters, and changes while the network runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/control.h"
#include "support/lab_packets.h"

namespace linkcpp::lab {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Endpoint end_of(const Network& network, std::size_t site, std::uint16_t port) { return {network.site(site).address, port}; }

std::string done(Network& network, const std::string& request) {
  const auto answer = obey(network, request);
  return answer ? *answer : "error: " + answer.error().message;
}

TEST(Path, LongerInOneDirectionOnly) {
  Network network(
      scenario(R"({"nat":[{"name":"n"}],"node":[{"name":"a","delay_ms":10},{"name":"b","delay_ms":20},{"name":"in","behind":"n"}],
                               "path":[{"from":"a","to":"b","delay_ms":50},{"from":"n","to":"b","delay_ms":7}]})"));
  const Endpoint a = end_of(network, 1, 1), b = end_of(network, 2, 2);
  network.send(1, packet_of(Protocol::udp, a, b), 0ms);
  EXPECT_THAT(arrivals(network, 1s), ElementsAre(Arrival{2, 80}));
  network.send(2, packet_of(Protocol::udp, b, a), 1s);
  EXPECT_THAT(arrivals(network, 2s), ElementsAre(Arrival{1, 1030}));
  network.send(3, packet_of(Protocol::udp, end_of(network, 3, 3), b), 2s);
  EXPECT_THAT(arrivals(network, 3s), ElementsAre(Arrival{2, 2027})) << "what lies behind a NAT takes the NAT's path";
}

TEST(Path, ConnectsNeighbours) {
  const auto error = [](const std::string& path) {
    const auto parsed = parse_scenario(R"({"nat":[{"name":"n"}],"node":[{"name":"a"},{"name":"in","behind":"n"}],"path":[)" + path + "]}");
    return parsed ? std::string("none") : parsed.error().message;
  };
  EXPECT_EQ(error(R"({"from":"a","to":"n","delay_ms":1})"), "none");
  EXPECT_THAT(error(R"({"from":"a","to":"in","delay_ms":1})"), HasSubstr("name the NAT"));
  EXPECT_THAT(error(R"({"from":"a","to":"a","delay_ms":1})"), HasSubstr("two neighbours"));
  EXPECT_THAT(error(R"({"from":"x","to":"a"})"), HasSubstr("path 1.from names no node and no NAT: 'x'"));
  EXPECT_THAT(error(R"({"from":"a","to":"n","jitter_ms":1})"), HasSubstr("no member 'jitter_ms'"));
}

TEST(Filter, WithoutUdpOrWithFewPorts) {
  Network network(scenario(R"({"nat":[{"name":"office","only_ports":[80,443],"blocks_udp":true},{"name":"ports","only_ports":[443]}],
                               "node":[{"name":"s"},{"name":"in","behind":"office"},{"name":"out","blocks_udp":true},{"name":"p","behind":"ports"}]})"));
  constexpr std::size_t s = 2, in = 3, out = 4, p = 5;
  const auto gets_out = [&](std::size_t from, Protocol protocol, std::uint16_t port) {
    network.send(from, packet_of(protocol, end_of(network, from, 4000), end_of(network, s, port)), 0ms);
    return arrivals(network, 1s).size() == 1;
  };
  EXPECT_TRUE(gets_out(in, Protocol::tcp, 443));
  EXPECT_TRUE(gets_out(in, Protocol::tcp, 80));
  EXPECT_FALSE(gets_out(in, Protocol::tcp, 7101));
  EXPECT_FALSE(gets_out(in, Protocol::udp, 443));
  EXPECT_TRUE(gets_out(in, Protocol::icmp, 4000));
  EXPECT_EQ(network.counters(0).blocked, 2u) << "the NAT's filter counts them";
  EXPECT_TRUE(gets_out(out, Protocol::tcp, 7101));
  EXPECT_FALSE(gets_out(out, Protocol::udp, 53));
  EXPECT_TRUE(gets_out(p, Protocol::udp, 443)) << "ports alone do not block UDP";
  EXPECT_FALSE(gets_out(p, Protocol::udp, 53));
  network.send(s, packet_of(Protocol::udp, end_of(network, s, 1), end_of(network, out, 2)), 1s);
  EXPECT_THAT(arrivals(network, 2s), ElementsAre()) << "nor does it come in";
  EXPECT_THAT(parse_scenario(R"({"node":[{"name":"a","only_ports":[]}]})").error().message, HasSubstr("list of 1 to"));
  EXPECT_THAT(parse_scenario(R"({"node":[{"name":"a","only_ports":[0]}]})").error().message, HasSubstr("no port"));
  EXPECT_THAT(parse_scenario(R"({"node":[{"name":"a","only_ports":[70000]}]})").error().message, HasSubstr("no port"));
}

TEST(Changes, ALineGetsAnotherShape) {
  Network network(scenario(R"({"node":[{"name":"a","delay_ms":50,"up":{"loss":0.5}},{"name":"b"}]})"));
  EXPECT_THAT(done(network, R"({"do":"set","site":"a","lines":{"delay_ms":5,"up":{"loss":0}}})"), HasSubstr("\"name\":\"a\""));
  network.send(0, packet_of(Protocol::udp, end_of(network, 0, 1), end_of(network, 1, 2)), 0ms);
  EXPECT_THAT(arrivals(network, 1s), ElementsAre(Arrival{1, 5}));
  EXPECT_THAT(done(network, R"({"do":"set","site":"a","lines":{"rate_mbit":8}})"), HasSubstr("a"));
  EXPECT_EQ(network.site(0).up.delay, Time(5ms)) << "what is not named stays";
  EXPECT_EQ(network.site(0).down.bytes_per_second, 1e6);
}

TEST(Changes, ACutLineLosesAllUntilItIsMended) {
  Network network(scenario(R"({"nat":[{"name":"n"}],"node":[{"name":"a","behind":"n"},{"name":"b"}]})"));
  const auto passes = [&] {
    network.send(1, packet_of(Protocol::udp, end_of(network, 1, 1), end_of(network, 2, 2)), 0ms);
    return !arrivals(network, 1s).empty();
  };
  EXPECT_TRUE(passes());
  done(network, R"({"do":"cut","site":"n"})");
  EXPECT_FALSE(passes());
  EXPECT_EQ(network.counters(0).cut, 1u);
  done(network, R"({"do":"mend","site":"n"})");
  EXPECT_TRUE(passes());
}

TEST(Changes, APhoneMovesBehindAnotherNatAndOut) {
  Network network(scenario(R"({"nat":[{"name":"home"},{"name":"carrier","kind":"symmetric","delay_ms":30}],
                               "node":[{"name":"s"},{"name":"phone","behind":"home"},{"name":"tv","behind":"home"}]})"));
  constexpr std::size_t s = 2, phone = 3;
  const Endpoint server = end_of(network, s, 9), before = end_of(network, phone, 4000);
  const auto seen = [&] {
    network.send(phone, packet_of(Protocol::udp, end_of(network, phone, 4000), server), 0ms);
    Endpoint from;
    network.advance(1s, [&](std::size_t, const Bytes& packet, Time) { from = flow_of(packet)->from; });
    return from;
  };
  EXPECT_EQ(seen().address, network.site(0).address);
  EXPECT_THAT(done(network, R"({"do":"move","site":"phone","behind":"carrier","lines":{"delay_ms":3}})"),
              HasSubstr("\"behind\":\"carrier\""));
  const Endpoint now = seen();
  EXPECT_EQ(now.address, network.site(1).address);
  network.send(s, packet_of(Protocol::udp, server, now), 1s);
  EXPECT_THAT(arrivals(network, 2s), ElementsAre(Arrival{phone, 1033}));
  // The old place is empty: a neighbour of before does not reach it.
  network.send(4, packet_of(Protocol::udp, end_of(network, 4, 1), before), 2s);
  EXPECT_THAT(arrivals(network, 3s), ElementsAre());
  done(network, R"({"do":"move","site":"phone","behind":""})");
  EXPECT_EQ(seen(), end_of(network, phone, 4000)) << "public now";
  const Address then = network.site(phone).address;
  done(network, R"({"do":"move","site":"phone"})");
  EXPECT_NE(network.site(phone).address, then) << "another address at the same place";
}

TEST(Changes, ANatGetsAnotherAddressAndForgets) {
  Network network(scenario(R"({"nat":[{"name":"n","kind":"full-cone"}],"node":[{"name":"s"},{"name":"a","behind":"n"}]})"));
  const auto send_out = [&] {
    network.send(2, packet_of(Protocol::udp, end_of(network, 2, 4000), end_of(network, 1, 9)), 0ms);
    Endpoint from;
    network.advance(1s, [&](std::size_t, const Bytes& packet, Time) { from = flow_of(packet)->from; });
    return from;
  };
  const Endpoint before = send_out();
  done(network, R"({"do":"move","site":"n"})");
  for (const Endpoint to : {before, Endpoint{network.site(0).address, before.port}}) {
    network.send(1, packet_of(Protocol::udp, end_of(network, 1, 9), to), 1s);
    EXPECT_THAT(arrivals(network, 2s), ElementsAre());
  }
  EXPECT_EQ(send_out().address, network.site(0).address);
}

TEST(Changes, MistakesAreNamedAndChangeNothing) {
  Network network(scenario(R"({"nat":[{"name":"n"}],"node":[{"name":"a","delay_ms":1}]})"));
  EXPECT_THAT(done(network, "x"), HasSubstr("not JSON"));
  EXPECT_THAT(done(network, "[]"), HasSubstr("not a table"));
  EXPECT_THAT(done(network, R"({"do":"set","site":"b"})"), HasSubstr("no node or NAT 'b'"));
  EXPECT_THAT(done(network, R"({"do":"paint","site":"a"})"), HasSubstr("'paint' is none of"));
  EXPECT_THAT(done(network, R"({"do":"set","site":"a","lines":{"delay_ms":9,"los":1}})"), HasSubstr("a has no member 'los'"));
  EXPECT_THAT(done(network, R"({"do":"cut","site":"a","lines":{}})"), HasSubstr("no member 'lines'"));
  EXPECT_THAT(done(network, R"({"do":"move","site":"a","behind":"a"})"), HasSubstr("no NAT 'a'"));
  EXPECT_THAT(done(network, R"({"do":"move","site":"n","behind":""})"), HasSubstr("is a NAT"));
  EXPECT_EQ(network.site(1).up.delay, Time(1ms));
}

}  // namespace
}  // namespace linkcpp::lab
