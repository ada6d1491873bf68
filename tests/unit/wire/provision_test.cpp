// Bodies of the frames by which a worker gets its experts.
#include "wire/provision.h"

#include "unit/wire/bodies.h"
#include "unit/wire/samples.h"

namespace linkcpp::wire {
namespace {

using testing::HasSubstr;

TEST(OfferMessage, HasTheSpecifiedBytes) {
  Offer offer{.budget = 0x0102030405060708, .share_port = 0x1BBF};
  offer.model.fill(0xDD);
  offer.stored = {{5, 3, {0b101}}};
  const std::uint8_t expected[] = {8,    7,    6,    5,    4,    3,    2,    1,    0xBF, 0x1B, 0xDD, 0xDD, 0xDD, 0xDD,
                                   0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD,
                                   0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD,
                                   1,    0,    5,    0,    3,    0,    5,    0,    0,    0,    0,    0,    0,    0};
  EXPECT_THAT(encoded(offer), are(expected));
}

TEST(OfferMessage, ComesBack) {
  const auto back = decode_offer(encoded(sample_offer()));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(encoded(*back), encoded(sample_offer()));
  EXPECT_EQ(back->budget, 8ull << 30);
  EXPECT_EQ(back->stored.size(), 2u);
}

TEST(AssignMessage, ComesBack) {
  const auto back = decode_assign(encoded(sample_assign()));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(encoded(*back), encoded(sample_assign()));
  EXPECT_EQ(back->sources[1].url, "https://example.org/modèle/");
  EXPECT_EQ(back->spare[1].layer, 7);
}

TEST(HoldsMessage, ComesBack) {
  const auto back = decode_holds(encoded(sample_holds()));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(encoded(*back), encoded(sample_holds()));
}

TEST(ProvisionMessages, MustHaveExactlyTheirLength) {
  expect_exact_length(encoded(sample_offer()), decode_offer);
  expect_exact_length(encoded(sample_assign()), decode_assign);
  expect_exact_length(encoded(sample_holds()), decode_holds);
}

TEST(AssignMessage, RefusesTooManySources) {
  Assign assign;
  Bytes body = encoded(assign);
  put_at<std::uint16_t>(body, body.size() - 2, max_sources + 1);
  EXPECT_THAT(refusal(decode_assign(body)), HasSubstr("257 sources"));
}

TEST(AssignMessage, RefusesAddressesThatSteerTerminals) {
  for (const std::string& url : {std::string(), std::string("http://a\x1b[2J"), std::string(max_url_bytes + 1, 'x')}) {
    Assign assign;
    assign.sources = {{url, {}}};
    EXPECT_THAT(refusal(decode_assign(encoded(assign))), HasSubstr("plain address"));
  }
}

TEST(AssignMessage, RefusesDisorder) {
  Assign assign;
  assign.spare = {{4, 1, {1}}, {3, 1, {1}}};
  EXPECT_THAT(refusal(decode_assign(encoded(assign))), HasSubstr("layer 3 is out of order"));
}

TEST(Holdings, AreUnited) {
  const std::vector<LayerHolding> a{{0, 4, {1}}, {2, 4, {8}}}, b{{0, 4, {2}}, {1, 4, {4}}};
  const auto both = united(a, b);
  ASSERT_EQ(both.size(), 3u);
  EXPECT_EQ(both[0].bits[0], 3u);
  EXPECT_EQ(both[1].bits[0], 4u);
  EXPECT_EQ(both[2].bits[0], 8u);
  EXPECT_EQ(both[0].count(), 2u);
}

}  // namespace
}  // namespace linkcpp::wire
