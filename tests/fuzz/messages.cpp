// Fuzzes the decoders of all bodies. What is accepted survives encoding and decoding unchanged, and keeps the limits that the
// specification promises to those who use it. The first byte chooses the decoder.
#include "wire/messages.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fuzz/require.h"
#include "unit/wire/samples.h"
#include "wire/frame_size.h"
#include "wire/text.h"

namespace linkcpp::wire {
namespace {

using fuzz::require;

enum class Message : std::uint8_t { hello, refuse, failed, dispatch, combine, offer, assign, holds };
constexpr std::uint8_t n_messages = 8;

/// decode → encode → decode → encode gives the same bytes twice.
template <class Decode>
auto check_round_trip(ByteSpan body, Decode decode) {
  auto message = decode(body);
  if (!message) {
    require(!message.error().message.empty(), "an error has a message");
    return message;
  }
  const Bytes once = encoded(*message);
  auto again = decode(ByteSpan(once));
  require(again.has_value(), "what was encoded can be decoded");
  require(encoded(*again) == once, "decoding and encoding again changes nothing");
  return message;
}

void check_hello(ByteSpan body) {
  const auto hello = check_round_trip(body, decode_hello);
  if (!hello) return;
  const Bytes again = encoded(*hello);
  require(std::ranges::equal(again, body), "a hello has one encoding only");
  require(is_plain_text(hello->engine) && is_plain_text(hello->name) && is_plain_text(hello->device), "texts are plain");
  require(hello->holdings.size() <= max_holdings, "layers are bounded");
  for (const LayerHolding& holding : hello->holdings) {
    require(holding.n_expert > 0 && holding.n_expert <= max_experts, "experts are bounded");
    require(holding.bits.size() == (holding.n_expert + 63u) / 64, "a bit for every expert");
    for (std::uint32_t e = holding.n_expert; e < holding.bits.size() * 64; ++e)
      require((holding.bits[e / 64] >> (e % 64) & 1) == 0, "no bit for others");
  }
}

/// Messages of provisioning have one encoding only; their texts are plain and their numbers bounded.
template <class Decode>
void check_provision(ByteSpan body, Decode decode) {
  const auto message = check_round_trip(body, decode);
  if (message) require(std::ranges::equal(encoded(*message), body), "a message of provisioning has one encoding only");
}

void check_assign(ByteSpan body) {
  const auto assign = decode_assign(body);
  if (!assign) return;
  require(assign->sources.size() <= max_sources, "sources are bounded");
  for (const SliceSourceAddress& source : assign->sources)
    require(!source.url.empty() && source.url.size() <= max_url_bytes && is_plain_text(source.url), "addresses are plain and bounded");
}

template <class Decode>
void check_reason(ByteSpan body, Decode decode) {
  const auto reason = check_round_trip(body, decode);
  if (!reason) return;
  require(is_plain_text(reason->reason) && reason->reason.size() <= max_reason_bytes, "reasons are plain and short");
}

void check_split(const Dispatch& dispatch, const Program& program) {
  const auto parts = split_input_area(dispatch, program);
  const std::size_t expected = input_area_bytes(program, dispatch.row_type, dispatch.n_tokens, dispatch.pairs.size());
  require(parts.has_value() == (dispatch.rows.size() == expected), "a row area fits exactly or not at all");
  if (!parts) return;
  const std::byte* at = dispatch.rows.data();
  for (const ByteSpan& part : *parts) {
    require(part.data() == at, "parts follow each other");
    at += part.size();
  }
  require(at == dispatch.rows.data() + dispatch.rows.size(), "parts cover the area");
}

void check_dispatch(ByteSpan body) {
  static const std::vector<Program> programs{gated_program(8, 4), every_op_program()};
  const auto dispatch = check_round_trip(body, decode_dispatch);
  if (!dispatch) return;
  require(std::ranges::equal(encoded(*dispatch), body), "a dispatch has one encoding only");
  require(dispatch->n_tokens <= max_dispatch_tokens && dispatch->pairs.size() <= max_dispatch_pairs, "counts are bounded");
  std::uint32_t next = 0, of_token = 0;
  for (const WirePair& pair : dispatch->pairs) {
    require(pair.token == next || pair.token + 1 == next, "pairs are grouped by token, and none is left out");
    of_token = pair.token == next ? 1 : of_token + 1;
    next = pair.token + 1;
    require(of_token <= max_token_pairs, "pairs of a token are bounded");
  }
  require(next == dispatch->n_tokens, "every token has a pair");
  for (const Program& program : programs) check_split(*dispatch, program);
}

void check_combine(ByteSpan body) {
  const auto combine = check_round_trip(body, decode_combine);
  if (!combine) return;
  require(combine->n_rows > 0 && combine->n > 0, "an answer has rows");
  require(combine->rows.size() == combine->n_rows * row_bytes(effective_row_type(combine->row_type, combine->n), combine->n),
          "rows fit exactly");
  std::vector<float> rows(std::size_t{combine->n_rows} * combine->n);
  decode_rows(effective_row_type(combine->row_type, combine->n), combine->rows, combine->n, combine->n_rows, rows.data(), combine->n);
}

void seed(const char* name, Message message, const Bytes& body) {
  Bytes input{static_cast<std::byte>(message)};
  input.insert(input.end(), body.begin(), body.end());
  fuzz::SeedFolder().add(name, input);
}

}  // namespace
}  // namespace linkcpp::wire

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace linkcpp;
  using namespace linkcpp::wire;
  seed("hello", Message::hello, encoded(sample_hello()));
  seed("refuse", Message::refuse, encoded(Refuse{ErrorKind::unauthorized, "wrong or outdated join token"}));
  seed("failed", Message::failed, encoded(Failed{ErrorKind::not_found, "Schicht 3 fehlt – übrig: 節"}));
  const Bytes area(1024, std::byte{0x3C});
  Dispatch dispatch = sample_dispatch();
  dispatch.rows = ByteSpan(area).first(input_area_bytes(every_op_program(), dispatch.row_type, 3, 4));
  seed("dispatch", Message::dispatch, encoded(dispatch));
  Combine combine{.mode = CombineMode::raw,
                  .row_type = RowType::f16,
                  .compute_us = 120,
                  .queue_us = 3,
                  .n_rows = 4,
                  .n = 8,
                  .rows = ByteSpan(area).first(64)};
  seed("combine", Message::combine, encoded(combine));
  seed("offer", Message::offer, encoded(sample_offer()));
  seed("assign", Message::assign, encoded(sample_assign()));
  seed("holds", Message::holds, encoded(sample_holds()));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp;
  using namespace linkcpp::wire;
  if (size == 0) return 0;
  const ByteSpan body = std::as_bytes(std::span(data + 1, size - 1));
  switch (static_cast<Message>(data[0] % n_messages)) {
    case Message::hello:
      check_hello(body);
      break;
    case Message::offer:
      check_provision(body, decode_offer);
      break;
    case Message::assign:
      check_provision(body, decode_assign);
      check_assign(body);
      break;
    case Message::holds:
      check_provision(body, decode_holds);
      break;
    case Message::refuse:
      check_reason(body, decode_refuse);
      break;
    case Message::failed:
      check_reason(body, decode_failed);
      break;
    case Message::dispatch:
      check_dispatch(body);
      break;
    case Message::combine:
      check_combine(body);
      break;
  }
  return 0;
}
