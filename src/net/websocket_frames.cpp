#include "net/websocket_frames.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace linkcpp::net {
namespace {

constexpr unsigned fin_bit = 0x80, reserved_bits = 0x70, opcode_bits = 0x0F, mask_bit = 0x80, length_bits = 0x7F;
constexpr std::size_t least_header = 2;
constexpr unsigned length_in_two_bytes = 126, length_in_eight_bytes = 127;

unsigned number(std::byte byte) { return std::to_integer<unsigned>(byte); }

bool is_control(WebSocketOpcode opcode) { return opcode >= WebSocketOpcode::close; }

/// Bytes of a header that begins so.
std::size_t header_length(std::byte second) {
  const unsigned length = number(second) & length_bits;
  const std::size_t extra = length == length_in_two_bytes ? 2 : length == length_in_eight_bytes ? 8 : 0;
  return least_header + extra + ((number(second) & mask_bit) != 0 ? sizeof(WebSocketMask) : 0);
}

std::uint64_t big_endian(ByteSpan bytes) {
  std::uint64_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | number(byte);
  return value;
}

/// RFC 6455, 7.4: what may stand in a close frame.
bool may_be_sent(std::uint64_t status) {
  return (status >= 1000 && status <= 1003) || (status >= 1007 && status <= 1014) || (status >= 3000 && status < 5000);
}

}  // namespace

void mask_websocket_bytes(std::byte* to, const std::byte* from, std::size_t n, const WebSocketMask& mask, unsigned phase) {
  std::array<std::byte, 8> turned;
  for (std::size_t i = 0; i < turned.size(); ++i) turned[i] = mask[(phase + i) % mask.size()];
  std::uint64_t wide;
  std::memcpy(&wide, turned.data(), sizeof wide);
  if (wide == 0) {
    if (n > 0) std::memmove(to, from, n);
    return;
  }
  std::size_t i = 0;
  // Each block is read before it is written, and written no further than it was read: overlapping is fine.
  for (; i + 32 <= n; i += 32) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), from + i, sizeof words);
    for (std::uint64_t& word : words) word ^= wide;
    std::memcpy(to + i, words.data(), sizeof words);
  }
  for (; i < n; ++i) to[i] = from[i] ^ turned[i % turned.size()];
}

void put_websocket_frame(Bytes& out, WebSocketOpcode opcode, ByteSpan payload, const std::optional<WebSocketMask>& mask) {
  assert(!is_control(opcode) || payload.size() <= max_websocket_control);
  const unsigned masked = mask ? mask_bit : 0;
  const auto put = [&out](std::uint64_t value) { out.push_back(static_cast<std::byte>(value & 0xFF)); };
  put(fin_bit | static_cast<unsigned>(opcode));
  if (payload.size() < length_in_two_bytes) {
    put(masked | payload.size());
  } else if (payload.size() <= UINT16_MAX) {
    put(masked | length_in_two_bytes);
    for (int shift = 8; shift >= 0; shift -= 8) put(payload.size() >> shift);
  } else {
    put(masked | length_in_eight_bytes);
    for (int shift = 56; shift >= 0; shift -= 8) put(payload.size() >> shift);
  }
  if (!mask) {
    out.insert(out.end(), payload.begin(), payload.end());
    return;
  }
  out.insert(out.end(), mask->begin(), mask->end());
  const std::size_t at = out.size();
  out.resize(at + payload.size());
  mask_websocket_bytes(out.data() + at, payload.data(), payload.size(), *mask, 0);
}

void put_websocket_close(Bytes& out, WebSocketStatus status, const std::optional<WebSocketMask>& mask) {
  const auto code = static_cast<unsigned>(status);
  const std::array<std::byte, 2> payload = {static_cast<std::byte>(code >> 8), static_cast<std::byte>(code & 0xFF)};
  put_websocket_frame(out, WebSocketOpcode::close, payload, mask);
}

std::unexpected<Error> WebSocketDecoder::wrong(WebSocketStatus status, const char* what) {
  status_ = status;
  return fail(ErrorKind::invalid_input, "the peer's WebSocket is wrong: {}", what);
}

