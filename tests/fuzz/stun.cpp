// Fuzzes STUN: any datagram is read without harm, what is taken for a request is answered within bounds, and answers are read back.
#include "net/stun.h"

#include <boost/asio/ip/address.hpp>
#include <cstdint>

#include "fuzz/require.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace linkcpp;
  const fuzz::SeedFolder seeds;
  const net::StunId id{};
  seeds.add("request", net::make_stun_request(id));
  seeds.add("answer", net::make_stun_answer(id, {boost::asio::ip::make_address("203.0.113.7"), 41234}));
  seeds.add("answer6", net::make_stun_answer(id, {boost::asio::ip::make_address("2001:db8::7"), 41234}));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp;
  using fuzz::require;
  const ByteSpan datagram = std::as_bytes(std::span(data, size));
  if (const auto id = net::parse_stun_request(datagram)) {
    require(net::is_stun(datagram), "a request is STUN");
    for (const char* address : {"203.0.113.7", "2001:db8::7"}) {
      const boost::asio::ip::udp::endpoint from(boost::asio::ip::make_address(address), 41234);
      const Bytes answer = net::make_stun_answer(*id, from);
      require(answer.size() <= 3 * datagram.size(), "an answer is never more than three times the request");
      require(net::parse_stun_answer(answer, *id) == from, "an answer is read back");
    }
  }
  net::StunId id{};
  if (size >= 20) std::copy(data + 8, data + 20, id.begin());
  const auto found = net::parse_stun_answer(datagram, id);
  if (found) {
    require(found->port() != 0, "an address has a port");
  } else {
    require(!found.error().message.empty(), "an error has a message");
  }
  return 0;
}
