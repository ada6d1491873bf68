// The relay's messages: read back as written, refused when wrong, however the stream is cut.
#include "net/relay_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace linkcpp::net {
namespace {

using testing::HasSubstr;

template <class Array>
Array filled(std::uint8_t value) {
  Array array;
  array.fill(value);
  return array;
}
PeerKey node_key(std::uint8_t fill) { return {filled<decltype(PeerKey::bytes)>(fill)}; }

std::vector<RelayMessage> every_message() {
  return {RelayRegister{filled<RelayMembership>(1)},
          RelayJoin{node_key(2), filled<RelayProof>(3)},
          RelayWelcome{"203.0.113.7:41234"},
          RelayRefuse{ErrorKind::unauthorized, "no"},
          RelayListen{},
          RelayConnect{7, node_key(4)},
          RelayIntroduce{7, node_key(5), filled<RelayTicket>(6)},
          RelayFailed{9, ErrorKind::not_found, "not here"},
          RelayPing{1},
          RelayPong{UINT64_MAX}};
}

TEST(RelayMessagesTest, EveryMessageSurvivesEveryCut) {
  Bytes stream;
  for (const RelayMessage& message : every_message()) {
    const Bytes bytes = encode_relay_message(message);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  for (std::size_t piece = 1; piece <= stream.size(); piece = piece < 40 ? piece + 1 : piece * 2) {
    RelayMessageBuffer buffer;
    std::vector<RelayMessage> got;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      buffer.add(ByteSpan(stream).subspan(at, std::min(piece, stream.size() - at)));
      for (;;) {
        auto message = buffer.next();
        ASSERT_TRUE(message) << message.error().message;
        if (!*message) break;
        got.push_back(std::move(**message));
      }
    }
    EXPECT_TRUE(got == every_message()) << piece;
  }
}

TEST(RelayMessagesTest, BytesAreThoseOfTheSpecification) {
  const Bytes ping = encode_relay_message(RelayPing{0x0102030405060708});
  const std::vector<int> expected = {'L', 'K', 'R', '1', 1, 9, 8, 0, 8, 7, 6, 5, 4, 3, 2, 1};
  ASSERT_EQ(ping.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(std::to_integer<int>(ping[i]), expected[i]) << i;
  const Bytes preamble = encode_relay_preamble(filled<RelayTicket>(0xAB));
  ASSERT_EQ(preamble.size(), relay_preamble_bytes);
  const std::vector<int> head = {2, 'L', 'K', 'T', 1, 0, 0, 0, 0xAB};
  for (std::size_t i = 0; i < head.size(); ++i) EXPECT_EQ(std::to_integer<int>(preamble[i]), head[i]) << i;
}

TEST(RelayMessagesTest, WhatIsWrongIsRefused) {
  const auto refusal = [](Bytes bytes) {
    RelayMessageBuffer buffer;
    buffer.add(bytes);
    auto message = buffer.next();
    EXPECT_FALSE(message);
    return message ? Error{} : message.error();
  };
  Bytes bytes = encode_relay_message(RelayConnect{1, node_key(1)});
  const auto changed = [&bytes](std::size_t at, int value) {
    Bytes copy = bytes;
    copy[at] = static_cast<std::byte>(value);
    return copy;
  };
  EXPECT_THAT(refusal(changed(0, 'X')).message, HasSubstr("does not speak"));
  EXPECT_EQ(refusal(changed(4, 2)).kind, ErrorKind::incompatible);
  EXPECT_THAT(refusal(changed(5, 0)).message, HasSubstr("unknown type 0"));
  EXPECT_THAT(refusal(changed(5, 11)).message, HasSubstr("unknown type 11"));
  EXPECT_THAT(refusal(changed(7, 5)).message, HasSubstr("too long"));
  EXPECT_THAT(refusal(changed(6, 35)).message, HasSubstr("wrong length"));
  EXPECT_THAT(refusal(changed(5, 9)).message, HasSubstr("wrong length"));
}

TEST(RelayMessagesTest, TextsAreCutAndMadeHarmless) {
  RelayMessageBuffer buffer;
  buffer.add(encode_relay_message(RelayRefuse{ErrorKind::io, "\x1b[2J" + std::string(5000, 'x')}));
  const auto message = buffer.next();
  ASSERT_TRUE(message && *message);
  const auto& refuse = std::get<RelayRefuse>(**message);
  EXPECT_EQ(refuse.reason.size(), max_relay_reason);
  EXPECT_EQ(refuse.reason[0], '?');
}

TEST(RelayMessagesTest, PreamblesAreChecked) {
  const auto decode = [](const Bytes& bytes) {
    return decode_relay_preamble(std::span<const std::byte, relay_preamble_bytes>(bytes.data(), relay_preamble_bytes));
  };
  Bytes bytes = encode_relay_preamble(filled<RelayTicket>(9));
  EXPECT_EQ(decode(bytes).value(), filled<RelayTicket>(9));
  bytes[4] = std::byte{2};
  EXPECT_EQ(decode(bytes).error().kind, ErrorKind::incompatible);
  bytes[3] = std::byte{0};
  EXPECT_EQ(decode(bytes).error().kind, ErrorKind::invalid_input);
  for (int answer = 1; answer < 256; ++answer) EXPECT_FALSE(relay_answer_error(static_cast<std::uint8_t>(answer)).message.empty());
}

TEST(RelayMessagesTest, ProofsAreBoundToEverything) {
  const Secret secret = filled<Secret>(1);
  const auto membership = relay_membership(secret).value();
  EXPECT_NE(membership, secret);
  EXPECT_NE(membership, relay_membership(filled<Secret>(2)).value());
  const TlsSession::ExportedKey exported{}, other_exported{1};
  std::set<RelayProof> proofs;
  proofs.insert(relay_proof(membership, exported, node_key(1), node_key(2)).value());
  proofs.insert(relay_proof(membership, other_exported, node_key(1), node_key(2)).value());
  proofs.insert(relay_proof(membership, exported, node_key(3), node_key(2)).value());
  proofs.insert(relay_proof(membership, exported, node_key(1), node_key(3)).value());
  proofs.insert(relay_proof(relay_membership(filled<Secret>(2)).value(), exported, node_key(1), node_key(2)).value());
  EXPECT_EQ(proofs.size(), 5u);
}

}  // namespace
}  // namespace linkcpp::net
