// A region call split over any workers and put together again is the same rows, in every mode and row type.
#include "swarm/region_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace linkcpp::swarm {
namespace {

/// A call of n_tokens tokens with a token input of n elements and a router weight a pair, whose rows are known numbers.
struct Call {
  Call(std::uint32_t n_tokens, std::uint32_t top_k, std::uint32_t n, bool sum, unsigned seed = 3) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-2, 2);
    program.inputs = {{wire::Input::Kind::token, n}, {wire::Input::Kind::pair, 1}};
    program.weights = {"ffn_up_exps.weight"};
    wire::Op matmul{.kind = wire::OpKind::mul_mat_id, .n_out = n};
    matmul.sources = {wire::Source{wire::Source::Kind::input, 0}, wire::Source{wire::Source::Kind::weight, 0}, {}};
    wire::Op mul{.kind = wire::OpKind::mul, .n_out = n};
    mul.sources = {wire::Source{wire::Source::Kind::op, 0}, wire::Source{wire::Source::Kind::input, 1}, {}};
    program.ops = {matmul, mul};
    program.output = 1;
    rows.resize(n_tokens * n);
    for (float& v : rows) v = uniform(random);
    weights.resize(n_tokens * top_k);
    for (float& v : weights) v = uniform(random);
    for (std::uint32_t i = 0; i < n_tokens * top_k; ++i) experts.push_back(static_cast<std::int32_t>(random() % 32));
    output.assign(std::size_t{n_tokens} * (sum ? 1 : top_k) * n, NAN);
    call = {.layer = 5,
            .program_id = 77,
            .program = &program,
            .n_tokens = n_tokens,
            .top_k = top_k,
            .experts = experts,
            .inputs = {rows, weights},
            .sum = sum,
            .output = output};
  }
  std::vector<dispatch::Pair> pairs_for(std::uint32_t worker, std::uint32_t n_workers) const {
    std::vector<dispatch::Pair> out;
    for (std::uint32_t i = 0; i < experts.size(); ++i) {
      if (static_cast<std::uint32_t>(experts[i]) % n_workers == worker) {
        out.push_back({i / call.top_k, i, static_cast<std::uint16_t>(experts[i])});
      }
    }
    return out;
  }
  wire::Program program;
  std::vector<float> rows, weights, output;
  std::vector<std::int32_t> experts;
  engine::RegionCall call;
};

/// What a worker would answer if expert e multiplied the row by (e + 1): computed from the decoded frame alone.
Bytes answer(const Bytes& frame, const wire::Program& program, wire::CombineMode mode, wire::RowType type) {
  auto dispatch = wire::decode_dispatch(ByteSpan(frame).subspan(wire::frame_header_bytes));
  EXPECT_TRUE(dispatch.has_value());
  const std::uint32_t n = program.inputs[0].n;
  const wire::RowType row_type = wire::effective_row_type(type, n);
  const std::size_t token_bytes = dispatch->n_tokens * wire::row_bytes(row_type, n);
  std::vector<float> x(std::size_t{dispatch->n_tokens} * n), w(dispatch -> pairs.size());
  wire::decode_rows(row_type, dispatch->rows.first(token_bytes), n, dispatch->n_tokens, x.data(), n);
  wire::decode_rows(wire::RowType::f32, dispatch->rows.subspan(token_bytes), 1, w.size(), w.data(), 1);
  std::vector<float> out(std::size_t{mode == wire::CombineMode::sum ? dispatch->n_tokens : static_cast<std::uint32_t>(w.size())} * n, 0.0f);
  for (std::size_t p = 0; p < w.size(); ++p) {
    const wire::WirePair& pair = dispatch->pairs[p];
    for (std::size_t i = 0; i < n; ++i) {
      const float value = x[pair.token * n + i] * static_cast<float>(pair.expert + 1) * w[p];
      out[(mode == wire::CombineMode::sum ? pair.token : p) * n + i] += value;
    }
  }
  wire::Combine combine{.mode = mode, .row_type = type, .n_rows = static_cast<std::uint32_t>(out.size() / n), .n = n};
  Bytes body;
  wire::encode_combine_header(combine, body);
  ByteWriter writer(body);
  wire::encode_rows(row_type, out.data(), n, combine.n_rows, n, writer.extend(combine.n_rows * wire::row_bytes(row_type, n)));
  return body;
}

class RoundTrip : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, bool, wire::RowType>> {};

