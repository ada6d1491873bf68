#include "wire/messages.h"

#include <algorithm>
#include <cassert>

#include "wire/malformed.h"
#include "wire/program.h"
#include "wire/text.h"

namespace linkcpp::wire {
namespace {

/// Dispatch and Combine both begin with a combine mode and a row type.
struct Encoding {
  CombineMode mode = CombineMode::raw;
  RowType row_type = RowType::f32;
};

Result<Encoding> decode_encoding(ByteReader& in, const char* what) {
  const auto mode = in.get<std::uint8_t>();
  const auto type = in.get<std::uint8_t>();
  if (mode > static_cast<std::uint8_t>(CombineMode::sum)) return malformed(what, "combine mode {} is not known", mode);
  if (type >= row_type_count) return malformed(what, "row type {} is not known", type);
  return Encoding{static_cast<CombineMode>(mode), static_cast<RowType>(type)};
}

/// Refuse and Failed have one layout: kind u8, reason text.
void encode_reason(ErrorKind kind, const std::string& reason, Bytes& out) {
  ByteWriter writer(out);
  writer.put(static_cast<std::uint8_t>(kind));
  writer.text(plain_text(reason, max_reason_bytes));
}

template <class T>
Result<T> decode_reason(ByteSpan body, const char* what) {
  ByteReader in(body);
  const auto kind = in.get<std::uint8_t>();
  const std::string reason = in.text();
  if (!in.finished()) return malformed(what, "its length does not fit its text");
  if (kind > static_cast<std::uint8_t>(ErrorKind::internal)) return malformed(what, "error kind {} is not known", kind);
  return T{static_cast<ErrorKind>(kind), plain_text(reason, max_reason_bytes)};
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
  if (text.size() != 2 * digest.size())
    return fail(ErrorKind::invalid_input, "a digest has {} hexadecimal digits, got {}", 2 * digest.size(), text.size());
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return fail(ErrorKind::invalid_input, "a digest has hexadecimal digits only");
    digest[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

void encode(const Hello& hello, Bytes& out) {
  ByteWriter writer(out);
  writer.text(plain_text(hello.engine, max_name_bytes));
  writer.text(plain_text(hello.name, max_name_bytes));
  writer.text(plain_text(hello.device, max_name_bytes));
  writer.put(hello.n_threads);
  writer.put(hello.row_types);
  writer.raw(std::as_bytes(std::span(hello.model)));
  encode_holdings(hello.holdings, writer);
}

Result<Hello> decode_hello(ByteSpan body) {
  ByteReader in(body);
  Hello hello;
  hello.engine = in.text();
  hello.name = in.text();
  hello.device = in.text();
  hello.n_threads = in.get<std::uint16_t>();
  hello.row_types = in.get<std::uint32_t>();
  in.fill(hello.model);
  if (!in.ok()) return malformed("hello", "it is cut short");
  for (const std::string* text : {&hello.engine, &hello.name, &hello.device}) {
    if (text->size() > max_name_bytes) return malformed("hello", "a text has {} bytes, the limit is {}", text->size(), max_name_bytes);
    if (!is_plain_text(*text)) return malformed("hello", "a text is not plain UTF-8");
  }
  auto holdings = decode_holdings(in, "hello");
  if (!holdings) return pass(holdings);
  hello.holdings = std::move(*holdings);
  if (!in.finished()) return malformed("hello", "its length does not fit its contents");
  return hello;
}

void encode(const Refuse& refuse, Bytes& out) { encode_reason(refuse.kind, refuse.reason, out); }
Result<Refuse> decode_refuse(ByteSpan body) { return decode_reason<Refuse>(body, "refusal"); }
void encode(const Failed& failed, Bytes& out) { encode_reason(failed.kind, failed.reason, out); }
Result<Failed> decode_failed(ByteSpan body) { return decode_reason<Failed>(body, "failure"); }

void encode_dispatch_header(const Dispatch& dispatch, Bytes& out) {
  assert(dispatch.n_tokens > 0 && dispatch.n_tokens <= max_dispatch_tokens);
  assert(dispatch.pairs.size() >= dispatch.n_tokens && dispatch.pairs.size() <= max_dispatch_pairs);
  assert(std::ranges::is_sorted(dispatch.pairs, {}, &WirePair::token) && dispatch.pairs.back().token < dispatch.n_tokens);
  ByteWriter writer(out);
  writer.put(dispatch.layer);
  writer.put(static_cast<std::uint8_t>(dispatch.mode));
  writer.put(static_cast<std::uint8_t>(dispatch.row_type));
  writer.put(dispatch.program);
  writer.put(dispatch.n_tokens);
  writer.put(static_cast<std::uint32_t>(dispatch.pairs.size()));
  const std::span<std::byte> counts = writer.extend(dispatch.n_tokens);
  for (const WirePair& pair : dispatch.pairs) {
    assert(counts[pair.token] != std::byte{max_token_pairs});
    counts[pair.token] = static_cast<std::byte>(std::to_integer<unsigned>(counts[pair.token]) + 1);
  }
  const std::span<std::byte> experts = writer.extend(dispatch.pairs.size() * sizeof(WirePair::expert));
  for (std::size_t p = 0; p < dispatch.pairs.size(); ++p) {
    std::memcpy(experts.data() + p * sizeof(WirePair::expert), &dispatch.pairs[p].expert, sizeof(WirePair::expert));
  }
}

Result<Dispatch> decode_dispatch(ByteSpan body) {
  ByteReader in(body);
  Dispatch dispatch;
  dispatch.layer = in.get<std::uint16_t>();
  auto encoding = decode_encoding(in, "dispatch");
  if (!encoding) return pass(encoding);
  dispatch.mode = encoding->mode;
  dispatch.row_type = encoding->row_type;
  dispatch.program = in.get<std::uint64_t>();
  dispatch.n_tokens = in.get<std::uint32_t>();
  const auto n_pairs = in.get<std::uint32_t>();
  if (!in.ok()) return malformed("dispatch", "it is cut short");
  if (dispatch.n_tokens == 0 || dispatch.n_tokens > max_dispatch_tokens) {
    return malformed("dispatch", "it has {} tokens, 1 to {} are allowed", dispatch.n_tokens, max_dispatch_tokens);
  }
  if (n_pairs == 0 || n_pairs > max_dispatch_pairs)
    return malformed("dispatch", "it has {} pairs, 1 to {} are allowed", n_pairs, max_dispatch_pairs);
  const ByteSpan counts = in.take(dispatch.n_tokens);
  const ByteSpan experts = in.take(std::size_t{n_pairs} * sizeof(WirePair::expert));
  if (!in.ok()) return malformed("dispatch", "it is cut short");
  std::uint64_t total = 0;
  for (const std::byte count : counts) total += std::to_integer<unsigned>(count);
  if (total != n_pairs || std::ranges::contains(counts, std::byte{0})) {
    return malformed("dispatch", "its pair counts do not add up to {}, or a token has none", n_pairs);
  }
  dispatch.pairs.resize(n_pairs);
  std::size_t p = 0;
  for (std::uint32_t token = 0; token < dispatch.n_tokens; ++token) {
    for (unsigned k = std::to_integer<unsigned>(counts[token]); k > 0; --k, ++p) {
      dispatch.pairs[p].token = token;
      std::memcpy(&dispatch.pairs[p].expert, experts.data() + p * sizeof(WirePair::expert), sizeof(WirePair::expert));
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
  auto encoding = decode_encoding(in, "combine");
  if (!encoding) return pass(encoding);
  combine.mode = encoding->mode;
  combine.row_type = encoding->row_type;
  in.get<std::uint16_t>();
  combine.compute_us = in.get<std::uint32_t>();
  combine.queue_us = in.get<std::uint32_t>();
  combine.n_rows = in.get<std::uint32_t>();
  combine.n = in.get<std::uint32_t>();
  if (!in.ok()) return malformed("combine", "it is cut short");
  if (combine.n_rows == 0 || combine.n_rows > max_dispatch_pairs || combine.n == 0 || combine.n > max_row_elements) {
    return malformed("combine", "{} rows of {} elements are out of range", combine.n_rows, combine.n);
  }
  const std::size_t expected = combine.n_rows * row_bytes(effective_row_type(combine.row_type, combine.n), combine.n);
  if (in.left() != expected) {
    return malformed("combine", "{} rows of {} {} elements are {} bytes, got {}", combine.n_rows, combine.n, to_string(combine.row_type),
                     expected, in.left());
  }
  combine.rows = in.take(in.left());
  return combine;
}

}  // namespace linkcpp::wire
