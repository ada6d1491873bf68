// Bodies of frames: exact layouts, round trips, and a refusal for each way to be wrong.
#include "wire/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/wire/bodies.h"
#include "unit/wire/samples.h"

namespace linkcpp::wire {
namespace {

using testing::HasSubstr;

// ---- names and digests ---------------------------------------------------------------------------------------------

TEST(CombineModes, HaveNames) {
  for (const CombineMode mode : {CombineMode::raw, CombineMode::sum}) EXPECT_EQ(parse_combine_mode(to_string(mode)), mode);
  EXPECT_FALSE(parse_combine_mode("Raw").has_value());
}

TEST(Digests, AreHexadecimal) {
  Digest digest{};
  digest[0] = 0x01;
  digest[31] = 0xEF;
  const std::string text = to_hex(digest);
  EXPECT_EQ(text, "01" + std::string(60, '0') + "ef");
  EXPECT_EQ(digest_from_hex(text), digest);
  EXPECT_EQ(digest_from_hex("01" + std::string(60, '0') + "EF"), digest);
  EXPECT_THAT(refusal(digest_from_hex(text.substr(1))), HasSubstr("64 hexadecimal digits, got 63"));
  EXPECT_THAT(refusal(digest_from_hex(text.substr(2) + "0g")), HasSubstr("hexadecimal"));
  EXPECT_THAT(refusal(digest_from_hex(std::string(64, '\xFF'))), HasSubstr("hexadecimal"));
}

// ---- hello ---------------------------------------------------------------------------------------------------------

TEST(HelloMessage, HasTheSpecifiedBytes) {
  Hello hello;
  hello.engine = "g";
  hello.name = "";
  hello.device = "CPU";
  hello.n_threads = 0x0102;
  hello.row_types = 3;
  hello.model.fill(0xDD);
  hello.holdings = {{5, 3, {0b101}}};
  const std::uint8_t expected[] = {1,    0,    'g',  0,    0,    3,    0,    'C',  'P',  'U',  2,    1,    3,    0,    0,    0,  //
                                   0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD,
                                   0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD, 0xDD,
                                   1,    0,    5,    0,    3,    0,    5,    0,    0,    0,    0,    0,    0,    0};
  EXPECT_THAT(encoded(hello), are(expected));
}

TEST(HelloMessage, ComesBack) {
  const Hello hello = sample_hello();
  const auto back = decode_hello(encoded(hello));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(encoded(*back), encoded(hello));
  EXPECT_EQ(back->name, "Büro 2");
  EXPECT_EQ(back->model, hello.model);
  ASSERT_EQ(back->holdings.size(), 3u);
  EXPECT_TRUE(back->holdings[0].has(15));
  EXPECT_FALSE(back->holdings[0].has(16));
  EXPECT_TRUE(back->holdings[0].has(69));
  EXPECT_FALSE(back->holdings[0].has(70));
  EXPECT_TRUE(back->holdings[1].has(63));
  EXPECT_FALSE(back->holdings[1].has(64));
  EXPECT_EQ(back->holdings[2].layer, 0x8003);
}

TEST(HelloMessage, MustHaveExactlyItsLength) { expect_exact_length(encoded(sample_hello()), decode_hello); }

TEST(HelloMessage, TakesTheLargestWorker) {
  Hello hello;
  for (std::size_t i = 0; i < max_holdings; ++i) {
    hello.holdings.push_back({static_cast<std::uint16_t>(i), max_experts, std::vector<std::uint64_t>(max_experts / 64, ~std::uint64_t{0})});
  }
  EXPECT_TRUE(decode_hello(encoded(hello)).has_value());
}

TEST(HelloMessage, RefusesWhatIsBeyondTheLimits) {
  Bytes too_many = encoded(Hello{});
  put_at<std::uint16_t>(too_many, too_many.size() - 2, 0xFFFF);
  EXPECT_THAT(refusal(decode_hello(too_many)), HasSubstr("65535 layers"));

  for (const int n_expert : {0, 4097, 65535}) {
    Hello hello;
    hello.holdings = {{2, static_cast<std::uint16_t>(n_expert), {}}};
    EXPECT_THAT(refusal(decode_hello(encoded(hello))), HasSubstr(std::format("layer 2 has {} experts", n_expert)));
  }

  Bytes long_text;
  ByteWriter(long_text).text(std::string(257, 'x'));
  const Bytes rest = encoded(Hello{});
  long_text.insert(long_text.end(), rest.begin() + 2, rest.end());
  EXPECT_THAT(refusal(decode_hello(long_text)), HasSubstr("257 bytes"));
}

TEST(HelloMessage, RefusesHoldingsThatMakeNoSense) {
  Hello beyond;
  beyond.holdings = {{4, 3, {0b1000}}};
  EXPECT_THAT(refusal(decode_hello(encoded(beyond))), HasSubstr("layer 4 marks experts beyond its 3"));
  Hello twice;
  twice.holdings = {{4, 1, {1}}, {4, 1, {1}}};
  EXPECT_THAT(refusal(decode_hello(encoded(twice))), HasSubstr("layer 4 is out of order"));
  Hello descending;
  descending.holdings = {{4, 1, {1}}, {3, 1, {1}}};
  EXPECT_THAT(refusal(decode_hello(encoded(descending))), HasSubstr("layer 3 is out of order"));
}

TEST(HelloMessage, RefusesTextsThatSteerATerminal) {
  Bytes body = encoded(sample_hello());
  body[3] = std::byte{0x1B};
  EXPECT_THAT(refusal(decode_hello(body)), HasSubstr("not plain UTF-8"));
}

TEST(HelloMessage, EncoderKeepsItsOwnLimits) {
  Hello hello = sample_hello();
  hello.name = "line\nbreak" + std::string(300, 'x');
  hello.holdings[0].bits.resize(1);     // too few words: zeros
  hello.holdings[1].bits.push_back(7);  // too many: cut
  const auto back = decode_hello(encoded(hello));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->name, "line?break" + std::string(246, 'x'));
  EXPECT_EQ(back->holdings[0].bits, (std::vector<std::uint64_t>{0xFFFF, 0}));
  EXPECT_EQ(back->holdings[1].bits.size(), 1u);
}

// ---- refuse, failed ------------------------------------------------------------------------------------------------

TEST(Reasons, HaveTheSpecifiedBytes) {
  const std::uint8_t expected[] = {2, 3, 0, 'w', 'h', 'y'};
  EXPECT_THAT(encoded(Refuse{ErrorKind::unauthorized, "why"}), are(expected));
  EXPECT_THAT(encoded(Failed{ErrorKind::unauthorized, "why"}), are(expected));
}

TEST(Reasons, ComeBackWithEveryKind) {
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::internal); ++kind) {
    const auto refuse = decode_refuse(encoded(Refuse{static_cast<ErrorKind>(kind), "because"}));
    ASSERT_TRUE(refuse.has_value());
    EXPECT_EQ(static_cast<int>(refuse->kind), kind);
    EXPECT_EQ(refuse->reason, "because");
    const auto failed = decode_failed(encoded(Failed{static_cast<ErrorKind>(kind), ""}));
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(static_cast<int>(failed->kind), kind);
  }
}

