// Fuzzes the decoder of region programs, which a hostile backbone writes. What is accepted is sound by an independent reading of the
// rules, has this one encoding, and gives sizes that do not overflow.
#include "wire/program.h"

#include <algorithm>
#include <cstdint>

#include "fuzz/require.h"
#include "unit/wire/samples.h"
#include "wire/frame_size.h"

namespace linkcpp::wire {
namespace {

using fuzz::require;

void check_source(const Program& program, const Source& source, std::size_t user) {
  switch (source.kind) {
    case Source::Kind::none:
      return require(source.index == 0, "no source has no index");
    case Source::Kind::op:
      return require(source.index < user, "sources are earlier ops");
    case Source::Kind::input:
      return require(source.index < program.inputs.size(), "inputs exist");
    case Source::Kind::weight:
      return require(source.index < program.weights.size(), "weights exist");
  }
  require(false, "kinds of sources are known");
}

void check_limits(const Program& program) {
  require(!program.ops.empty() && program.ops.size() <= max_program_ops, "ops are bounded");
  require(!program.inputs.empty() && program.inputs.size() <= max_program_inputs, "inputs are bounded");
  require(program.weights.size() <= max_program_weights, "weights are bounded");
  require(program.output < program.ops.size(), "the output exists");
  for (const Input& in : program.inputs) require(in.n > 0 && in.n <= max_row_elements, "rows are bounded");
  for (const std::string& name : program.weights) {
    require(!name.empty() && name.size() <= max_weight_name, "names are short");
    for (const char c : name) require(c > ' ' && c < 0x7F && c != '/' && c != '%', "names are harmless");
  }
}

void check_op(const Program& program, std::size_t i) {
  const Op& op = program.ops[i];
  require(op.n_out > 0 && op.n_out <= max_row_elements, "rows are bounded");
  require(op.kind == OpKind::view || op.offset == 0, "only views have an offset");
  const bool weighted = op.kind == OpKind::mul_mat_id || op.kind == OpKind::add_id;
  for (std::size_t s = 0; s < op.sources.size(); ++s) {
    check_source(program, op.sources[s], i);
    require((op.sources[s].kind == Source::Kind::weight) == (weighted && s == 1), "weights are where they belong");
  }
  const Source& first = op.sources[0];
  require(first.kind == Source::Kind::op || first.kind == Source::Kind::input, "every op reads rows");
  const std::uint64_t a = first.kind == Source::Kind::op ? program.ops[first.index].n_out : program.inputs[first.index].n;
  if (op.kind == OpKind::view) require(op.offset + std::uint64_t{op.n_out} <= a, "views lie within their row");
}

}  // namespace
}  // namespace linkcpp::wire

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace linkcpp::wire;
  linkcpp::fuzz::SeedFolder().add("gated", encoded(gated_program()));
  linkcpp::fuzz::SeedFolder().add("every-op", encoded(every_op_program()));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkcpp;
  using namespace linkcpp::wire;
  const ByteSpan body = std::as_bytes(std::span(data, size));
  const auto program = decode_program(body);
  if (!program) {
    fuzz::require(!program.error().message.empty(), "an error has a message");
    return 0;
  }
  fuzz::require(check_program(*program).has_value(), "what was decoded is sound");
  check_limits(*program);
  for (std::size_t i = 0; i < program->ops.size(); ++i) check_op(*program, i);
  const Bytes again = encoded(*program);
  fuzz::require(std::ranges::equal(again, body), "a program has one encoding only");
  const auto twice = decode_program(again);
  fuzz::require(twice && *twice == *program && program_id(*twice) == program_id(*program), "decoding again gives the same program");
  const std::size_t most = input_area_bytes(*program, RowType::f32, max_dispatch_tokens, max_dispatch_pairs);
  fuzz::require(most < std::size_t{1} << 47, "sizes do not overflow");
  if (const std::uint32_t n = tokens_in_a_frame(*program, RowType::f16, CombineMode::raw, 8); n > 0) {
    fuzz::require(dispatch_bytes(*program, RowType::f16, n, std::size_t{n} * 8) <= max_frame_body, "a dispatch fits into a frame");
  }
  return 0;
}