/// The header is complete.
Result<> WebSocketDecoder::begin_frame() {
  const unsigned first = number(header_[0]), second = number(header_[1]);
  const bool fin = (first & fin_bit) != 0;
  const ByteSpan header(header_.data(), header_size_);
  if ((first & reserved_bits) != 0) return wrong(WebSocketStatus::protocol_error, "reserved bits are set, but no extension was agreed on");
  opcode_ = static_cast<WebSocketOpcode>(first & opcode_bits);
  if (((second & mask_bit) != 0) != masked_) {
    return wrong(WebSocketStatus::protocol_error, masked_ ? "a client must mask its frames" : "a server must not mask its frames");
  }
  const unsigned short_length = second & length_bits;
  std::uint64_t length = short_length;
  if (short_length == length_in_two_bytes) length = big_endian(header.subspan(least_header, 2));
  if (short_length == length_in_eight_bytes) length = big_endian(header.subspan(least_header, 8));
  const bool wasteful = (short_length == length_in_two_bytes && length < length_in_two_bytes) ||
                        (short_length == length_in_eight_bytes && length <= UINT16_MAX);
  if (wasteful) return wrong(WebSocketStatus::protocol_error, "a length is written longer than it need be");
  if (length > max_websocket_frame) return wrong(WebSocketStatus::protocol_error, "a frame is impossibly long");
  switch (opcode_) {
    case WebSocketOpcode::continuation:
      if (!in_message_) return wrong(WebSocketStatus::protocol_error, "a continuation of nothing");
      in_message_ = !fin;
      break;
    case WebSocketOpcode::binary:
      if (in_message_) return wrong(WebSocketStatus::protocol_error, "a new message inside another");
      in_message_ = !fin;
      break;
    case WebSocketOpcode::text:
      return wrong(WebSocketStatus::unsupported_data, "a text message, where only binary ones are understood");
    case WebSocketOpcode::close:
    case WebSocketOpcode::ping:
    case WebSocketOpcode::pong:
      if (!fin) return wrong(WebSocketStatus::protocol_error, "a control frame in pieces");
      if (length > max_websocket_control) return wrong(WebSocketStatus::protocol_error, "a control frame of more than 125 bytes");
      break;
    default:
      return wrong(WebSocketStatus::protocol_error, "a frame of unknown kind");
  }
  if (masked_) std::ranges::copy(header.last(mask_.size()), mask_.begin());
  left_ = length;
  phase_ = 0;
  control_size_ = 0;
  header_size_ = 0;
  in_frame_ = true;
  return {};
}

Result<> WebSocketDecoder::end_control(Decoded& decoded) {
  const ByteSpan payload(control_.data(), control_size_);
  if (opcode_ == WebSocketOpcode::ping) decoded.ping.emplace(payload.begin(), payload.end());
  if (opcode_ != WebSocketOpcode::close) return {};
  if (payload.size() == 1 || (payload.size() >= 2 && !may_be_sent(big_endian(payload.first(2)))))
    return wrong(WebSocketStatus::protocol_error, "a close frame without a proper status");
  decoded.closed = true;
  return {};
}

WebSocketDecoder::Decoded WebSocketDecoder::decode(std::span<std::byte> raw) {
  Decoded decoded;
  std::size_t at = 0;
  while (at < raw.size() && !decoded.closed && !decoded.wrong) {
    if (!in_frame_) {
      header_[header_size_++] = raw[at++];
      if (header_size_ < least_header || header_size_ < header_length(header_[1])) continue;
      if (auto begun = begin_frame(); !begun) {
        decoded.wrong = std::move(begun.error());
        break;
      }
    }
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, raw.size() - at));
    std::byte* const to = is_control(opcode_) ? control_.data() + control_size_ : raw.data() + decoded.payload;
    mask_websocket_bytes(to, raw.data() + at, n, mask_, phase_);
    (is_control(opcode_) ? control_size_ : decoded.payload) += n;
    at += n;
    left_ -= n;
    phase_ = static_cast<unsigned>((phase_ + n) % mask_.size());
    if (left_ > 0) continue;
    in_frame_ = false;
    if (!is_control(opcode_)) continue;
    if (auto ended = end_control(decoded); !ended) decoded.wrong = std::move(ended.error());
  }
  return decoded;
}

}  // namespace linkcpp::net
