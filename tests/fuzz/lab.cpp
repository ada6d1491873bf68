// Fuzzes what the lab reads: packets of any bytes through NATs of each kind, scenarios, and changes.
#include <array>

#include "lab/control.h"
#include "lab/network.h"
#include "require.h"

using linkcpp::Bytes;
using linkcpp::ByteSpan;
using linkcpp::fuzz::require;
using namespace linkcpp::lab;

namespace {

constexpr Address outside = 0xC6120002;

void through_nats(ByteSpan bytes) {
  for (const NatKind kind : {NatKind::full_cone, NatKind::address_restricted, NatKind::port_restricted, NatKind::symmetric}) {
    Nat nat({.kind = kind, .outside = outside}, 1);
    Bytes packet(bytes.begin(), bytes.end());
    const auto before = flow_of(packet);
    const bool out = nat.outbound(packet, Time{});
    require(out == before.has_value(), "what has a flow leaves, and nothing else");
    require(packet.size() == bytes.size(), "a packet keeps its length");
    if (!out) continue;
    const auto after = flow_of(packet);
    require(after && after->from.address == outside, "it leaves with the outside address");
    require(before->protocol == Protocol::icmp || after->to == before->to, "its destination stays");
    // Its own answer, made by exchanging the ends, comes back to where it left.
    Bytes answer = packet;
    set_source(answer, after->to);
    set_destination(answer, after->from);
    if (before->protocol == Protocol::icmp) return;
    require(nat.inbound(answer, Time{1}), "the answer is let in");
    require(flow_of(answer)->to == before->from, "it comes to the one who asked");
  }
}

void through_a_network(const Scenario& scenario, ByteSpan packet) {
  Network network(scenario);
  for (std::size_t i = 0; i < scenario.sites.size(); ++i) {
    if (!scenario.sites[i].nat) network.send(i, Bytes(packet.begin(), packet.end()), Time{});
  }
  for (int i = 0; i < 1000 && network.next(); ++i) {
    network.advance(*network.next(),
                    [&](std::size_t node, const Bytes&, Time) { require(!scenario.sites[node].nat, "packets come to nodes"); });
  }
}

/// Requests of any text: obeyed or refused with a reason; the network goes on.
void change_a_network(std::string_view request) {
  Network network(*parse_scenario(R"({"nat":[{"name":"n"}],"node":[{"name":"a","behind":"n","ipv6":true},{"name":"b"}]})"));
  const auto done = obey(network, request);
  require(done || !done.error().message.empty(), "a refusal has a reason");
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const linkcpp::fuzz::SeedFolder seeds;
  const std::string_view text =
      R"({"seed":1,"nat":[{"name":"n","kind":"symmetric","hairpin":true}],"node":[{"name":"a","behind":"n"},{"name":"b","up":{"loss":0.1}}]})";
  const auto bytes = std::as_bytes(std::span(text));
  seeds.add("scenario", {bytes.begin(), bytes.end()});
  const std::string_view change = R"({"do":"move","site":"a","behind":"","lines":{"delay_ms":1}})";
  const auto change_bytes = std::as_bytes(std::span(change));
  seeds.add("change", {change_bytes.begin(), change_bytes.end()});
  Bytes udp(32);
  udp[0] = std::byte{0x45}, udp[3] = std::byte{32}, udp[9] = std::byte{17}, udp[12] = std::byte{10}, udp[16] = std::byte{198};
  seeds.add("udp", udp);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteSpan bytes = std::as_bytes(std::span(data, size));
  through_nats(bytes);
  change_a_network({reinterpret_cast<const char*>(data), size});
  const auto scenario = parse_scenario({reinterpret_cast<const char*>(data), size});
  if (!scenario) {
    require(!scenario.error().message.empty(), "an error has a message");
    return 0;
  }
  require(scenario->sites.size() <= 200, "scenarios are bounded");
  through_a_network(*scenario, bytes.first(std::min<std::size_t>(size, 64)));
  return 0;
}