TEST(Reasons, MustHaveExactlyTheirLength) {
  const Bytes body = encoded(Refuse{ErrorKind::io, "because"});
  expect_exact_length(body, decode_refuse);
  expect_exact_length(body, decode_failed);
}

TEST(Reasons, RefuseUnknownKinds) {
  const Bytes body{std::byte{8}, {}, {}};
  EXPECT_THAT(refusal(decode_refuse(body)), HasSubstr("malformed refusal: error kind 8"));
  EXPECT_THAT(refusal(decode_failed(body)), HasSubstr("malformed failure: error kind 8"));
}

TEST(Reasons, AreMadePlainOnBothWays) {
  EXPECT_EQ(decode_failed(encoded(Failed{ErrorKind::io, "a\x1B[2Jb"}))->reason, "a?[2Jb");
  Bytes by_hand{std::byte{0}};
  ByteWriter(by_hand).text("\r" + std::string(2000, 'z') + "\xFF");
  const auto failed = decode_failed(by_hand);
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->reason, "?" + std::string(1023, 'z'));
}

// ---- dispatch ------------------------------------------------------------------------------------------------------

TEST(DispatchMessage, HasTheSpecifiedBytes) {
  Dispatch dispatch = sample_dispatch();
  const Bytes rows(2, std::byte{0x99});
  dispatch.rows = rows;
  const std::uint8_t expected[] = {7, 0x80, 1, 1, 8, 7, 6, 5, 4,    3,    2, 1, 3, 0, 0,    0,   4,
                                   0, 0,    0, 1, 2, 1, 5, 0, 0x34, 0x12, 2, 0, 5, 0, 0x99, 0x99};
  EXPECT_THAT(encoded(dispatch), are(expected));
  EXPECT_EQ(dispatch_header_bytes, 20u);
}

