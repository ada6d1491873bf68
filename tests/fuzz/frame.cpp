// Fuzzes the parser of the frame stream: however the bytes are cut into reads, the same frames come out, and the same error ends them.
// The first byte seeds the sizes of the reads.
#include "wire/frame.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "fuzz/require.h"
#include "net/frame_buffer.h"

namespace linkcpp {
namespace {

using fuzz::require;

struct Outcome {
  std::vector<Bytes> frames;  ///< bodies
  std::vector<wire::FrameHeader> headers;
  std::optional<ErrorKind> error;
};

void keep(const wire::FrameHeader& header, ByteSpan body, Outcome& outcome) {
  outcome.headers.push_back(header);
  outcome.frames.emplace_back(body.begin(), body.end());
}

/// The definition: headers and bodies one behind the other.
Outcome parse_at_once(ByteSpan stream, std::uint32_t limit) {
  Outcome outcome;
  while (stream.size() >= wire::frame_header_bytes) {
    const auto header = wire::parse_frame_header(stream.first(wire::frame_header_bytes), limit);
    if (!header) {
      require(!header.error().message.empty(), "an error has a message");
      outcome.error = header.error().kind;
      break;
    }
    require(header->length <= limit, "no accepted frame is longer than the limit");
    stream = stream.subspan(wire::frame_header_bytes);
    if (stream.size() < header->length) break;
    keep(*header, stream.first(header->length), outcome);
    stream = stream.subspan(header->length);
  }
  return outcome;
}

Outcome parse_in_pieces(ByteSpan stream, std::uint32_t limit, unsigned random) {
  Outcome outcome;
  net::FrameBuffer buffer;
  while (!stream.empty() && !outcome.error) {
    random = random * 1103515245 + 12345;
    const std::size_t n = std::min<std::size_t>(1 + (random >> 16) % 64, stream.size());
    std::memcpy(buffer.space(n).data(), stream.data(), n);
    buffer.commit(n);
    stream = stream.subspan(n);
    for (;;) {
      const auto frame = buffer.next(limit);
      if (!frame) outcome.error = frame.error().kind;
      if (!frame || !*frame) break;
      keep((*frame)->header, (*frame)->body, outcome);
    }
  }
  return outcome;
}

/// A frame's bytes follow from its header and body, but for the flags, which are free.
void check_encoding(const wire::FrameHeader& header, const Bytes& body) {
  const Bytes frame = wire::make_frame(header.type, header.request, body);
  const auto again = wire::parse_frame_header(ByteSpan(frame).first(wire::frame_header_bytes));
  require(again.has_value(), "what was made can be parsed");
  require(
      again->type == header.type && again->request == header.request && again->length == header.length && again->version == header.version,
      "a header survives encoding");
}

}  // namespace
}  // namespace linkcpp

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace linkcpp;
  Bytes stream{std::byte{7}};
  for (const auto type : {wire::FrameType::auth, wire::FrameType::hello, wire::FrameType::dispatch, wire::FrameType::drain}) {
    const Bytes frame = wire::make_frame(type, 0x0102030405060708, Bytes(static_cast<std::size_t>(type) * 9, std::byte{0x5A}));
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  fuzz::SeedFolder().add("frames", stream);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp;
  if (size == 0) return 0;
  const ByteSpan stream = std::as_bytes(std::span(data + 1, size - 1));
  for (const std::uint32_t limit : {wire::max_frame_body, wire::max_unauthenticated_body, 64u}) {
    const Outcome expected = parse_at_once(stream, limit);
    const Outcome got = parse_in_pieces(stream, limit, data[0]);
    require(got.error == expected.error, "the same error, however the stream is cut");
    require(got.frames == expected.frames, "the same frames, however the stream is cut");
    for (std::size_t i = 0; i < got.headers.size(); ++i) {
      require(got.headers[i].request == expected.headers[i].request && got.headers[i].type == expected.headers[i].type, "the same headers");
      check_encoding(got.headers[i], got.frames[i]);
    }
  }
  return 0;
}
