// Bodies of the frames (all but `program`, which is in program.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "wire/frame.h"
#include "wire/holdings.h"
#include "wire/rows.h"

namespace linkcpp::wire {

/// How a worker returns a region's result.
enum class CombineMode : std::uint8_t {
  raw = 0,  ///< every pair's row; the backbone sums: bit-identical to local computation
  sum = 1,  ///< one weighted partial sum a touched token: up to top-k times fewer bytes
};
std::string_view to_string(CombineMode mode);
Result<CombineMode> parse_combine_mode(std::string_view text);

using Digest = std::array<std::uint8_t, 32>;
std::string to_hex(const Digest& digest);
Result<Digest> digest_from_hex(std::string_view text);

inline constexpr std::size_t max_name_bytes = 256;     ///< each text of a hello
inline constexpr std::size_t max_reason_bytes = 1024;  ///< of a refusal or failure

/// Worker to backbone, first frame after authentication. Texts are plain (wire/text.h), holdings in ascending order of layers.
struct Hello {
  std::string engine;  ///< engine version, for example "ggml 0.27.0"
  std::string name;    ///< what the operator calls this worker
  std::string device;  ///< kind of device that computes, for example "CPU"
  std::uint16_t n_threads = 0;
  std::uint32_t row_types = 1;  ///< bit t set: RowType t is understood
  Digest model{};               ///< model digest (engine/anatomy.h); zeros: none yet, it will offer room (wire/provision.h)
  std::vector<LayerHolding> holdings;
};
/// Texts are made plain and cut to max_name_bytes, so that any hello within the limits can be decoded.
void encode(const Hello& hello, Bytes& out);
/// Fails with `invalid_input` on anything that encode() would not write.
Result<Hello> decode_hello(ByteSpan body);

/// Why a peer was refused; the text says what to do. Encoding and decoding both make it plain and cut it to max_reason_bytes: a peer's
/// last words should be readable, but must not steer a terminal.
struct Refuse {
  ErrorKind kind = ErrorKind::unauthorized;
  std::string reason;
};
void encode(const Refuse& refuse, Bytes& out);
Result<Refuse> decode_refuse(ByteSpan body);

/// Answer to a request that cannot be computed.
struct Failed {
  ErrorKind kind = ErrorKind::internal;
  std::string reason;
};
void encode(const Failed& failed, Bytes& out);
Result<Failed> decode_failed(ByteSpan body);

/// A selected expert of one token of this frame. Pairs come grouped by token, tokens ascending.
struct WirePair {
  std::uint32_t token = 0;  ///< row index within this frame
  std::uint16_t expert = 0;
};

/// Dispatch header. On the wire: layer u16, mode u8, row_type u8, program id u64, n_tokens u32, n_pairs u32; then a u8 pair
/// count for every token, a u16 expert id for every pair; then for each program input in order its rows: a token input
/// has n_tokens rows, a pair input n_pairs rows. Rows of one element are always F32, all others are of row_type.
/// The row area is opaque here, since its length follows from the program: see split_input_area() in wire/frame_size.h.
struct Dispatch {
  std::uint16_t layer = 0;
  CombineMode mode = CombineMode::raw;
  RowType row_type = RowType::f32;
  std::uint64_t program = 0;
  std::uint32_t n_tokens = 0;
  std::vector<WirePair> pairs;
  ByteSpan rows;  ///< points into the decoded body
};
inline constexpr std::uint32_t max_dispatch_tokens = 1u << 16;
inline constexpr std::uint32_t max_dispatch_pairs = 1u << 20;
inline constexpr std::size_t dispatch_header_bytes = 20;  ///< before the counts
/// Pairs of one token in one frame: fits the u8 count. Every token has at least one: others are not sent.
inline constexpr std::uint32_t max_token_pairs = 255;

/// Writes everything up to the rows; the caller appends the rows with encode_rows(). The pairs must be as described at WirePair and
/// within the limits, which is asserted.
void encode_dispatch_header(const Dispatch& dispatch, Bytes& out);
/// Checks everything but what depends on the program and the worker: whether experts exist and how long the row area is.
Result<Dispatch> decode_dispatch(ByteSpan body);

/// Combine. On the wire: mode u8, row_type u8, reserved u16, compute_us u32, queue_us u32, n_rows u32, n u32; then n_rows rows
/// of n elements. In raw mode a row for each pair in the order of the dispatch, in sum mode one for each token of it.
struct Combine {
  CombineMode mode = CombineMode::raw;
  RowType row_type = RowType::f32;
  std::uint32_t compute_us = 0;  ///< time that the worker computed
  std::uint32_t queue_us = 0;    ///< time that the request waited in the worker
  std::uint32_t n_rows = 0;
  std::uint32_t n = 0;
  ByteSpan rows;  ///< points into the decoded body, exactly n_rows * row_bytes(row_type, n)
};
inline constexpr std::size_t combine_header_bytes = 20;
void encode_combine_header(const Combine& combine, Bytes& out);
/// Checks everything but whether it is the answer that was asked for.
Result<Combine> decode_combine(ByteSpan body);

}  // namespace linkcpp::wire
