#include "net/stun.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <span>

namespace linkcpp::net {
namespace {

namespace ip = boost::asio::ip;

constexpr std::uint16_t binding_request = 0x0001, binding_answer = 0x0101;
constexpr std::uint32_t cookie = 0x2112A442;
constexpr std::uint16_t mapped_address = 0x0001, xor_mapped_address = 0x0020;
constexpr std::uint16_t optional_attributes = 0x8000;  // may be skipped by who does not know them
constexpr std::size_t header_bytes = 20;
constexpr std::uint8_t family_v4 = 1, family_v6 = 2;

/// STUN is big-endian.
class Reader {
 public:
  explicit Reader(ByteSpan in) : in_(in) {}
  std::uint8_t u8() {
    const ByteSpan part = take(1);
    return part.empty() ? 0 : std::to_integer<std::uint8_t>(part[0]);
  }
  std::uint16_t u16() {
    const auto high = u8();
    return static_cast<std::uint16_t>(high << 8 | u8());
  }
  std::uint32_t u32() {
    const std::uint32_t high = u16();
    return high << 16 | u16();
  }
  ByteSpan take(std::size_t n) {
    if (n > in_.size()) {
      ok_ = false;
      in_ = {};
      return {};
    }
    const ByteSpan part = in_.first(n);
    in_ = in_.subspan(n);
    return part;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t left() const { return in_.size(); }

 private:
  ByteSpan in_;
  bool ok_ = true;
};

void put16(Bytes& out, std::uint16_t value) {
  out.push_back(static_cast<std::byte>(value >> 8));
  out.push_back(static_cast<std::byte>(value & 0xFF));
}

void put32(Bytes& out, std::uint32_t value) {
  put16(out, static_cast<std::uint16_t>(value >> 16));
  put16(out, static_cast<std::uint16_t>(value & 0xFFFF));
}

Bytes begin(std::uint16_t type, std::size_t length, const StunId& id) {
  Bytes out;
  put16(out, type);
  put16(out, static_cast<std::uint16_t>(length));
  put32(out, cookie);
  const auto bytes = std::as_bytes(std::span(id));
  out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

/// Cookie and id, as addresses are masked with them (RFC 8489, 14.2).
std::array<std::uint8_t, 16> mask_of(const StunId& id) {
  std::array<std::uint8_t, 16> mask{0x21, 0x12, 0xA4, 0x42};
  std::ranges::copy(id, mask.begin() + 4);
  return mask;
}

struct Header {
  std::uint16_t type = 0;
  StunId id{};
  Reader attributes{ByteSpan()};
};

std::optional<Header> parse_header(ByteSpan datagram) {
  if (!is_stun(datagram)) return std::nullopt;
  Reader in(datagram);
  Header header;
  header.type = in.u16();
  const std::size_t length = in.u16();
  in.u32();
  std::ranges::transform(in.take(header.id.size()), header.id.begin(), [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  if (length % 4 != 0 || length != in.left()) return std::nullopt;
  header.attributes = Reader(datagram.subspan(header_bytes));
  return header;
}

std::optional<ip::udp::endpoint> read_address(ByteSpan value, const std::array<std::uint8_t, 16>& mask) {
  Reader in(value);
  in.u8();
  const auto family = in.u8();
  const auto port = static_cast<std::uint16_t>(in.u16() ^ (mask[0] << 8 | mask[1]));
  const ByteSpan address = in.take(family == family_v4 ? 4 : family == family_v6 ? 16 : value.size());
  if (!in.ok() || in.left() != 0 || port == 0) return std::nullopt;
  std::array<std::uint8_t, 16> plain{};
  for (std::size_t i = 0; i < address.size(); ++i) plain[i] = std::to_integer<std::uint8_t>(address[i]) ^ mask[i];
  if (family == family_v6) return ip::udp::endpoint(ip::make_address_v6(plain), port);
  return ip::udp::endpoint(ip::make_address_v4(ip::address_v4::bytes_type{plain[0], plain[1], plain[2], plain[3]}), port);
}

}  // namespace

bool is_stun(ByteSpan datagram) {
  if (datagram.size() < header_bytes || (std::to_integer<unsigned>(datagram[0]) & 0xC0U) != 0) return false;
  Reader in(datagram.subspan(4));
  return in.u32() == cookie;
}

Bytes make_stun_request(const StunId& id) { return begin(binding_request, 0, id); }

std::optional<StunId> parse_stun_request(ByteSpan datagram) {
  auto header = parse_header(datagram);
  if (!header || header->type != binding_request) return std::nullopt;
  Reader& in = header->attributes;
  while (in.left() > 0) {
    const auto type = in.u16();
    const std::size_t length = in.u16();
    in.take((length + 3) / 4 * 4);
    if (!in.ok() || type < optional_attributes) return std::nullopt;
  }
  return header->id;
}

Bytes make_stun_answer(const StunId& id, const ip::udp::endpoint& from) {
  const bool v6 = from.address().is_v6();
  Bytes out = begin(binding_answer, v6 ? 24 : 12, id);
  const auto mask = mask_of(id);
  put16(out, xor_mapped_address);
  put16(out, v6 ? 20 : 8);
  out.push_back(std::byte{0});
  out.push_back(std::byte{v6 ? family_v6 : family_v4});
  put16(out, static_cast<std::uint16_t>(from.port() ^ (mask[0] << 8 | mask[1])));
  const auto put = [&](const auto& address) {
    for (std::size_t i = 0; i < address.size(); ++i) out.push_back(static_cast<std::byte>(address[i] ^ mask[i]));
  };
  v6 ? put(from.address().to_v6().to_bytes()) : put(from.address().to_v4().to_bytes());
  return out;
}

Result<ip::udp::endpoint> parse_stun_answer(ByteSpan datagram, const StunId& id) {
  auto header = parse_header(datagram);
  if (!header || header->type != binding_answer || header->id != id) {
    return fail(ErrorKind::invalid_input, "this is no answer to the STUN request that was sent");
  }
  std::optional<ip::udp::endpoint> found;
  Reader& in = header->attributes;
  while (in.left() > 0) {
    const auto type = in.u16();
    const std::size_t length = in.u16();
    const ByteSpan value = in.take((length + 3) / 4 * 4);
    if (!in.ok()) return fail(ErrorKind::invalid_input, "a STUN answer whose attributes are cut off");
    if (type == xor_mapped_address) found = read_address(value.first(length), mask_of(id));
    if (type == mapped_address && !found) found = read_address(value.first(length), {});
  }
  if (!found) return fail(ErrorKind::invalid_input, "a STUN answer without an address");
  return *found;
}

}  // namespace linkcpp::net
