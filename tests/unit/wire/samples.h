// Programs and messages that the tests of this folder start from.
#pragma once

#include <bit>
#include <string>
#include <string_view>

#include "wire/messages.h"
#include "wire/program.h"
#include "wire/provision.h"

namespace linkcpp::wire {

inline Source op(int index) { return {Source::Kind::op, static_cast<std::uint16_t>(index)}; }
inline Source input(int index) { return {Source::Kind::input, static_cast<std::uint16_t>(index)}; }
inline Source weight(int index) { return {Source::Kind::weight, static_cast<std::uint16_t>(index)}; }

inline Op make_op(OpKind kind, std::uint32_t n_out, Source a, Source b = {}, std::uint32_t offset = 0) {
  return {.kind = kind, .n_out = n_out, .offset = offset, .params = {}, .sources = {a, b, Source{}}};
}

/// A gated expert: gate and up, SwiGLU, down, times the router's weight.
inline Program gated_program(std::uint32_t n_embd = 64, std::uint32_t n_ff = 48) {
  Program program;
  program.inputs = {{Input::Kind::token, n_embd}, {Input::Kind::pair, 1}};
  program.weights = {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"};
  program.ops = {make_op(OpKind::mul_mat_id, n_ff, input(0), weight(0)), make_op(OpKind::mul_mat_id, n_ff, input(0), weight(1)),
                 make_op(OpKind::glu, n_ff, op(0), op(1)), make_op(OpKind::mul_mat_id, n_embd, op(2), weight(2)),
                 make_op(OpKind::mul, n_embd, op(3), input(1))};
  program.ops[2].params[0] = 2;
  program.output = 4;
  return program;
}

/// Every kind of op once: merged gate_up with bias, its halves, and arithmetic between them.
inline Program every_op_program() {
  Program program;
  program.inputs = {{Input::Kind::token, 32}, {Input::Kind::pair, 1}, {Input::Kind::pair, 16}};
  program.weights = {"ffn_gate_up_exps.weight", "ffn_gate_up_exps.bias"};
  program.ops = {make_op(OpKind::mul_mat_id, 32, input(0), weight(0)),
                 make_op(OpKind::add_id, 32, op(0), weight(1)),
                 make_op(OpKind::view, 16, op(1)),
                 make_op(OpKind::view, 16, op(1), {}, 16),
                 make_op(OpKind::unary, 16, op(2)),
                 make_op(OpKind::clamp, 16, op(4)),
                 make_op(OpKind::scale, 16, op(5)),
                 make_op(OpKind::mul, 16, op(6), input(1)),
                 make_op(OpKind::add, 16, op(7), input(2)),
                 make_op(OpKind::sub, 16, op(8), op(3)),
                 make_op(OpKind::div, 16, op(9), op(8)),
                 make_op(OpKind::sqr, 16, op(10)),
                 make_op(OpKind::sqrt, 16, op(11)),
                 make_op(OpKind::glu, 16, op(1)),
                 make_op(OpKind::add, 16, op(13), op(12))};
  program.ops[5].params[0] = std::bit_cast<std::int32_t>(-7.0f);
  program.ops[5].params[1] = std::bit_cast<std::int32_t>(7.0f);
  program.output = 14;
  return program;
}

inline Bytes encoded(const Program& program) {
  Bytes bytes;
  encode_program(program, bytes);
  return bytes;
}

template <class T>
Bytes encoded(const T& message) {
  Bytes bytes;
  encode(message, bytes);
  return bytes;
}

inline Hello sample_hello() {
  Hello hello;
  hello.engine = "ggml 0.27.0";
  hello.name = "Büro 2";
  hello.device = "CPU";
  hello.n_threads = 8;
  hello.row_types = 3;
  for (std::size_t i = 0; i < hello.model.size(); ++i) hello.model[i] = static_cast<std::uint8_t>(i * 7);
  hello.holdings = {{0, 70, {0xFFFF, 0x3F}}, {3, 64, {~std::uint64_t{0}}}, {0x8003, 1, {1}}};
  return hello;
}

inline Offer sample_offer() {
  Offer offer{.budget = 8ull << 30, .share_port = 7103};
  offer.model.fill(0x5A);
  offer.stored = {{2, 70, {0xFFFF, 0x3F}}, {0x8003, 1, {1}}};
  return offer;
}

inline Assign sample_assign() {
  Assign assign;
  assign.model.fill(0x11);
  assign.index.fill(0x22);
  assign.urgent = {{0, 64, {~std::uint64_t{0}}}};
  assign.spare = {{0, 64, {0}}, {7, 3, {5}}};
  assign.sources = {{"lks://:7103", {}}, {"https://example.org/modèle/", {}}};
  assign.sources[0].key.fill(0x33);
  return assign;
}

inline Holds sample_holds() { return {.bytes = 12, .bytes_wanted = 1ull << 40, .holdings = {{1, 65, {3, 1}}}}; }

/// Three tokens with 1, 2 and 1 pairs.
inline Dispatch sample_dispatch() {
  Dispatch dispatch;
  dispatch.layer = 0x8007;
  dispatch.mode = CombineMode::sum;
  dispatch.row_type = RowType::f16;
  dispatch.program = 0x0102030405060708;
  dispatch.n_tokens = 3;
  dispatch.pairs = {{0, 5}, {1, 0x1234}, {1, 2}, {2, 5}};
  return dispatch;
}

inline Bytes encoded(const Dispatch& dispatch) {
  Bytes bytes;
  encode_dispatch_header(dispatch, bytes);
  bytes.insert(bytes.end(), dispatch.rows.begin(), dispatch.rows.end());
  return bytes;
}

inline Bytes encoded(const Combine& combine) {
  Bytes bytes;
  encode_combine_header(combine, bytes);
  bytes.insert(bytes.end(), combine.rows.begin(), combine.rows.end());
  return bytes;
}

}  // namespace linkcpp::wire
