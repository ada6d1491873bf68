// Hole punching through every pair of NAT kinds, in the lab's network with virtual time; and probes that are not genuine.
#include "net/punch.h"

#include <gtest/gtest.h>

#include <boost/asio/ip/address.hpp>
#include <cstring>

#include "lab/network.h"
#include "support/lab_packets.h"

namespace linkcpp::net {
namespace {

using namespace std::chrono_literals;
using UdpAddress = Puncher::Endpoint;
using Time = Puncher::Time;

PunchKey key_of(std::uint8_t fill) {
  PunchKey key;
  key.fill(fill);
  return key;
}

UdpAddress at(const lab::Endpoint& endpoint) { return {boost::asio::ip::make_address_v4(endpoint.address), endpoint.port}; }
lab::Endpoint at(const UdpAddress& endpoint) { return {endpoint.address().to_v4().to_uint(), endpoint.port()}; }

TEST(ProbeTest, OnlyTheSharedKeyMakesThem) {
  const Probe probe{Probe::Kind::answer, true, 0x1122334455667788, 99};
  const Bytes bytes = encode_probe(probe, key_of(1));
  ASSERT_EQ(bytes.size(), probe_bytes);
  EXPECT_EQ(decode_probe(bytes, key_of(1)), probe);
  EXPECT_EQ(probe_key_name(bytes), punch_key_name(key_of(1)));
  EXPECT_FALSE(decode_probe(bytes, key_of(2)));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes damaged = bytes;
    damaged[i] ^= std::byte{4};
    EXPECT_FALSE(decode_probe(damaged, key_of(1))) << i;
    EXPECT_FALSE(decode_probe(ByteSpan(bytes).first(i), key_of(1))) << i;
  }
  EXPECT_EQ(std::to_integer<unsigned>(bytes[0]) & 0x40U, 0u) << "must not look like QUIC";
}

TEST(ProbeTest, OwnProbesThatComeBackAreNotBelieved) {
  Puncher puncher(key_of(1), true, 5, 0s);
  const UdpAddress peer(boost::asio::ip::make_address("192.0.2.1"), 5000);
  puncher.add(peer, 0s);
  for (const auto& send : puncher.due(0s)) EXPECT_FALSE(puncher.received(send.datagram, peer, 1ms));
  EXPECT_TRUE(puncher.found().empty());
}

TEST(ProbeTest, AnAnswerCountsOnlyFromWhereItWasAsked) {
  Puncher dialer(key_of(1), true, 5, 0s), other(key_of(1), false, 6, 0s);
  const UdpAddress peer(boost::asio::ip::make_address("192.0.2.1"), 5000), elsewhere(boost::asio::ip::make_address("192.0.2.9"), 5000);
  dialer.add(peer, 0s);
  for (const auto& send : dialer.due(0s)) other.received(send.datagram, UdpAddress(boost::asio::ip::make_address("192.0.2.2"), 1), 40ms);
  for (const auto& send : other.due(40ms)) EXPECT_TRUE(dialer.received(send.datagram, elsewhere, 80ms));
  EXPECT_TRUE(dialer.found().empty()) << "somebody repeated it from another address";
}

TEST(ProbeTest, AFloodOfAddressesIsBounded) {
  Puncher puncher(key_of(1), true, 5, 0s);
  Puncher other(key_of(1), false, 6, 0s);
  const UdpAddress peer(boost::asio::ip::make_address("192.0.2.1"), 5000);
  other.add(peer, 0s);
  const auto question = other.due(0s).front().datagram;
  for (std::uint16_t port = 1; port < 5000; ++port) {
    puncher.received(question, UdpAddress(boost::asio::ip::make_address("192.0.2.7"), port), 1ms);
  }
  EXPECT_LE(puncher.asked(), 24u);
  EXPECT_LE(puncher.due(1ms).size(), 24u + 64u);
}

enum class Kind { open, full, address, port, symmetric };

/// Two nodes, each behind its NAT (or not), and a server that both know.
class Matrix {
 public:
  Matrix(Kind a, Kind b, double loss) {
    lab::Scenario scenario;
    scenario.seed = 3;
    add_node(scenario, "server", std::nullopt);
    for (const Kind kind : {a, b}) {
      lab::Realm behind;
      if (kind != Kind::open) {
        lab::Site nat;
        nat.name = "nat" + std::to_string(scenario.sites.size());
        nat.address = lab::address_of(std::nullopt, scenario.sites.size());
        nat.up.delay = nat.down.delay = 20ms;
        nat.up.loss = nat.down.loss = loss;
        nat.nat = lab::NatShape{.kind = static_cast<lab::NatKind>(static_cast<int>(kind) - 1), .outside = nat.address};
        behind = scenario.sites.size();
        scenario.sites.push_back(nat);
      }
      nodes_.push_back(scenario.sites.size());
      add_node(scenario, "node" + std::to_string(scenario.sites.size()), behind);
    }
    network_ = std::make_unique<lab::Network>(scenario);
  }

