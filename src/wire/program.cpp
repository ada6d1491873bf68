#include "wire/program.h"

#include <openssl/evp.h>

#include <algorithm>

namespace linkcpp::wire {
namespace {

bool known_kind(std::uint8_t kind) {
  return kind >= static_cast<std::uint8_t>(OpKind::mul_mat_id) && kind <= static_cast<std::uint8_t>(OpKind::sqrt);
}

bool takes_weight(OpKind kind) { return kind == OpKind::mul_mat_id || kind == OpKind::add_id; }

bool binary(OpKind kind) { return kind == OpKind::mul || kind == OpKind::add || kind == OpKind::sub || kind == OpKind::div; }

bool valid_name(const std::string& name) {
  return !name.empty() && name.size() <= max_weight_name && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
}

class Checker {
 public:
  explicit Checker(const Program& program) : p_(program) {}

  Result<> run() {
    if (p_.ops.empty() || p_.ops.size() > max_program_ops) return bad("it has {} ops, 1 to {} are allowed", p_.ops.size(), max_program_ops);
    if (p_.inputs.empty() || p_.inputs.size() > max_program_inputs)
      return bad("it has {} inputs, 1 to {} are allowed", p_.inputs.size(), max_program_inputs);
    if (p_.weights.size() > max_program_weights)
      return bad("it names {} weights, at most {} are allowed", p_.weights.size(), max_program_weights);
    if (p_.output >= p_.ops.size()) return bad("its output is op {} of {}", p_.output, p_.ops.size());
    for (const std::string& name : p_.weights) {
      if (!valid_name(name)) return bad("a weight name does not consist of 1 to {} letters, digits, dots and underscores", max_weight_name);
    }
    for (const Input& input : p_.inputs) {
      if (input.kind > Input::Kind::pair) return bad("an input is of unknown kind {}", static_cast<int>(input.kind));
      if (input.n == 0 || input.n > max_row_elements) return bad("an input has rows of {} elements", input.n);
    }
    for (std::size_t i = 0; i < p_.ops.size(); ++i) {
      if (auto checked = check(i); !checked) return checked;
    }
    return {};
  }

 private:
  template <class... Args>
  static std::unexpected<Error> bad(std::format_string<Args...> format, Args&&... args) {
    return fail(ErrorKind::invalid_input, "invalid program: {}", std::format(format, std::forward<Args>(args)...));
  }

  /// Elements of a source's row; 0 if it is not a row that op `user` may read.
  std::uint32_t row(const Source& s, std::size_t user) const {
    if (s.kind == Source::Kind::op) return s.index < user ? p_.ops[s.index].n_out : 0;
    if (s.kind == Source::Kind::input) return s.index < p_.inputs.size() ? p_.inputs[s.index].n : 0;
    return 0;
  }

  Result<> check(std::size_t i) const {
    const Op& op = p_.ops[i];
    if (!known_kind(static_cast<std::uint8_t>(op.kind))) return bad("op {} is of unknown kind {}", i, static_cast<int>(op.kind));
    if (op.n_out == 0 || op.n_out > max_row_elements) return bad("op {} makes rows of {} elements", i, op.n_out);
    if (op.kind != OpKind::view && op.offset != 0) return bad("op {} is no view but has an offset", i);
    if (op.sources[2] != Source{}) return bad("op {} has a third source", i);
    const std::uint32_t a = row(op.sources[0], i);
    if (a == 0) return bad("the first source of op {} is not an earlier op or an input", i);
    if (takes_weight(op.kind)) return check_weighted(i, a);
    const bool second = op.sources[1] != Source{};
    const std::uint32_t b = second ? row(op.sources[1], i) : 0;
    if (second && b == 0) return bad("the second source of op {} is not an earlier op or an input", i);
    if (binary(op.kind)) {
      if (!second || a != op.n_out || (b != a && b != 1)) return bad("op {} combines rows of {} and {} into {}", i, a, b, op.n_out);
      return {};
    }
    if (op.kind == OpKind::glu) {
      const bool fits = second ? a == b && a == op.n_out : a == std::uint64_t{op.n_out} * 2;
      if (!fits) return bad("op {} gates rows of {} and {} into {}", i, a, b, op.n_out);
      return {};
    }
    if (second) return bad("op {} has a second source", i);
    if (op.kind == OpKind::view) {
      if (std::uint64_t{op.offset} + op.n_out > a)
        return bad("op {} views elements {} to {} of a row of {}", i, op.offset, std::uint64_t{op.offset} + op.n_out, a);
      return {};
    }
    if (a != op.n_out) return bad("op {} turns rows of {} into {}", i, a, op.n_out);
    return {};
  }