TEST_P(RoundTrip, SplitAndJoined) {
  const auto [n_tokens, top_k, n_workers, sum, type] = GetParam();
  Call c(n_tokens, top_k, 24, sum);
  const wire::CombineMode mode = sum ? wire::CombineMode::sum : wire::CombineMode::raw;
  std::vector<PartialSum> partials;
  for (std::uint32_t worker = n_workers; worker-- > 0;) {  // answers in another order than the workers'
    const auto pairs = c.pairs_for(worker, n_workers);
    if (pairs.empty()) continue;
    const EncodedDispatch encoded = encode_dispatch(c.call, pairs, worker, mode, type);
    EXPECT_EQ(encoded.n_tokens, tokens_of(pairs).size());
    const Bytes body = answer(encoded.frame, c.program, mode, type);
    auto combine = wire::decode_combine(body);
    ASSERT_TRUE(combine.has_value());
    const std::size_t n_rows = sum ? tokens_of(pairs).size() : pairs.size();
    ASSERT_TRUE(check_combine(*combine, c.call, n_rows, mode, type).has_value());
    EXPECT_FALSE(check_combine(*combine, c.call, n_rows + 1, mode, type).has_value());
    if (sum) {
      PartialSum& partial = partials.emplace_back();
      partial.worker = worker;
      partial.tokens = tokens_of(pairs);
      partial.rows.resize(n_rows * 24);
      wire::decode_rows(type, combine->rows, 24, n_rows, partial.rows.data(), 24);
    } else {
      place_rows(*combine, pairs, c.call);
    }
  }
  if (sum) add_partials(partials, c.call);
  float largest = 0;
  for (const float v : c.rows) largest = std::max(largest, std::fabs(v));
  largest *= 32 * 2 * (sum ? static_cast<float>(top_k) : 1.0f);  // by the 32nd expert and the largest weight
  const float tolerance = type == wire::RowType::f32   ? 1e-4f
                          : type == wire::RowType::f16 ? 0.6f
                                                       : largest * (type == wire::RowType::int8 ? 0.01f : 0.13f);
  for (std::uint32_t t = 0; t < n_tokens; ++t) {
    for (std::size_t i = 0; i < 24; ++i) {
      float total = 0;
      for (std::uint32_t s = 0; s < top_k; ++s) {
        const std::size_t p = t * top_k + s;
        const float value = c.rows[t * 24 + i] * static_cast<float>(c.experts[p] + 1) * c.weights[p];
        total += value;
        if (!sum) {
          EXPECT_NEAR(c.output[p * 24 + i], value, type == wire::RowType::f32 ? 0.0f : tolerance);
        }
      }
      if (sum) {
        EXPECT_NEAR(c.output[t * 24 + i], total, tolerance);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, RoundTrip,
                         testing::Combine(testing::Values(1u, 2u, 33u), testing::Values(1u, 2u, 8u), testing::Values(1u, 3u, 5u),
                                          testing::Bool(), testing::ValuesIn(wire::all_row_types)));

TEST(RegionFrames, PartialSumsAddInTheOrderOfWorkers) {
  Call a(1, 2, 24, true), b(1, 2, 24, true);
  const auto partial = [](dispatch::WorkerId worker, float value) { return PartialSum{worker, {0}, std::vector<float>(24, value)}; };
  std::vector<PartialSum> one{partial(0, 1e8f), partial(1, 1.0f), partial(2, -1e8f)};
  std::vector<PartialSum> other{partial(2, -1e8f), partial(0, 1e8f), partial(1, 1.0f)};
  add_partials(one, a.call);
  add_partials(other, b.call);
  EXPECT_EQ(std::memcmp(a.output.data(), b.output.data(), a.output.size() * sizeof(float)), 0);
}

TEST(RegionFrames, HeadersStayBelowTwoPercentAtTheTargetSize) {
  Call c(1, 8, 3072, false);
  const EncodedDispatch f32 = encode_dispatch(c.call, c.pairs_for(0, 1), 1, wire::CombineMode::raw, wire::RowType::f32);
  EXPECT_EQ(f32.payload, 3072 * 4 + 8 * 4);
  EXPECT_LT(static_cast<double>(f32.frame.size() - f32.payload) / static_cast<double>(f32.frame.size()), 0.02);
  const EncodedDispatch f16 = encode_dispatch(c.call, c.pairs_for(0, 1), 1, wire::CombineMode::sum, wire::RowType::f16);
  EXPECT_EQ(f16.payload, 3072 * 2 + 8 * 4);
  EXPECT_LT(static_cast<double>(f16.frame.size() - f16.payload) / static_cast<double>(f16.frame.size()), 0.02);
}

}  // namespace
}  // namespace linkcpp::swarm