  /// When both have found a way, none if they do not within five seconds. The second begins 40 ms after the first, as news take to travel.
  std::optional<Time> punch() {
    std::array<UdpAddress, 2> seen{ask_server(0), ask_server(1)};
    const Time begin = now_;
    std::array<Puncher, 2> punchers{Puncher(key_of(7), true, 11, now_), Puncher(key_of(7), false, 12, now_ + 40ms)};
    for (const UdpAddress& at : {seen[1], local(1)}) punchers[0].add(at, now_);
    bool second_started = false;
    std::array<bool, 2> found{};
    for (; now_ < begin + 6s; now_ += 1ms) {
      if (!second_started && now_ >= begin + 40ms) {
        for (const UdpAddress& at : {seen[0], local(0)}) punchers[1].add(at, now_);
        second_started = true;
      }
      for (std::size_t i = 0; i < 2; ++i) {
        for (const auto& send : punchers[i].due(now_)) transmit(i, send.to, send.datagram);
        found[i] = found[i] || !punchers[i].found().empty();
      }
      network_->advance(now_, [&](std::size_t node, const Bytes& packet, lab::Time) {
        const auto flow = lab::flow_of(packet);
        for (std::size_t i = 0; i < 2; ++i) {
          if (node == nodes_[i] && flow->to.port == 7000) punchers[i].received(ByteSpan(packet).subspan(28), at(flow->from), now_);
        }
      });
      if (found[0] && found[1]) return now_ - begin;
    }
    return std::nullopt;
  }

 private:
  static void add_node(lab::Scenario& scenario, const std::string& name, lab::Realm behind) {
    lab::Site site;
    site.name = name;
    site.behind = behind;
    site.address = behind ? lab::address_of(behind, 2) : lab::address_of(std::nullopt, 100 + scenario.sites.size());
    if (!behind) site.up.delay = site.down.delay = 20ms;
    scenario.sites.push_back(site);
  }
  [[nodiscard]] UdpAddress local(std::size_t i) const { return at(lab::Endpoint{network_->site(nodes_[i]).address, 7000}); }
  void transmit(std::size_t i, const UdpAddress& to, const Bytes& payload) {
    Bytes packet = lab::packet_of(lab::Protocol::udp, at(local(i)), at(to), payload.size());
    std::memcpy(packet.data() + 28, payload.data(), payload.size());
    network_->send(nodes_[i], std::move(packet), now_);
  }
  /// How the server sees the node.
  UdpAddress ask_server(std::size_t i) {
    const lab::Endpoint server{network_->site(0).address, 3478};
    std::optional<UdpAddress> seen;
    for (int tries = 0; !seen && tries < 20; ++tries) {
      transmit(i, at(server), Bytes(20));
      for (const Time until = now_ + 200ms; now_ < until; now_ += 1ms) {
        network_->advance(now_, [&](std::size_t node, const Bytes& packet, lab::Time) {
          if (node == 0) seen = at(lab::flow_of(packet)->from);
        });
      }
    }
    return seen.value();
  }

  std::vector<std::size_t> nodes_;
  std::unique_ptr<lab::Network> network_;
  Time now_{0};
};

TEST(PunchTest, EveryPairOfNatsIsPassedAsTheoryAllows) {
  const std::array kinds{Kind::open, Kind::full, Kind::address, Kind::port, Kind::symmetric};
  for (const Kind a : kinds) {
    for (const Kind b : kinds) {
      const auto hard = [](Kind one, Kind other) { return one == Kind::symmetric && (other == Kind::symmetric || other == Kind::port); };
      const auto took = Matrix(a, b, 0).punch();
      const std::string pair = std::to_string(static_cast<int>(a)) + " with " + std::to_string(static_cast<int>(b));
      EXPECT_EQ(took.has_value(), !hard(a, b) && !hard(b, a)) << pair;
      EXPECT_LE(took.value_or(0s), 40ms + 3 * 80ms) << pair;
    }
  }
}

TEST(PunchTest, LossDelaysButDoesNotPrevent) {
  for (const double loss : {0.1, 0.3}) {
    const auto took = Matrix(Kind::port, Kind::port, loss).punch();
    ASSERT_TRUE(took);
    EXPECT_LE(*took, 3s);
  }
}

}  // namespace
}  // namespace linkcpp::net
