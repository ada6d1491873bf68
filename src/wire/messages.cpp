#include "wire/messages.h"

#include <algorithm>

namespace linkcpp::wire {
namespace {

constexpr std::size_t max_holdings = 2048;
constexpr std::size_t max_experts = 4096;
constexpr std::size_t max_text = 1024;
constexpr std::uint32_t max_rows = max_dispatch_pairs;
constexpr std::uint32_t max_elements = 1u << 20;

std::unexpected<Error> malformed(const char* what, const char* why) { return fail(ErrorKind::invalid_input, "malformed {}: {}", what, why); }

Result<RowType> row_type(std::uint8_t code, const char* what) {
  if (code >= row_type_count) return fail(ErrorKind::invalid_input, "malformed {}: row type {} is not known", what, code);
  return static_cast<RowType>(code);
}

Result<CombineMode> mode(std::uint8_t code, const char* what) {
  if (code > static_cast<std::uint8_t>(CombineMode::sum)) return fail(ErrorKind::invalid_input, "malformed {}: combine mode {} is not known", what, code);
  return static_cast<CombineMode>(code);
}

/// Refuse and Failed have one layout: kind u8, reason text.
void encode_reason(ErrorKind kind, const std::string& reason, Bytes& out) {
  ByteWriter writer(out);
  writer.put(static_cast<std::uint8_t>(kind));
  writer.text(std::string_view(reason).substr(0, max_text));
}

template <class T>
Result<T> decode_reason(ByteSpan body, const char* what) {
  ByteReader in(body);
  const auto kind = in.get<std::uint8_t>();
  T reason;
  reason.reason = in.text();
  if (!in.finished()) return malformed(what, "its length does not fit its text");
  if (kind > static_cast<std::uint8_t>(ErrorKind::internal)) return malformed(what, "unknown kind");
  if (reason.reason.size() > max_text) return malformed(what, "its text is too long");
  reason.kind = static_cast<ErrorKind>(kind);
  return reason;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view to_string(CombineMode m) { return m == CombineMode::raw ? "raw" : "sum"; }

Result<CombineMode> parse_combine_mode(std::string_view text) {
  if (text == "raw") return CombineMode::raw;
  if (text == "sum") return CombineMode::sum;
  return fail(ErrorKind::invalid_input, "unknown combine mode '{}': raw and sum exist", text);
}

std::string to_hex(const Digest& digest) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

Result<Digest> digest_from_hex(std::string_view text) {
  Digest digest;
  if (text.size() != 2 * digest.size()) return fail(ErrorKind::invalid_input, "a digest has {} hexadecimal digits, got {}", 2 * digest.size(), text.size());
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return fail(ErrorKind::invalid_input, "a digest has hexadecimal digits only");
    digest[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

void encode(const Hello& hello, Bytes& out) {
  ByteWriter writer(out);
  writer.text(hello.engine);
  writer.text(hello.name);
  writer.text(hello.device);
  writer.put(hello.n_threads);
  writer.put(hello.row_types);
  writer.raw(std::as_bytes(std::span(hello.model)));
  writer.put(static_cast<std::uint16_t>(hello.holdings.size()));
  for (const LayerHolding& holding : hello.holdings) {
    writer.put(holding.layer);
    writer.put(holding.n_expert);
    for (const std::uint64_t word : holding.bits) writer.put(word);
  }
}

Result<Hello> decode_hello(ByteSpan body) {
  ByteReader in(body);
  Hello hello;
  hello.engine = in.text();
  hello.name = in.text();
  hello.device = in.text();
  hello.n_threads = in.get<std::uint16_t>();
  hello.row_types = in.get<std::uint32_t>();
  const ByteSpan model = in.take(hello.model.size());
  if (!model.empty()) std::memcpy(hello.model.data(), model.data(), model.size());
  const auto n_holdings = in.get<std::uint16_t>();
  if (!in.ok()) return malformed("hello", "it is cut short");
  if (std::max({hello.engine.size(), hello.name.size(), hello.device.size()}) > 256) return malformed("hello", "a text is longer than 256 bytes");
  if (n_holdings > max_holdings) return malformed("hello", "too many layers");
  for (std::uint16_t i = 0; i < n_holdings; ++i) {
    LayerHolding& holding = hello.holdings.emplace_back();
    holding.layer = in.get<std::uint16_t>();
    holding.n_expert = in.get<std::uint16_t>();
    if (!in.ok() || holding.n_expert > max_experts) return malformed("hello", "a layer is cut short or announces too many experts");
    holding.bits.resize((holding.n_expert + 63u) / 64);
    for (std::uint64_t& word : holding.bits) word = in.get<std::uint64_t>();
    if (holding.n_expert % 64 != 0 && in.ok() && holding.bits.back() >> (holding.n_expert % 64) != 0) {
      return malformed("hello", "a layer marks experts beyond its count");
    }
    if (i > 0 && hello.holdings[i - 1u].layer >= holding.layer) return malformed("hello", "layers are not in ascending order");
  }
  if (!in.finished()) return malformed("hello", "its length does not fit its contents");
  return hello;
}

void encode(const Refuse& refuse, Bytes& out) { encode_reason(refuse.kind, refuse.reason, out); }
Result<Refuse> decode_refuse(ByteSpan body) { return decode_reason<Refuse>(body, "refusal"); }
void encode(const Failed& failed, Bytes& out) { encode_reason(failed.kind, failed.reason, out); }
Result<Failed> decode_failed(ByteSpan body) { return decode_reason<Failed>(body, "failure"); }

void encode_dispatch_header(const Dispatch& dispatch, Bytes& out) {
  ByteWriter writer(out);
  writer.put(dispatch.layer);
  writer.put(static_cast<std::uint8_t>(dispatch.mode));
  writer.put(static_cast<std::uint8_t>(dispatch.row_type));
  writer.put(dispatch.program);
  writer.put(dispatch.n_tokens);
  writer.put(static_cast<std::uint32_t>(dispatch.pairs.size()));
  const std::span<std::byte> counts = writer.extend(dispatch.n_tokens);
  for (const WirePair& pair : dispatch.pairs) counts[pair.token] = static_cast<std::byte>(static_cast<unsigned>(counts[pair.token]) + 1);
  for (const WirePair& pair : dispatch.pairs) writer.put(pair.expert);
}

Result<Dispatch> decode_dispatch(ByteSpan body) {
  ByteReader in(body);
  Dispatch dispatch;
  dispatch.layer = in.get<std::uint16_t>();
  auto combine_mode = mode(in.get<std::uint8_t>(), "dispatch");
  if (!combine_mode) return pass(combine_mode);
  auto type = row_type(in.get<std::uint8_t>(), "dispatch");
  if (!type) return pass(type);
  dispatch.mode = *combine_mode;
  dispatch.row_type = *type;
  dispatch.program = in.get<std::uint64_t>();
  dispatch.n_tokens = in.get<std::uint32_t>();
  const auto n_pairs = in.get<std::uint32_t>();
  if (!in.ok()) return malformed("dispatch", "it is cut short");
  if (dispatch.n_tokens == 0 || dispatch.n_tokens > max_dispatch_tokens) return malformed("dispatch", "its token count is out of range");
  if (n_pairs == 0 || n_pairs > max_dispatch_pairs) return malformed("dispatch", "its pair count is out of range");
  const ByteSpan counts = in.take(dispatch.n_tokens);
  const ByteSpan experts = in.take(std::size_t{n_pairs} * sizeof(std::uint16_t));
  if (!in.ok()) return malformed("dispatch", "it is cut short");
  std::uint64_t total = 0;
  for (const std::byte count : counts) total += static_cast<std::uint8_t>(count);
  if (total != n_pairs) return malformed("dispatch", "its pair counts do not add up");
  dispatch.pairs.resize(n_pairs);
  std::size_t p = 0;
  for (std::uint32_t token = 0; token < dispatch.n_tokens; ++token) {
    for (std::uint8_t k = 0; k < static_cast<std::uint8_t>(counts[token]); ++k, ++p) {
      dispatch.pairs[p].token = token;
      std::memcpy(&dispatch.pairs[p].expert, experts.data() + p * sizeof(std::uint16_t), sizeof(std::uint16_t));
    }
  }
  dispatch.rows = in.take(in.left());
  return dispatch;
}

void encode_combine_header(const Combine& combine, Bytes& out) {
  ByteWriter writer(out);
  writer.put(static_cast<std::uint8_t>(combine.mode));
  writer.put(static_cast<std::uint8_t>(combine.row_type));
  writer.put<std::uint16_t>(0);
  writer.put(combine.compute_us);
  writer.put(combine.queue_us);
  writer.put(combine.n_rows);
  writer.put(combine.n);
}

Result<Combine> decode_combine(ByteSpan body) {
  ByteReader in(body);
  Combine combine;
  auto combine_mode = mode(in.get<std::uint8_t>(), "combine");
  if (!combine_mode) return pass(combine_mode);
  auto type = row_type(in.get<std::uint8_t>(), "combine");
  if (!type) return pass(type);
  combine.mode = *combine_mode;
  combine.row_type = *type;
  in.get<std::uint16_t>();
  combine.compute_us = in.get<std::uint32_t>();
  combine.queue_us = in.get<std::uint32_t>();
  combine.n_rows = in.get<std::uint32_t>();
  combine.n = in.get<std::uint32_t>();
  if (!in.ok()) return malformed("combine", "it is cut short");
  if (combine.n_rows > max_rows || combine.n > max_elements) return malformed("combine", "its row count or length is out of range");
  if (in.left() != combine.n_rows * row_bytes(effective_row_type(combine.row_type, combine.n), combine.n)) {
    return malformed("combine", "its length does not fit its rows");
  }
  combine.rows = in.take(in.left());
  return combine;
}

}  // namespace linkcpp::wire
