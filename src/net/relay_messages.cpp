#include "net/relay_messages.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "wire/text.h"

namespace linkcpp::net {
namespace {

constexpr std::uint32_t relay_magic = 0x31524B4C;  // "LKR1"
constexpr std::uint8_t relay_version = 1;
constexpr std::array<std::byte, 4> preamble_magic = {relay_preamble_first, std::byte{'L'}, std::byte{'K'}, std::byte{'T'}};

Result<std::array<std::uint8_t, 32>> hmac(const std::array<std::uint8_t, 32>& key, ByteSpan message) {
  std::array<std::uint8_t, 32> result{};
  std::size_t length = 0;
  const unsigned char* made =
      EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(), reinterpret_cast<const unsigned char*>(message.data()),
                message.size(), result.data(), result.size(), &length);
  if (made == nullptr || length != result.size())
    return fail(ErrorKind::internal, "OpenSSL cannot compute an HMAC; is its installation complete?");
  return result;
}

ByteSpan bytes_of(const std::array<std::uint8_t, 32>& array) { return std::as_bytes(std::span(array)); }
ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// Bodies. One pair of functions a message; what is not plain in a text is replaced, as in wire/messages.

void put(ByteWriter& out, const RelayRegister& m) { out.raw(bytes_of(m.membership)); }
void get(ByteReader& in, RelayRegister& m) { in.fill(m.membership); }

void put(ByteWriter& out, const RelayJoin& m) {
  out.raw(bytes_of(m.backbone.bytes));
  out.raw(bytes_of(m.proof));
}
void get(ByteReader& in, RelayJoin& m) {
  in.fill(m.backbone.bytes);
  in.fill(m.proof);
}

void put(ByteWriter& out, const RelayWelcome& m) { out.text(wire::plain_text(m.observed, max_relay_reason)); }
void get(ByteReader& in, RelayWelcome& m) { m.observed = wire::plain_text(in.text(), max_relay_reason); }

std::uint8_t number_of(ErrorKind kind) { return static_cast<std::uint8_t>(kind); }
ErrorKind kind_of(std::uint8_t number) { return number <= number_of(ErrorKind::internal) ? ErrorKind(number) : ErrorKind::internal; }

void put(ByteWriter& out, const RelayRefuse& m) {
  out.put(number_of(m.kind));
  out.text(wire::plain_text(m.reason, max_relay_reason));
}
void get(ByteReader& in, RelayRefuse& m) {
  m.kind = kind_of(in.get<std::uint8_t>());
  m.reason = wire::plain_text(in.text(), max_relay_reason);
}

void put(ByteWriter&, const RelayListen&) {}
void get(ByteReader&, RelayListen&) {}

void put(ByteWriter& out, const RelayConnect& m) {
  out.put(m.request);
  out.raw(bytes_of(m.to.bytes));
}
void get(ByteReader& in, RelayConnect& m) {
  m.request = in.get<std::uint32_t>();
  in.fill(m.to.bytes);
}

void put(ByteWriter& out, const RelayIntroduce& m) {
  out.put(m.request);
  out.raw(bytes_of(m.peer.bytes));
  out.raw(bytes_of(m.ticket));
}
void get(ByteReader& in, RelayIntroduce& m) {
  m.request = in.get<std::uint32_t>();
  in.fill(m.peer.bytes);
  in.fill(m.ticket);
}

void put(ByteWriter& out, const RelayFailed& m) {
  out.put(m.request);
  out.put(number_of(m.kind));
  out.text(wire::plain_text(m.reason, max_relay_reason));
}
void get(ByteReader& in, RelayFailed& m) {
  m.request = in.get<std::uint32_t>();
  m.kind = kind_of(in.get<std::uint8_t>());
  m.reason = wire::plain_text(in.text(), max_relay_reason);
}

void put(ByteWriter& out, const RelayPing& m) { out.put(m.stamp); }
void get(ByteReader& in, RelayPing& m) { m.stamp = in.get<std::uint64_t>(); }
void put(ByteWriter& out, const RelayPong& m) { out.put(m.stamp); }
void get(ByteReader& in, RelayPong& m) { m.stamp = in.get<std::uint64_t>(); }

/// A message's type on the wire is its place in the variant, from 1.
template <std::size_t index = 0>
Result<RelayMessage> decode_body(std::size_t type, ByteSpan body) {
  if constexpr (index == std::variant_size_v<RelayMessage>) {
    return fail(ErrorKind::invalid_input, "a relay message of unknown type {}", type);
  } else {
    if (type != index + 1) return decode_body<index + 1>(type, body);
    std::variant_alternative_t<index, RelayMessage> message;
    ByteReader in(body);
    get(in, message);
    if (!in.finished()) return fail(ErrorKind::invalid_input, "a relay message of type {} has the wrong length", type);
    return RelayMessage(std::move(message));
  }
}

}  // namespace

