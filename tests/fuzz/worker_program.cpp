// Hostile programs and requests against a worker's engine: whatever validate() and check() let through must compute without a crash.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>

#include "unit/engine/expert_test_model.h"

namespace linkcpp {
namespace {

struct Subject {
  test::TempFolder folder;
  test::ModelShape shape{.type = GGML_TYPE_Q8_0, .n_embd = 32, .n_ff = 64, .n_expert = 4, .top_k = 2, .n_layers = 1, .bias = true};
  engine::Anatomy anatomy = test::write_model(shape, folder.path() / "model.gguf");
  std::unique_ptr<engine::ExpertHost> host =
      engine::ExpertHost::open(anatomy, {.n_threads = 1, .experts = {{.first = 0, .last = 2}}, .max_graph_bytes = 64u << 20}).value();
};

Subject& subject() {
  static Subject s;
  return s;
}

constexpr std::array roles{"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_exps.bias",
                           "ffn_up_exps.bias",     "ffn_down_exps.bias", "ffn_none_exps.weight"};

/// Mostly sensible, so that the fuzzer gets past the first checks; every field can still be anything.
wire::Program make_program(FuzzedDataProvider& in) {
  const auto length = [&]() -> std::uint32_t {
    static constexpr std::array<std::uint32_t, 8> usual{32, 64, 1, 16, 96, 31, 128, 0};
    return in.ConsumeProbability<float>() < 0.95f ? in.PickValueInArray(usual) : in.ConsumeIntegral<std::uint32_t>();
  };
  wire::Program p;
  const int n_inputs = in.ConsumeIntegralInRange(1, 4), n_ops = in.ConsumeIntegralInRange(1, 12);
  for (int i = 0; i < n_inputs; ++i) p.inputs.push_back({static_cast<wire::Input::Kind>(in.ConsumeIntegralInRange(0, 1)), length()});
  for (const char* role : roles) {
    if (in.ConsumeProbability<float>() < 0.9f) p.weights.emplace_back(role);
  }
  for (int i = 0; i < n_ops; ++i) {
    wire::Op& op = p.ops.emplace_back();
    op.kind = static_cast<wire::OpKind>(in.ConsumeIntegralInRange(0, 14));
    op.n_out = length();
    if (op.kind == wire::OpKind::view) op.offset = in.ConsumeIntegralInRange<std::uint32_t>(0, 80);
    const int n_params = in.ConsumeIntegralInRange(0, 16);
    for (int k = 0; k < n_params && k < 16; ++k)
      op.params[k] = in.ConsumeBool() ? in.ConsumeIntegralInRange(-1, 45) : in.ConsumeIntegral<std::int32_t>();
    for (wire::Source& source : op.sources) {
      source.kind = static_cast<wire::Source::Kind>(in.ConsumeIntegralInRange(0, 3));
      source.index = source.kind == wire::Source::Kind::none ? 0 : in.ConsumeIntegralInRange<std::uint16_t>(0, 12);
    }
    const bool weighted = op.kind == wire::OpKind::mul_mat_id || op.kind == wire::OpKind::add_id;
    if (in.ConsumeProbability<float>() < 0.9f) {
      op.sources[2] = {};
      if (weighted) op.sources[1].kind = wire::Source::Kind::weight;
    }
  }
  p.output = in.ConsumeIntegralInRange<std::uint16_t>(0, static_cast<std::uint16_t>(n_ops));
  return p;
}

float any_float(FuzzedDataProvider& in) {
  static constexpr std::array usual{0.0f, 1.0f, -1.0f, 3e38f, -3e38f, 1e-40f, __builtin_nanf(""), __builtin_inff(), -__builtin_inff()};
  return in.PickValueInArray(usual);
}

void run(const wire::Program& program, FuzzedDataProvider& in) {
  engine::ExpertHost& host = *subject().host;
  if (!host.validate(program, 0)) return;
  engine::HostRequest request;
  request.n_tokens = in.ConsumeIntegralInRange<std::uint32_t>(0, 5);
  request.mode = static_cast<wire::CombineMode>(in.ConsumeBool());
  std::vector<wire::WirePair> pairs(in.ConsumeIntegralInRange<std::size_t>(0, 12));
  std::uint32_t token = 0;
  for (wire::WirePair& pair : pairs) {
    if (in.ConsumeBool()) ++token;
    pair = {token, in.ConsumeIntegralInRange<std::uint16_t>(0, 4)};
  }
  request.pairs = pairs;
  std::vector<std::vector<float>> inputs;
  std::size_t elements = 0;
  for (const wire::Input& input : program.inputs) {
    const std::size_t n = (input.kind == wire::Input::Kind::token ? request.n_tokens : pairs.size()) * input.n;
    elements += n;
    if (elements > 1u << 22) return;  // memory of the fuzzer, not of the worker
    inputs.emplace_back(n, any_float(in));
  }
  for (auto& rows : inputs) request.inputs.emplace_back(rows);
  const std::size_t n_rows = request.mode == wire::CombineMode::raw ? pairs.size() : request.n_tokens;
  std::vector<float> output(n_rows * program.n_out());
  request.output = output;
  const bool accepted = host.check(program, 0, request).has_value();
  if (host.run(program, 0, {&request, 1}).has_value() != accepted) std::abort();
}

}  // namespace
}  // namespace linkcpp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider in(data, size);
  if (in.ConsumeBool()) {
    const auto program = linkcpp::make_program(in);
    linkcpp::run(program, in);
    return 0;
  }
  const std::vector<std::uint8_t> rest = in.ConsumeRemainingBytes<std::uint8_t>();
  if (auto program = linkcpp::wire::decode_program(std::as_bytes(std::span(rest)))) {
    FuzzedDataProvider again(data, size);
    linkcpp::run(*program, again);
  }
  return 0;
}
