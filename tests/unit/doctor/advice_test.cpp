// What findings mean: what is broken and what is a hint, which way is chosen, and a backbone's account of any version.
#include "doctor/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "doctor/show.h"
#include "doctor/swarm_view.h"

namespace linkcpp::doctor {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr Nanoseconds far_from = 5ms;

auto says(Level level, const char* part) { return Contains(AllOf(Field(&Advice::level, level), Field(&Advice::text, HasSubstr(part)))); }

Way working(const char* transport, Nanoseconds time) {
  return {
      .address = std::string(transport) + "://192.0.2.1:7101", .transport = transport, .connected = time, .round_trip = time, .error = {}};
}
Way failing(const char* transport, ErrorKind kind, const char* why, std::optional<Nanoseconds> connected = std::nullopt) {
  return {.address = std::string(transport) + "://192.0.2.1:7101",
          .transport = transport,
          .connected = connected,
          .round_trip = {},
          .error = Error{kind, why}};
}
Destination destination(std::vector<Way> ways, const char* address = "192.0.2.1:7101") {
  return {.address = address, .any_transport = true, .global = true, .ways = std::move(ways)};
}
Examination behind(net::NatKind kind) {
  Examination findings;
  findings.families.push_back({.v6 = false, .nat = {.kind = kind, .asked = 2, .answered = 2}, .sights = {}});
  return findings;
}

TEST(AdviceTest, OneAddressOfATokenIsEnough) {
  Examination findings;
  findings.token = {destination({failing("tcp", ErrorKind::timeout, "no answer")}, "192.0.2.7:7101"),
                    destination({working("tcp", 30ms), working("quic", 30ms)})};
  const auto advice = advise(findings);
  EXPECT_FALSE(something_broken(advice));
  EXPECT_THAT(advice, says(Level::hint, "192.0.2.7:7101 does not work from here"));
  EXPECT_THAT(chosen_way(findings.token, far_from)->why, HasSubstr("before it"));
  findings.token.pop_back();
  EXPECT_TRUE(something_broken(advise(findings)));
  EXPECT_FALSE(chosen_way(findings.token, far_from));
}

TEST(AdviceTest, SomebodyWithAnotherKeyIsBrokenEvenThen) {
  Examination findings;
  findings.token = {destination({failing("tcp", ErrorKind::unauthorized, "its key is another", 1ms)}), destination({working("tcp", 1ms)})};
  const auto advice = advise(findings);
  EXPECT_EQ(advice.front().level, Level::broken) << "the worst comes first";
  EXPECT_THAT(advice, says(Level::broken, "not whom it should be"));
}

TEST(AdviceTest, PrivateAddressesAreNamedAsTheReason) {
  Examination findings;
  findings.token = {destination({failing("tcp", ErrorKind::timeout, "no answer")}, "192.168.1.9:7101")};
  findings.token[0].global = false;
  EXPECT_THAT(advise(findings), says(Level::broken, "only private addresses"));
  findings.token[0].global = true;
  EXPECT_THAT(advise(findings), Not(says(Level::broken, "only private addresses")));
}

TEST(AdviceTest, TheTransportIsChosenAsADialerDoes) {
  const auto choice = [](std::vector<Way> ways) { return chosen_way({destination(std::move(ways))}, far_from)->transport; };
  EXPECT_EQ(choice({working("tcp", 30ms), working("quic", 30ms)}), "quic");
  EXPECT_EQ(choice({working("tcp", 1ms), working("quic", 1ms)}), "tcp");
  EXPECT_EQ(choice({working("tcp", 30ms), failing("quic", ErrorKind::timeout, "no answer")}), "tcp");
  EXPECT_FALSE(chosen_way({destination({failing("tcp", ErrorKind::timeout, "no answer"), working("quic", 30ms)})}, far_from))
      << "without TCP's handshake a dialer does not try QUIC on an address without a scheme";
}

TEST(AdviceTest, BlockedUdpIsAHintAndSaidOnce) {
  auto findings = behind(net::NatKind::no_udp);
  findings.token = {destination({working("tcp", 30ms), failing("quic", ErrorKind::timeout, "no answer")})};
  const auto advice = advise(findings);
  EXPECT_FALSE(something_broken(advice));
  EXPECT_THAT(advice, says(Level::hint, "UDP does not get out"));
  EXPECT_THAT(advice, Not(says(Level::hint, "open the UDP port as well")));
  findings.families.clear();
  EXPECT_THAT(advise(findings), says(Level::hint, "open the UDP port as well"));
}

TEST(AdviceTest, NatsAreExplained) {
  EXPECT_THAT(advise(behind(net::NatKind::symmetric)), says(Level::hint, "symmetric"));
  EXPECT_THAT(advise(behind(net::NatKind::cone)), says(Level::good, "hole punching"));
  EXPECT_THAT(expectations(behind(net::NatKind::symmetric)), Contains(HasSubstr("symmetric NAT: not directly")));
  EXPECT_THAT(expectations(behind(net::NatKind::unknown)), IsEmpty());
  auto findings = behind(net::NatKind::cone);
  findings.router = RouterFinding{.protocol = "UPnP", .where = "192.168.1.1", .outside = {}, .error = {}};
  EXPECT_THAT(advise(findings), says(Level::good, "opens ports when asked"));
  findings.families[0].nat.carrier_grade = true;
  EXPECT_THAT(advise(findings), AllOf(says(Level::hint, "provider"), Not(says(Level::good, "opens ports when asked"))));
}

TEST(AdviceTest, RelaysMustBeThereAndLetIn) {
  Examination findings;
  findings.relays = {{.address = "relay://a:1", .connected = {}, .round_trip = {}, .error = Error{ErrorKind::unavailable, "refused"}}};
  EXPECT_THAT(advise(findings), says(Level::broken, "not reachable"));
  findings.relays[0].connected = 3ms;
  EXPECT_THAT(advise(findings), says(Level::broken, "does not let this node in"));
  findings.relays[0].error.reset();
  EXPECT_THAT(advise(findings), says(Level::hint, "without --token"));
  findings.relays[0].asked_in = true;
  EXPECT_THAT(advise(findings), says(Level::good, "lets this node in"));
}

TEST(SwarmViewTest, ReadsWhatIsThere) {
  SwarmFinding finding;
  read_swarm(nlohmann::json::parse(R"({
    "workers": [{"name": "w1", "state": "joined", "transport": "quic", "endpoint": "192.0.2.9:4",
                 "paths": [{"kind": "relay", "endpoint": "r", "rtt_ms": 50}, {"kind": "quic", "endpoint": "d", "rtt_ms": 20.5, "preferred": true}, 7],
                 "why": "punched"}, 3, {"name": "w2", "transport": 5, "paths": {"kind": 1}}],
    "account": {"workers": {"w1": {"rtt_us": 20500}}}, "coverage": {"missing": "L0: 3"}})"),
             finding);
  ASSERT_EQ(finding.workers.size(), 2u);
  EXPECT_EQ(finding.workers[0].rtt_ms, 20.5);
  ASSERT_EQ(finding.workers[0].paths.size(), 2u);
  EXPECT_TRUE(finding.workers[0].paths[1].preferred);
  EXPECT_EQ(finding.missing, "L0: 3");
  Examination findings;
  findings.swarm = finding;
  const auto advice = advise(findings);
  EXPECT_THAT(advice, says(Level::broken, "L0: 3"));
  EXPECT_THAT(to_text(findings, advice), AllOf(HasSubstr("* quic d, round trip 20.5 ms"), HasSubstr("punched")));
  EXPECT_EQ(to_json(findings, advice)["swarm"]["workers"][0]["paths"].size(), 2u);
}

TEST(SwarmViewTest, AnythingElseIsNoWorker) {
  for (const char* text : {"{}", "[]", "3", "null", R"({"workers": 3, "account": [], "coverage": "x"})", R"({"workers": {"a": {}}})"}) {
    SwarmFinding finding;
    read_swarm(nlohmann::json::parse(text), finding);
    EXPECT_THAT(finding.workers, IsEmpty()) << text;
  }
}

}  // namespace
}  // namespace linkcpp::doctor