Result<RelayMembership> relay_membership(const Secret& secret) { return hmac(secret, bytes_of("linkcpp relay v1")); }

Result<RelayProof> relay_proof(const RelayMembership& membership, const TlsSession::ExportedKey& exported, const PeerKey& node,
                               const PeerKey& backbone) {
  Bytes message;
  ByteWriter out(message);
  out.raw(bytes_of("linkcpp relay join v1"));
  out.raw(bytes_of(exported));
  out.raw(bytes_of(node.bytes));
  out.raw(bytes_of(backbone.bytes));
  return hmac(membership, message);
}

Bytes encode_relay_message(const RelayMessage& message) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(relay_magic);
  out.put(relay_version);
  out.put(static_cast<std::uint8_t>(message.index() + 1));
  out.put<std::uint16_t>(0);
  std::visit([&out](const auto& body) { put(out, body); }, message);
  const auto length = static_cast<std::uint16_t>(bytes.size() - relay_header_bytes);
  std::memcpy(bytes.data() + relay_header_bytes - sizeof length, &length, sizeof length);
  return bytes;
}

Result<std::optional<RelayMessage>> RelayMessageBuffer::next() {
  if (held_.size() < relay_header_bytes) return std::nullopt;
  ByteReader in(held_);
  if (in.get<std::uint32_t>() != relay_magic) return fail(ErrorKind::invalid_input, "the other side does not speak the relay's protocol");
  const auto version = in.get<std::uint8_t>();
  if (version != relay_version) {
    return fail(ErrorKind::incompatible, "the other side speaks version {} of the relay's protocol, this one version {}", version,
                relay_version);
  }
  const std::size_t type = in.get<std::uint8_t>(), length = in.get<std::uint16_t>();
  if (length > max_relay_body) return fail(ErrorKind::invalid_input, "a relay message of {} bytes is too long", length);
  if (held_.size() < relay_header_bytes + length) return std::nullopt;
  auto message = decode_body(type, in.take(length));
  if (!message) return pass(message);
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(relay_header_bytes + length));
  return std::move(*message);
}

Bytes encode_relay_preamble(const RelayTicket& ticket) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.raw(preamble_magic);
  out.put(relay_version);
  out.put<std::uint8_t>(0);
  out.put<std::uint16_t>(0);
  out.raw(bytes_of(ticket));
  return bytes;
}

Result<RelayTicket> decode_relay_preamble(std::span<const std::byte, relay_preamble_bytes> bytes) {
  ByteReader in(bytes);
  if (!std::ranges::equal(in.take(preamble_magic.size()), preamble_magic))
    return fail(ErrorKind::invalid_input, "this begins no data connection of a relay");
  const auto version = in.get<std::uint8_t>();
  if (version != relay_version) {
    return fail(ErrorKind::incompatible, "a data connection of version {} of the relay's protocol, this one speaks version {}", version,
                relay_version);
  }
  in.get<std::uint8_t>();
  in.get<std::uint16_t>();
  RelayTicket ticket;
  in.fill(ticket);
  return ticket;
}

Error relay_answer_error(std::uint8_t answer) {
  switch (static_cast<RelayAnswer>(answer)) {
    case RelayAnswer::unknown_ticket:
      return {ErrorKind::unauthorized, "the relay does not know the ticket"};
    case RelayAnswer::expired_ticket:
      return {ErrorKind::timeout, "the relay's ticket had expired"};
    case RelayAnswer::used_ticket:
      return {ErrorKind::unauthorized, "the relay's ticket had been used already"};
    case RelayAnswer::peer_missing:
      return {ErrorKind::unavailable, "the other node did not come to the relay in time"};
    case RelayAnswer::busy:
      return {ErrorKind::unavailable, "the relay carries as many connections as it may"};
    case RelayAnswer::joined:
      break;
  }
  return {ErrorKind::invalid_input, "the relay answered with something unknown"};
}

}  // namespace linkcpp::net
