// Whatever arrives at a node's UDP port beside QUIC, and frames on QUIC's streams, as a stranger could send them: no crash, bounded memory,
// and what is read comes back as it was written.
#include <algorithm>
#include <map>

#include "fuzz/require.h"
#include "net/path_offer.h"
#include "net/punch.h"
#include "net/quic_streams.h"
#include "net/stun.h"

using namespace linkcpp;
using namespace linkcpp::net;

namespace {

using fuzz::require;

void stun(ByteSpan in) {
  const auto question = parse_stun_request(in);
  if (question) require(is_stun(in), "a question looks like STUN");
  StunId id{};
  if (in.size() >= 20)
    std::transform(in.begin() + 8, in.begin() + 20, id.begin(), [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  const auto seen = parse_stun_answer(in, id);
  if (seen) {
    const auto again = parse_stun_answer(make_stun_answer(id, *seen), id);
    require(again && *again == *seen, "an answer comes back as it was");
  }
}

void offer(ByteSpan in) {
  const auto read = decode_offer(in);
  if (!read) return;
  require(read->candidates.size() <= PathOffer::max_candidates, "few candidates");
  const auto again = decode_offer(encode_offer(*read));
  require(again && *again == *read, "an offer comes back as it was");
}

void probe(ByteSpan in) {
  PunchKey key{};
  Puncher puncher(key, true, 1, std::chrono::nanoseconds(0));
  const Puncher::Endpoint from(boost::asio::ip::make_address_v4(0x7F000001), 9);
  const auto probe = decode_probe(in, key);
  require(puncher.received(in, from, std::chrono::nanoseconds(1)) == (probe && !probe->from_dialer),
          "only authentic probes of the other side count");
  require(puncher.asked() <= 1 && puncher.due(std::chrono::nanoseconds(2)).size() <= 2, "one datagram makes little work");
}

/// Bytes: stream, length, flags, then that many bytes.
void streams(ByteSpan in) {
  IncomingStreams incoming;
  incoming.set_limit(4096);
  std::map<std::int64_t, int> frames;
  ByteReader reader(in);
  while (reader.left() > 3) {
    const auto stream = static_cast<std::int64_t>(reader.get<std::uint8_t>() % 8) * 4 + 3;
    const auto length = std::min<std::size_t>(reader.get<std::uint8_t>(), reader.left());
    const auto flags = reader.get<std::uint8_t>();
    const ByteSpan bytes = reader.take(std::min(length, reader.left()));
    if (!incoming.received(stream, bytes, (flags & 1) != 0)) return;
    if ((flags & 2) != 0) incoming.closed(stream);
    for (;;) {
      const auto frame = incoming.next();
      if (!frame) return;
      if (!*frame) break;
      require((*frame)->body.size() <= 4096, "no frame is longer than the limit");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteSpan in = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 4) {
    case 0:
      stun(in);
      break;
    case 1:
      offer(in);
      break;
    case 2:
      probe(in);
      break;
    default:
      streams(in);
  }
  return 0;
}