TEST(DispatchMessage, ComesBackWithItsRows) {
  Dispatch dispatch = sample_dispatch();
  const Bytes rows(33, std::byte{0x42});
  dispatch.rows = rows;
  const Bytes body = encoded(dispatch);
  const auto back = decode_dispatch(body);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->layer, dispatch.layer);
  EXPECT_EQ(back->mode, CombineMode::sum);
  EXPECT_EQ(back->row_type, RowType::f16);
  EXPECT_EQ(back->program, dispatch.program);
  EXPECT_EQ(back->n_tokens, 3u);
  ASSERT_EQ(back->pairs.size(), 4u);
  for (std::size_t p = 0; p < 4; ++p) {
    EXPECT_EQ(back->pairs[p].token, dispatch.pairs[p].token);
    EXPECT_EQ(back->pairs[p].expert, dispatch.pairs[p].expert);
  }
  EXPECT_EQ(back->rows.data(), body.data() + body.size() - 33) << "rows are not copied";
  EXPECT_EQ(back->rows.size(), 33u);
}

TEST(DispatchMessage, RefusesEveryBeginningOfItsHeader) {
  const Bytes body = encoded(sample_dispatch());
  ASSERT_TRUE(decode_dispatch(body).has_value());
  for (std::size_t n = 0; n < body.size(); ++n) EXPECT_FALSE(decode_dispatch(ByteSpan(body).first(n)).has_value()) << n;
}

TEST(DispatchMessage, RefusesUnknownModesAndTypes) {
  Bytes body = encoded(sample_dispatch());
  body[2] = std::byte{2};
  EXPECT_THAT(refusal(decode_dispatch(body)), HasSubstr("combine mode 2"));
  body[2] = std::byte{0};
  body[3] = std::byte{row_type_count};
  EXPECT_THAT(refusal(decode_dispatch(body)), HasSubstr("row type 4"));
}

TEST(DispatchMessage, RefusesCountsOutOfRangeBeforeAllocating) {
  Bytes body = encoded(sample_dispatch());
  for (const std::uint32_t n : {0u, max_dispatch_tokens + 1, UINT32_MAX}) {
    put_at(body, 12, n);
    EXPECT_THAT(refusal(decode_dispatch(body)), HasSubstr(std::format("it has {} tokens", n)));
  }
  put_at<std::uint32_t>(body, 12, 3);
  for (const std::uint32_t n : {0u, max_dispatch_pairs + 1, UINT32_MAX}) {
    put_at(body, 16, n);
    EXPECT_THAT(refusal(decode_dispatch(body)), HasSubstr(std::format("it has {} pairs", n)));
  }
  put_at(body, 16, max_dispatch_pairs);  // allowed, but not there
  EXPECT_THAT(refusal(decode_dispatch(body)), HasSubstr("cut short"));
}

