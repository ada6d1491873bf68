// Fuzzes the parser of the relay's messages: however the bytes are cut into reads, the same messages come out and the same error ends them,
// and what was taken can be written again. Preambles likewise. The first byte seeds the sizes of the reads.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "fuzz/require.h"
#include "net/relay_messages.h"

namespace linkcpp {
namespace {

using fuzz::require;

struct Outcome {
  std::vector<net::RelayMessage> messages;
  std::optional<ErrorKind> error;
  bool operator==(const Outcome&) const = default;
};

Outcome parse(ByteSpan stream, std::size_t most, unsigned random) {
  Outcome outcome;
  net::RelayMessageBuffer buffer;
  while (!stream.empty() && !outcome.error) {
    random = random * 1103515245 + 12345;
    const std::size_t n = std::min<std::size_t>(1 + (random >> 16) % most, stream.size());
    buffer.add(stream.first(n));
    stream = stream.subspan(n);
    for (;;) {
      auto message = buffer.next();
      if (!message) {
        require(!message.error().message.empty(), "an error has a message");
        outcome.error = message.error().kind;
      }
      if (!message || !*message) break;
      outcome.messages.push_back(std::move(**message));
    }
  }
  return outcome;
}

}  // namespace
}  // namespace linkcpp

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace linkcpp;
  Bytes stream{std::byte{7}};
  for (const net::RelayMessage& message :
       {net::RelayMessage(net::RelayRegister{}), net::RelayMessage(net::RelayJoin{}), net::RelayMessage(net::RelayWelcome{"h:1"}),
        net::RelayMessage(net::RelayRefuse{ErrorKind::io, "no"}), net::RelayMessage(net::RelayListen{}),
        net::RelayMessage(net::RelayConnect{1, {}}), net::RelayMessage(net::RelayIntroduce{}),
        net::RelayMessage(net::RelayFailed{1, ErrorKind::io, "no"}), net::RelayMessage(net::RelayPing{1}),
        net::RelayMessage(net::RelayPong{1})}) {
    const Bytes bytes = encode_relay_message(message);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  const fuzz::SeedFolder seeds;
  seeds.add("messages", stream);
  seeds.add("preamble", net::encode_relay_preamble({}));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp;
  const ByteSpan all = std::as_bytes(std::span(data, size));
  if (size >= net::relay_preamble_bytes) {
    const auto ticket = net::decode_relay_preamble(all.first<net::relay_preamble_bytes>());
    if (ticket) {
      const Bytes again = net::encode_relay_preamble(*ticket);
      require(net::decode_relay_preamble(std::span<const std::byte, net::relay_preamble_bytes>(again.data(), again.size())) == *ticket,
              "a ticket survives");
    }
  }
  if (size == 0) return 0;
  const Outcome whole = parse(all.subspan(1), 1, data[0]);
  require(parse(all.subspan(1), 64, data[0]) == whole, "the same, however the stream is cut");
  require(parse(all.subspan(1), size, data[0]) == whole, "the same in one piece");
  Bytes again;
  for (const net::RelayMessage& message : whole.messages) {
    const Bytes bytes = encode_relay_message(message);
    require(bytes.size() <= net::relay_header_bytes + net::max_relay_body, "no message is too long");
    again.insert(again.end(), bytes.begin(), bytes.end());
  }
  require(parse(again, size + 1, data[0]).messages == whole.messages, "messages survive encoding");
  return 0;
}
