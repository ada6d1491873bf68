// STUN: the example of RFC 5769, both directions, and everything that is none.
#include "net/stun.h"

#include <gtest/gtest.h>

#include <boost/asio/ip/address.hpp>

namespace linkcpp::net {
namespace {

using boost::asio::ip::make_address;
using UdpAddress = boost::asio::ip::udp::endpoint;

Bytes bytes(std::initializer_list<int> values) {
  Bytes result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

const StunId id{0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae};

TEST(StunTest, ReadsTheAnswerOfTheStandardsExample) {
  // RFC 5769, 2.2, without the attributes behind the address: 192.0.2.1 port 32853.
  const Bytes answer = bytes({0x01, 0x01, 0x00, 0x1c, 0x21, 0x12, 0xa4, 0x42, 0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86,
                              0xfa, 0x87, 0xdf, 0xae, 0x80, 0x22, 0x00, 0x0b, 0x74, 0x65, 0x73, 0x74, 0x20, 0x76, 0x65, 0x63,
                              0x74, 0x6f, 0x72, 0x20, 0x00, 0x20, 0x00, 0x08, 0x00, 0x01, 0xa1, 0x47, 0xe1, 0x12, 0xa6, 0x43});
  const auto found = parse_stun_answer(answer, id);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, UdpAddress(make_address("192.0.2.1"), 32853));
}

TEST(StunTest, AnswersWhatItReads) {
  for (const char* address : {"203.0.113.77", "2001:db8:1234:5678:11:2233:4455:6677"}) {
    const UdpAddress from(make_address(address), 41234);
    const Bytes request = make_stun_request(id);
    ASSERT_EQ(parse_stun_request(request), id);
    const Bytes answer = make_stun_answer(id, from);
    EXPECT_LE(answer.size(), 3 * request.size());
    EXPECT_EQ(parse_stun_answer(answer, id).value(), from);
    EXPECT_FALSE(parse_stun_request(answer));
    EXPECT_FALSE(parse_stun_answer(request, id));
    StunId other = id;
    other[0] ^= 1;
    EXPECT_FALSE(parse_stun_answer(answer, other));
  }
}

TEST(StunTest, RefusesWhatIsCutOrTooLongOrDemandsMore) {
  const Bytes answer = make_stun_answer(id, UdpAddress(make_address("203.0.113.77"), 41234));
  for (std::size_t n = 0; n < answer.size(); ++n) EXPECT_FALSE(parse_stun_answer(ByteSpan(answer).first(n), id)) << n;
  Bytes longer = answer;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_stun_answer(longer, id));
  Bytes request = make_stun_request(id);
  request[3] = std::byte{4};
  EXPECT_FALSE(parse_stun_request(request)) << "an attribute that is not there";
  const Bytes demand = bytes({0x00, 0x03, 0x00, 0x00});
  request.insert(request.end(), demand.begin(), demand.end());
  EXPECT_FALSE(parse_stun_request(request)) << "an attribute that must be understood";
  request[20] = std::byte{0x80};
  EXPECT_TRUE(parse_stun_request(request)) << "one that need not be";
}

}  // namespace
}  // namespace linkcpp::net