TEST(DispatchMessage, RefusesCountsThatDoNotAddUp) {
  Bytes body = encoded(sample_dispatch());
  body.resize(body.size() + 100);
  put_at<std::uint32_t>(body, 16, 5);
  EXPECT_THAT(refusal(decode_dispatch(body)), HasSubstr("do not add up to 5"));
  put_at<std::uint32_t>(body, 16, 4);
  body[20] = std::byte{0};  // the sum is right again, but the first token has no pair
  body[21] = std::byte{3};
  EXPECT_THAT(refusal(decode_dispatch(body)), HasSubstr("a token has none"));
}

TEST(DispatchMessage, CarriesTheMostPairsOfAToken) {
  Dispatch dispatch = sample_dispatch();
  dispatch.n_tokens = 2;
  dispatch.pairs.clear();
  for (std::uint16_t e = 0; e < max_token_pairs; ++e) dispatch.pairs.push_back({0, e});
  dispatch.pairs.push_back({1, 9});
  const auto back = decode_dispatch(encoded(dispatch));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->pairs[254].token, 0u);
  EXPECT_EQ(back->pairs[254].expert, 254);
  EXPECT_EQ(back->pairs[255].token, 1u);
}

// ---- combine -------------------------------------------------------------------------------------------------------

Combine sample_combine(ByteSpan rows) {
  return {.mode = CombineMode::sum, .row_type = RowType::f16, .compute_us = 0x01020304, .queue_us = 9, .n_rows = 2, .n = 3, .rows = rows};
}

TEST(CombineMessage, HasTheSpecifiedBytes) {
  const std::uint8_t expected[] = {1, 1, 0, 0, 4,    3,    2,    1,    9,    0,    0,    0,    2,    0,    0,    0,
                                   3, 0, 0, 0, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB, 0xAB};
  const Bytes rows(12, std::byte{0xAB});
  EXPECT_THAT(encoded(sample_combine(rows)), are(expected));
  EXPECT_EQ(combine_header_bytes, 20u);
}

TEST(CombineMessage, ComesBack) {
  const Bytes rows(12, std::byte{0xAB});
  const Bytes body = encoded(sample_combine(rows));
  const auto back = decode_combine(body);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->mode, CombineMode::sum);
  EXPECT_EQ(back->row_type, RowType::f16);
  EXPECT_EQ(back->compute_us, 0x01020304u);
  EXPECT_EQ(back->queue_us, 9u);
  EXPECT_EQ(back->n_rows, 2u);
  EXPECT_EQ(back->n, 3u);
  EXPECT_EQ(back->rows.data(), body.data() + combine_header_bytes);
  expect_exact_length(body, decode_combine);
}

TEST(CombineMessage, SingleElementsAreFloats) {
  const Bytes rows(8);
  Combine combine = sample_combine(rows);
  combine.n = 1;
  EXPECT_TRUE(decode_combine(encoded(combine)).has_value());
}

TEST(CombineMessage, RefusesImpossibleShapes) {
  const Bytes rows(12);
  Bytes body = encoded(sample_combine(rows));
  EXPECT_THAT(refusal(decode_combine(ByteSpan(body).first(body.size() - 1))), HasSubstr("12 bytes, got 11"));
  for (const std::uint32_t n : {0u, max_dispatch_pairs + 1, UINT32_MAX}) {
    put_at(body, 12, n);
    EXPECT_THAT(refusal(decode_combine(body)), HasSubstr("out of range"));
  }
  put_at<std::uint32_t>(body, 12, 2);
  for (const std::uint32_t n : {0u, max_row_elements + 1, UINT32_MAX}) {
    put_at(body, 16, n);
    EXPECT_THAT(refusal(decode_combine(body)), HasSubstr("out of range"));
  }
  put_at(body, 12, max_dispatch_pairs);  // the product must not wrap
  put_at(body, 16, max_row_elements);
  EXPECT_THAT(refusal(decode_combine(body)), HasSubstr("2199023255552 bytes, got 12"));
  body = encoded(sample_combine(rows));
  body[0] = std::byte{9};
  EXPECT_THAT(refusal(decode_combine(body)), HasSubstr("malformed combine: combine mode 9"));
}

}  // namespace
}  // namespace linkcpp::wire