  Result<> check_weighted(std::size_t i, std::uint32_t a) const {
    const Op& op = p_.ops[i];
    const Source& weight = op.sources[1];
    if (weight.kind != Source::Kind::weight || weight.index >= p_.weights.size()) return bad("op {} has no weight", i);
    if (op.kind == OpKind::add_id && a != op.n_out) return bad("op {} adds a bias to rows of {} and makes {}", i, a, op.n_out);
    return {};
  }

  const Program& p_;
};

}  // namespace

void encode_program(const Program& program, Bytes& out) {
  ByteWriter writer(out);
  writer.put(static_cast<std::uint8_t>(program.inputs.size()));
  writer.put(static_cast<std::uint8_t>(program.weights.size()));
  writer.put(static_cast<std::uint16_t>(program.ops.size()));
  writer.put(program.output);
  for (const Input& input : program.inputs) {
    writer.put(static_cast<std::uint8_t>(input.kind));
    writer.put(input.n);
  }
  for (const std::string& name : program.weights) writer.text(name);
  for (const Op& op : program.ops) {
    writer.put(static_cast<std::uint8_t>(op.kind));
    writer.put(op.n_out);
    writer.put(op.offset);
    for (const std::int32_t param : op.params) writer.put(param);
    for (const Source& source : op.sources) {
      writer.put(static_cast<std::uint8_t>(source.kind));
      writer.put(source.index);
    }
  }
}

Result<Program> decode_program(ByteSpan body) {
  const auto cut = [] { return fail(ErrorKind::invalid_input, "invalid program: it is cut short or too long"); };
  ByteReader in(body);
  const auto n_inputs = in.get<std::uint8_t>();
  const auto n_weights = in.get<std::uint8_t>();
  const auto n_ops = in.get<std::uint16_t>();
  Program program;
  program.output = in.get<std::uint16_t>();
  if (n_inputs > max_program_inputs || n_weights > max_program_weights || n_ops > max_program_ops) {
    return fail(ErrorKind::invalid_input, "invalid program: {} inputs, {} weights, {} ops exceed the limits", n_inputs, n_weights, n_ops);
  }
  for (std::size_t i = 0; i < n_inputs; ++i) {
    Input& input = program.inputs.emplace_back();
    input.kind = static_cast<Input::Kind>(in.get<std::uint8_t>());
    input.n = in.get<std::uint32_t>();
  }
  for (std::size_t i = 0; i < n_weights; ++i) program.weights.push_back(in.text());
  if (!in.ok()) return cut();
  for (std::size_t i = 0; i < n_ops; ++i) {
    Op& op = program.ops.emplace_back();
    op.kind = static_cast<OpKind>(in.get<std::uint8_t>());
    op.n_out = in.get<std::uint32_t>();
    op.offset = in.get<std::uint32_t>();
    for (std::int32_t& param : op.params) param = in.get<std::int32_t>();
    for (Source& source : op.sources) {
      source.kind = static_cast<Source::Kind>(in.get<std::uint8_t>());
      source.index = in.get<std::uint16_t>();
    }
  }
  if (!in.finished()) return cut();
  if (auto checked = check_program(program); !checked) return pass(checked);
  return program;
}

Result<> check_program(const Program& program) { return Checker(program).run(); }

std::uint64_t program_id(const Program& program) {
  Bytes bytes;
  encode_program(program, bytes);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  std::uint64_t id = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr) == 1) std::memcpy(&id, digest, sizeof id);
  return id;
}

}  // namespace linkcpp::wire
