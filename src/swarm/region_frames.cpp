#include "swarm/region_frames.h"

#include <algorithm>
#include <cstring>

#include "wire/frame.h"

namespace linkcpp::swarm {
namespace {

using wire::Input;

/// Rows of one program input for the pairs (or their tokens), encoded behind `frame`. Returns their bytes.
std::size_t append_input(const engine::RegionCall& call, std::size_t k, std::span<const dispatch::Pair> pairs,
                         std::span<const std::uint32_t> tokens, wire::RowType wanted, Bytes& frame) {
  const Input& input = call.program->inputs[k];
  const wire::RowType type = wire::effective_row_type(wanted, input.n);
  const float* from = call.inputs[k].data();
  const std::size_t n = input.n;
  const std::size_t row = wire::row_bytes(type, n);
  const bool by_token = input.kind == Input::Kind::token;
  const std::size_t n_rows = by_token ? tokens.size() : pairs.size();
  const std::size_t all_rows = by_token ? call.n_tokens : std::size_t{call.n_tokens} * call.top_k;
  ByteWriter writer(frame);
  std::span<std::byte> to = writer.extend(n_rows * row);
  if (n_rows == all_rows) {  // then they are all there, in order
    wire::encode_rows(type, from, n, n_rows, n, to);
    return to.size();
  }
  for (std::size_t r = 0; r < n_rows; ++r) {
    const std::size_t source = by_token ? tokens[r] : pairs[r].index;
    wire::encode_rows(type, from + source * n, n, 1, n, to.subspan(r * row, row));
  }
  return to.size();
}

}  // namespace

std::vector<std::uint32_t> tokens_of(std::span<const dispatch::Pair> pairs) {
  std::vector<std::uint32_t> tokens;
  for (const dispatch::Pair& pair : pairs) {
    if (tokens.empty() || tokens.back() != pair.token) tokens.push_back(pair.token);
  }
  return tokens;
}

EncodedDispatch encode_dispatch(const engine::RegionCall& call, std::span<const dispatch::Pair> pairs, std::uint64_t request,
                                wire::CombineMode mode, wire::RowType type) {
  const std::vector<std::uint32_t> tokens = tokens_of(pairs);
  wire::Dispatch dispatch;
  dispatch.layer = call.layer;
  dispatch.mode = mode;
  dispatch.row_type = type;
  dispatch.program = call.program_id;
  dispatch.n_tokens = static_cast<std::uint32_t>(tokens.size());
  dispatch.pairs.reserve(pairs.size());
  std::uint32_t local = 0;
  for (const dispatch::Pair& pair : pairs) {
    while (tokens[local] != pair.token) ++local;
    dispatch.pairs.push_back({local, pair.expert});
  }
  EncodedDispatch encoded;
  std::size_t hint = 64 + tokens.size() + pairs.size() * 2;
  for (const Input& input : call.program->inputs) {
    hint += wire::row_bytes(wire::RowType::f32, input.n) * (input.kind == Input::Kind::token ? tokens.size() : pairs.size());
  }
  encoded.frame = wire::begin_frame(wire::FrameType::dispatch, request, hint);
  wire::encode_dispatch_header(dispatch, encoded.frame);
  for (std::size_t k = 0; k < call.inputs.size(); ++k) encoded.payload += append_input(call, k, pairs, tokens, type, encoded.frame);
  wire::finish_frame(encoded.frame);
  encoded.n_tokens = dispatch.n_tokens;
  return encoded;
}

Result<> check_combine(const wire::Combine& combine, const engine::RegionCall& call, std::size_t n_rows, wire::CombineMode mode,
                       wire::RowType type) {
  if (combine.mode != mode || combine.row_type != type) {
    return fail(ErrorKind::invalid_input, "answer in mode {} with {} rows, {} with {} was asked for", wire::to_string(combine.mode),
                wire::to_string(combine.row_type), wire::to_string(mode), wire::to_string(type));
  }
  if (combine.n != call.program->n_out() || combine.n_rows != n_rows) {
    return fail(ErrorKind::invalid_input, "answer of {} rows of {}, {} rows of {} were asked for", combine.n_rows, combine.n, n_rows,
                call.program->n_out());
  }
  return {};
}

void place_rows(const wire::Combine& combine, std::span<const dispatch::Pair> pairs, engine::RegionCall& call) {
  const std::size_t n = combine.n;
  const wire::RowType type = wire::effective_row_type(combine.row_type, combine.n);
  const std::size_t row = wire::row_bytes(type, n);
  if (pairs.size() * n == call.output.size()) {
    wire::decode_rows(type, combine.rows, n, pairs.size(), call.output.data(), n);
    return;
  }
  for (std::size_t r = 0; r < pairs.size(); ++r) {
    wire::decode_rows(type, combine.rows.subspan(r * row, row), n, 1, call.output.data() + pairs[r].index * n, n);
  }
}

void add_partials(std::vector<PartialSum>& partials, engine::RegionCall& call) {
  std::ranges::stable_sort(partials, {}, &PartialSum::worker);
  const std::size_t n = call.program->n_out();
  std::vector<bool> touched(call.n_tokens, false);
  for (const PartialSum& partial : partials) {
    for (std::size_t r = 0; r < partial.tokens.size(); ++r) {
      const std::uint32_t token = partial.tokens[r];
      const float* from = partial.rows.data() + r * n;
      float* to = call.output.data() + token * n;
      if (!touched[token]) {
        std::memcpy(to, from, n * sizeof(float));
        touched[token] = true;
      } else {
        for (std::size_t i = 0; i < n; ++i) to[i] += from[i];
      }
    }
  }
}

}  // namespace linkcpp::swarm
