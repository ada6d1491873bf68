// The worker's replay must equal the engine's own graph bit for bit, whatever the split.
#include "engine/expert_host.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>

#include "unit/engine/expert_test_model.h"

namespace linkcpp::engine {
namespace {

using test::Expected;
using test::ModelShape;
using test::Share;
using test::TempFolder;
using test::Workload;
using wire::CombineMode;

std::unique_ptr<ExpertHost> open_host(const Anatomy& anatomy, HostOptions options, const std::string& experts = "all") {
  options.experts = parse_expert_ranges(experts, anatomy.n_expert).value();
  options.n_threads = 1;
  auto host = ExpertHost::open(anatomy, std::move(options));
  if (!host) throw std::runtime_error(host.error().message);
  return std::move(*host);
}

bool held(const ExpertHost& host, int layer, std::int32_t expert) {
  for (const wire::LayerHolding& holding : host.holdings()) {
    if (holding.layer == layer) return holding.has(static_cast<std::uint32_t>(expert));
  }
  return false;
}

/// Rows of a raw answer against those of the whole region.
void expect_pairs(const Share& share, const Expected& expected, std::size_t n) {
  for (std::size_t p = 0; p < share.pairs.size(); ++p) {
    ASSERT_EQ(std::memcmp(share.output.data() + p * n, expected.pairs.data() + share.index[p] * n, n * sizeof(float)), 0) << "pair " << p;
  }
}

struct Case {
  const char* name;
  ModelShape shape;
  HostOptions options = {};
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Replay : public testing::TestWithParam<Case> {
 protected:
  Replay() : anatomy_(test::write_model(GetParam().shape, path())) {}
  [[nodiscard]] std::filesystem::path path() const { return folder_.path() / "model.gguf"; }
  [[nodiscard]] const ModelShape& shape() const { return GetParam().shape; }
  [[nodiscard]] std::size_t n() const { return static_cast<std::size_t>(shape().n_embd); }
  TempFolder folder_;
  Anatomy anatomy_;
};

TEST_P(Replay, EqualsTheEnginesGraph) {
  const auto host = open_host(anatomy_, GetParam().options);
  const wire::Program program = test::make_program(shape());
  std::uint32_t seed = 10;
  for (const int layer : {0, 1, 0}) {
    for (const std::int64_t n_tokens : {1, 7, 64, 300, 1}) {
      const Workload load(shape(), n_tokens, seed += 10);
      const Expected expected = reference(shape(), path(), layer, load);
      Share share(shape(), load, [](auto) { return true; });
      HostRequest raw = share.request(shape(), load, CombineMode::raw);
      auto done = host->run(program, static_cast<LayerKey>(layer), {&raw, 1});
      ASSERT_TRUE(done) << done.error().message;
      expect_pairs(share, expected, n());
      HostRequest sum = share.request(shape(), load, CombineMode::sum);
      ASSERT_TRUE(host->run(program, static_cast<LayerKey>(layer), {&sum, 1}));
      EXPECT_EQ(share.output.size(), expected.sums.size());
      EXPECT_EQ(std::memcmp(share.output.data(), expected.sums.data(), expected.sums.size() * sizeof(float)), 0) << n_tokens << " tokens";
    }
  }
}

TEST_P(Replay, SubsetsGiveTheSameRows) {
  const wire::Program program = test::make_program(shape());
  for (const char* experts : {"1/3", "2/3", "3/3", "1,4,6-7"}) {
    const auto host = open_host(anatomy_, GetParam().options, experts);
    for (const std::int64_t n_tokens : {1, 7, 64, 300}) {
      const Workload load(shape(), n_tokens, static_cast<std::uint32_t>(n_tokens) * 3);
      const Expected expected = reference(shape(), path(), 1, load);
      Share share(shape(), load, [&](std::int32_t e) { return held(*host, 1, e); });
      HostRequest raw = share.request(shape(), load, CombineMode::raw);
      auto done = host->run(program, 1, {&raw, 1});
      ASSERT_TRUE(done) << done.error().message;
      expect_pairs(share, expected, n());
      // Partial sums: the held rows, added in their order; zero where nothing is held.
      HostRequest sum = share.request(shape(), load, CombineMode::sum);
      ASSERT_TRUE(host->run(program, 1, {&sum, 1}));
      std::vector<float> wanted(share.output.size(), 0.0f);
      std::vector<bool> begun(static_cast<std::size_t>(n_tokens));
      for (std::size_t p = 0; p < share.pairs.size(); ++p) {
        float* to = wanted.data() + share.pairs[p].token * n();
        const float* row = expected.pairs.data() + share.index[p] * n();
        for (std::size_t i = 0; i < n(); ++i) to[i] = begun[share.pairs[p].token] ? to[i] + row[i] : row[i];
        begun[share.pairs[p].token] = true;
      }
      EXPECT_EQ(std::memcmp(share.output.data(), wanted.data(), wanted.size() * sizeof(float)), 0);
    }
  }
}

TEST_P(Replay, MergedBatchesGiveTheSameRows) {
  const auto host = open_host(anatomy_, GetParam().options);
  const wire::Program program = test::make_program(shape());
  const std::vector<std::int64_t> sizes{1, 5, 1, 64, 2};
  std::vector<Workload> loads;
  std::vector<Expected> expected;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    loads.emplace_back(shape(), sizes[i], static_cast<std::uint32_t>(100 + 10 * i));
    expected.push_back(reference(shape(), path(), 0, loads.back()));
  }
  std::vector<Share> shares;
  std::vector<HostRequest> batch;
  shares.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    shares.emplace_back(shape(), loads[i], [&](std::int32_t e) { return i == 0 || e % 3 != 1; });
    batch.push_back(shares.back().request(shape(), loads[i], i == 0 ? CombineMode::sum : CombineMode::raw));
  }
  auto done = host->run(program, 0, batch);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(std::memcmp(shares[0].output.data(), expected[0].sums.data(), expected[0].sums.size() * sizeof(float)), 0);
  for (std::size_t i = 1; i < sizes.size(); ++i) expect_pairs(shares[i], expected[i], n());
}

INSTANTIATE_TEST_SUITE_P(
    Models, Replay,
    testing::Values(Case{"f16", {.type = GGML_TYPE_F16}}, Case{"f32", {.type = GGML_TYPE_F32}}, Case{"bf16", {.type = GGML_TYPE_BF16}},
                    Case{"q8_0", {.type = GGML_TYPE_Q8_0}}, Case{"q4_1", {.type = GGML_TYPE_Q4_1}}, Case{"q5_0", {.type = GGML_TYPE_Q5_0}},
                    Case{"q5_1", {.type = GGML_TYPE_Q5_1}}, Case{"iq4_nl", {.type = GGML_TYPE_IQ4_NL}},
                    Case{"mxfp4", {.type = GGML_TYPE_MXFP4}},
                    Case{"q2_K_q5_K", {.type = GGML_TYPE_Q2_K, .down_type = GGML_TYPE_Q5_K, .n_embd = 256, .n_ff = 256}},
                    Case{"q3_K_iq4_xs", {.type = GGML_TYPE_Q3_K, .down_type = GGML_TYPE_IQ4_XS, .n_embd = 256, .n_ff = 256}},
                    Case{"q4_0", {.type = GGML_TYPE_Q4_0}},
                    Case{"q4_K_q6_K", {.type = GGML_TYPE_Q4_K, .down_type = GGML_TYPE_Q6_K, .n_embd = 256, .n_ff = 256}},
                    Case{"merged_gate_up", {.type = GGML_TYPE_Q8_0, .merged = true}}, Case{"biases", {.type = GGML_TYPE_F16, .bias = true}},
                    Case{"top_1", {.type = GGML_TYPE_Q8_0, .top_k = 1, .merged = true}},
                    Case{"all_experts", {.type = GGML_TYPE_F16, .top_k = 8}},
                    Case{"copied", {.type = GGML_TYPE_Q4_0, .bias = true}, {.copy = true}},
                    Case{"copied_merged", {.type = GGML_TYPE_F16, .merged = true}, {.copy = true}},
                    // Small pieces: results must not depend on where a batch is cut.
                    Case{"cut", {.type = GGML_TYPE_Q8_0}, {.max_graph_bytes = 2'000'000}}),
    [](const auto& tested) { return std::string(tested.param.name); });

/// Largest difference between the rows of a host and those of the reference, relative to the largest row element.
double deviation(const std::vector<float>& got, const std::vector<float>& wanted) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max<double>(worst, std::abs(got[i] - wanted[i]));
    largest = std::max<double>(largest, std::abs(wanted[i]));
  }
  return worst / largest;
}

TEST(ExpertHostRepack, SubsetsEqualTheWholeBitForBit) {
  const TempFolder folder;
  const ModelShape shape{.type = GGML_TYPE_Q4_0, .n_embd = 256, .n_ff = 512};
  const Anatomy anatomy = test::write_model(shape, folder.path() / "model.gguf");
  const wire::Program program = test::make_program(shape);
  const auto whole = open_host(anatomy, {.repack = true});
  for (const std::int64_t n_tokens : {1, 33}) {
    const Workload load(shape, n_tokens, 5);
    Share all(shape, load, [](auto) { return true; });
    HostRequest request = all.request(shape, load, CombineMode::raw);
    ASSERT_TRUE(whole->run(program, 0, {&request, 1}));
    const Expected plain = reference(shape, folder.path() / "model.gguf", 0, load);
    EXPECT_LT(deviation(all.output, plain.pairs), 1e-2);
    const auto part = open_host(anatomy, {.repack = true}, "1,3-5");
    Share share(shape, load, [&](std::int32_t e) { return held(*part, 0, e); });
    HostRequest some = share.request(shape, load, CombineMode::raw);
    auto done = part->run(program, 0, {&some, 1});
    ASSERT_TRUE(done) << done.error().message;
    expect_pairs(share, {all.output, {}}, 256);
  }
}

TEST(ExpertHostRepack, MixesRepackedAndMappedTensors) {
  const TempFolder folder;
  const ModelShape shape{.type = GGML_TYPE_Q4_0, .down_type = GGML_TYPE_F16, .n_embd = 256, .n_ff = 512};
  const Anatomy anatomy = test::write_model(shape, folder.path() / "model.gguf");
  const auto host = open_host(anatomy, {.repack = true}, "2-6");
  const Workload load(shape, 9, 5);
  const Expected plain = reference(shape, folder.path() / "model.gguf", 0, load);
  Share share(shape, load, [&](std::int32_t e) { return held(*host, 0, e); });
  HostRequest request = share.request(shape, load, CombineMode::raw);
  auto done = host->run(test::make_program(shape), 0, {&request, 1});
  ASSERT_TRUE(done) << done.error().message;
  std::vector<float> wanted;
  for (const std::size_t i : share.index)
    wanted.insert(wanted.end(), plain.pairs.begin() + static_cast<std::ptrdiff_t>(i * 256),
                  plain.pairs.begin() + static_cast<std::ptrdiff_t>((i + 1) * 256));
  EXPECT_LT(deviation(share.output, wanted), 1e-2);
}

class Host : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path path() const { return folder_.path() / "model.gguf"; }
  TempFolder folder_;
  ModelShape shape_{.type = GGML_TYPE_Q8_0, .bias = true};
  Anatomy anatomy_ = test::write_model(shape_, path());
  wire::Program program_ = test::make_program(shape_);
};

TEST_F(Host, TellsWhatItHolds) {
  const auto host = open_host(anatomy_, {}, "L0:0-3;L1:2/4");
  const auto holdings = host->holdings();
  ASSERT_EQ(holdings.size(), 2u);
  EXPECT_EQ(holdings[0].bits, std::vector<std::uint64_t>{0b1111});
  EXPECT_EQ(holdings[1].bits, std::vector<std::uint64_t>{0b1100});
  EXPECT_EQ(host->held_bytes(), 4 * anatomy_.layers[0].expert_bytes() + 2 * anatomy_.layers[1].expert_bytes());
  EXPECT_NE(host->device_description().find("CPU"), std::string::npos);
  EXPECT_FALSE(list_devices().empty());
}

TEST_F(Host, RefusesToOpenWhatItCannot) {
  HostOptions options;
  options.device = "CUDA7";
  auto host = ExpertHost::open(anatomy_, options);
  ASSERT_FALSE(host);
  EXPECT_NE(host.error().message.find("CPU"), std::string::npos) << "names what there is: " << host.error().message;
  options = {};
  options.experts = {{.first_layer = 40, .last_layer = 50}};
  EXPECT_FALSE(ExpertHost::open(anatomy_, options));
  options.experts = {{}};
  options.n_threads = -1;
  EXPECT_FALSE(ExpertHost::open(anatomy_, options));
  options.n_threads = 1;
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) / 2);
  host = ExpertHost::open(anatomy_, options);
  ASSERT_FALSE(host);
  EXPECT_NE(host.error().message.find("shorter"), std::string::npos);
  std::filesystem::remove(path());
  EXPECT_FALSE(ExpertHost::open(anatomy_, options));
}

/// Reads slices out of a model's file as a store would.
SliceReader reader_of(const std::filesystem::path& path) {
  return [path](const ExpertTensor& tensor, std::uint32_t expert, std::span<std::byte> to) -> Result<> {
    std::ifstream in(path, std::ios::binary);
    in.seekg(static_cast<std::streamoff>(tensor.offset + expert * tensor.slice_bytes));
    if (!in.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()))) return fail(ErrorKind::io, "cannot read");
    return {};
  };
}

wire::LayerHolding some(std::uint16_t layer, std::initializer_list<std::uint32_t> experts) {
  wire::LayerHolding holding = wire::empty_holding(layer, 8);
  for (const std::uint32_t e : experts) holding.add(e);
  return holding;
}

void expect_same_rows(ExpertHost& a, ExpertHost& b, const ModelShape& shape, LayerKey layer) {
  const Workload load(shape, 7, 3);
  Share one(shape, load, [&](std::int32_t e) { return held(a, layer, e); });
  Share two(shape, load, [&](std::int32_t e) { return held(b, layer, e); });
  HostRequest first = one.request(shape, load, CombineMode::raw), second = two.request(shape, load, CombineMode::raw);
  const auto done = a.run(test::make_program(shape), layer, {&first, 1}), also = b.run(test::make_program(shape), layer, {&second, 1});
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_TRUE(also) << also.error().message;
  ASSERT_FALSE(one.output.empty());
  EXPECT_EQ(one.output, two.output);
}

TEST_F(Host, HoldsWhatArrivesLater) {
  for (const bool repack : {false, true}) {
    auto arriving = ExpertHost::open_empty({.repack = repack});
    ASSERT_TRUE(arriving) << arriving.error().message;
    EXPECT_TRUE((*arriving)->holdings().empty());
    EXPECT_EQ((*arriving)->held_bytes(), 0u);
    auto done = (*arriving)->hold(anatomy_.layers[1], some(1, {1, 3, 4, 5}), reader_of(path()));
    ASSERT_TRUE(done) << done.error().message;
    const auto mapped = open_host(anatomy_, {.repack = repack}, "L1:1,3-5");
    EXPECT_EQ((*arriving)->held_bytes(), mapped->held_bytes());
    expect_same_rows(**arriving, *mapped, shape_, 1);
    EXPECT_FALSE((*arriving)->validate(program_, 0));
  }
}

TEST_F(Host, TakesMoreOfALayerThanItHeld) {
  auto arriving = ExpertHost::open_empty({});
  ASSERT_TRUE(arriving);
  ASSERT_TRUE((*arriving)->hold(anatomy_.layers[0], some(0, {2}), reader_of(path())));
  expect_same_rows(**arriving, *open_host(anatomy_, {}, "L0:2"), shape_, 0);
  ASSERT_TRUE((*arriving)->hold(anatomy_.layers[0], some(0, {0, 1, 2, 7}), reader_of(path())));
  expect_same_rows(**arriving, *open_host(anatomy_, {}, "L0:0-2,7"), shape_, 0);
}

TEST_F(Host, KeepsALayerWhoseReplacementFails) {
  auto arriving = ExpertHost::open_empty({});
  ASSERT_TRUE(arriving);
  ASSERT_TRUE((*arriving)->hold(anatomy_.layers[0], some(0, {2, 3}), reader_of(path())));
  const auto failing = [](const ExpertTensor&, std::uint32_t, std::span<std::byte>) -> Result<> {
    return fail(ErrorKind::io, "disk died");
  };
  auto done = (*arriving)->hold(anatomy_.layers[0], some(0, {0, 1}), failing);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message, "disk died");
  expect_same_rows(**arriving, *open_host(anatomy_, {}, "L0:2-3"), shape_, 0);
  EXPECT_FALSE((*arriving)->hold(anatomy_.layers[0], some(0, {}), failing));
  EXPECT_FALSE((*arriving)->hold(anatomy_.layers[0], some(1, {1}), failing));
}

TEST_F(Host, RefusesRequestsOfTheWrongShape) {
  const auto host = open_host(anatomy_, {}, "0-5");
  const Workload load(shape_, 3, 1);
  const auto attempt = [&](auto&& spoil) {
    Share share(shape_, load, [](std::int32_t e) { return e < 6; });
    HostRequest request = share.request(shape_, load, CombineMode::raw);
    spoil(share, request);
    auto done = host->run(program_, 0, {&request, 1});
    EXPECT_EQ(done.has_value(), host->check(program_, 0, request).has_value());
    return done;
  };
  EXPECT_TRUE(attempt([](Share&, HostRequest&) {}));
  EXPECT_FALSE(attempt([](Share&, HostRequest& r) { r.output = r.output.first(r.output.size() - 1); }));
  EXPECT_FALSE(attempt([](Share&, HostRequest& r) { r.inputs.pop_back(); }));
  EXPECT_FALSE(attempt([](Share&, HostRequest& r) { r.inputs[0] = r.inputs[0].first(1); }));
  EXPECT_FALSE(attempt([](Share&, HostRequest& r) { r.n_tokens = 2; }));
  EXPECT_FALSE(attempt([](Share& s, HostRequest&) { s.pairs.front().token = 2; }));
  EXPECT_FALSE(attempt([](Share& s, HostRequest&) { s.pairs.front().expert = 8; }));
  const auto done = attempt([](Share& s, HostRequest&) { s.pairs.front().expert = 7; });
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("expert 7 of layer 0 is not held"), std::string::npos);
  EXPECT_FALSE(host->validate(program_, 5)) << "no such layer";
}

TEST_F(Host, AnExpertMayComeUpTwiceForAToken) {
  const auto host = open_host(anatomy_, {});
  const Workload load(shape_, 1, 1);
  Share share(shape_, load, [](auto) { return true; });
  HostRequest request = share.request(shape_, load, CombineMode::raw);
  share.pairs[0].expert = share.pairs[1].expert = share.pairs[2].expert = 4;
  std::ranges::fill(share.w, 0.5f);
  ASSERT_TRUE(host->run(program_, 0, {&request, 1}));
  EXPECT_EQ(std::memcmp(share.output.data(), share.output.data() + 64, 64 * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(share.output.data(), share.output.data() + 128, 64 * sizeof(float)), 0);
}

TEST_F(Host, SurvivesActivationsThatAreNotNumbers) {
  for (const bool copy : {false, true}) {
    const auto host = open_host(anatomy_, {.copy = copy});
    Workload load(shape_, 4, 1);
    load.x[0] = NAN;
    load.x[64] = INFINITY;
    load.x[128] = -INFINITY;
    load.x[192] = 3e38f;
    Share share(shape_, load, [](auto) { return true; });
    HostRequest request = share.request(shape_, load, CombineMode::sum);
    EXPECT_TRUE(host->run(program_, 0, {&request, 1}));
  }
}

TEST_F(Host, RefusesHostilePrograms) {
  const auto host = open_host(anatomy_, {});
  const auto refused = [&](auto&& spoil) {
    wire::Program program = program_;
    spoil(program);
    auto valid = host->validate(program, 0);
    return valid ? std::string() : valid.error().message;
  };
  using P = wire::Program;
  const std::int32_t nan = std::bit_cast<std::int32_t>(NAN);
  // ops: 0 gate, 1 bias, 2 up, 3 bias, 4 glu, 5 down, 6 bias, 7 mul
  EXPECT_TRUE(host->validate(program_, 0));
  EXPECT_NE(refused([](P& p) { p.weights[0] = "ffn_other_exps.weight"; }), "");
  EXPECT_NE(refused([](P& p) { std::swap(p.weights[0], p.weights[1]); }), "") << "bias and weight exchanged";
  EXPECT_NE(refused([](P& p) { std::swap(p.weights[0], p.weights[4]); }), "") << "down instead of gate";
  EXPECT_NE(refused([](P& p) { p.inputs[0].n = 32; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[0].n_out = 95; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[4].params[0] = GGML_GLU_OP_COUNT; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[4].params[0] = -1; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[4].params[1] = 7; }), "");
  EXPECT_NE(refused([&](P& p) { p.ops[4].params[2] = nan; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[0].params[0] = 12345; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[0].params[3] = GGML_HINT_SRC0_IS_HADAMARD; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[7].params[0] = 1; }), "");
  EXPECT_NE(refused([](P& p) { p.ops[7].sources[0] = test::from_op(7); }), "") << "its own source";
  EXPECT_NE(refused([](P& p) { p.output = 8; }), "");
  const auto with = [](wire::OpKind kind, std::int32_t a, std::int32_t b) {
    return [=](P& p) {
      wire::Op op;
      op.kind = kind;
      op.n_out = 64;
      op.params[0] = a;
      op.params[1] = b;
      op.sources[0] = test::from_op(7);
      p.ops.push_back(op);
      p.output = 8;
    };
  };
  const std::int32_t one = std::bit_cast<std::int32_t>(1.0f), inf = std::bit_cast<std::int32_t>(INFINITY);
  EXPECT_NE(refused(with(wire::OpKind::scale, nan, 0)), "");
  EXPECT_NE(refused(with(wire::OpKind::scale, one, inf)), "");
  EXPECT_NE(refused(with(wire::OpKind::clamp, nan, one)), "");
  EXPECT_NE(refused(with(wire::OpKind::unary, GGML_UNARY_OP_COUNT, 0)), "");
  EXPECT_EQ(refused(with(wire::OpKind::scale, one, one)), "");
  EXPECT_EQ(refused(with(wire::OpKind::clamp, std::bit_cast<std::int32_t>(-INFINITY), one)), "") << "open to one side";
  EXPECT_EQ(refused(with(wire::OpKind::sqr, 0, 0)), "");
}

TEST_F(Host, RefusesProgramsThatNeedTooMuchMemory) {
  const auto host = open_host(anatomy_, {.max_graph_bytes = 100'000});
  auto valid = host->validate(program_, 0);
  ASSERT_FALSE(valid);
  EXPECT_NE(valid.error().message.find("bytes a pair"), std::string::npos);
}

/// Every elementwise op and parameter that validate() lets through must compute, in every form, on whole rows and on parts of rows.
TEST_F(Host, WhatIsAcceptedComputes) {
  const auto host = open_host(anatomy_, {});
  std::vector<wire::Program> programs;
  const auto add = [&](wire::OpKind kind, std::int32_t param, bool joined, bool second, bool part) {
    test::ProgramBuilder b;
    const auto x = test::from_input(b.input(wire::Input::Kind::token, 64));
    const auto w = test::from_input(b.input(wire::Input::Kind::pair, 1));
    wire::Source rows = test::from_op(b.weighted(wire::OpKind::mul_mat_id, 96, x, "ffn_up_exps.weight"));
    std::uint32_t n = 96;
    if (part) {
      n = 40;
      rows = test::from_op(b.op(wire::OpKind::view, n, rows));
      b.program.ops.back().offset = 17;
    }
    const wire::Source other = kind == wire::OpKind::glu ? rows : w;
    b.op(kind, joined ? n / 2 : n, rows, second ? other : wire::Source{}, param);
    programs.push_back(b.program);
  };
  for (const bool part : {false, true}) {
    for (int glu = 0; glu < GGML_GLU_OP_COUNT; ++glu) {
      add(wire::OpKind::glu, glu, true, false, part);
      add(wire::OpKind::glu, glu, false, true, part);
    }
    for (int unary = 0; unary < GGML_UNARY_OP_COUNT; ++unary) add(wire::OpKind::unary, unary, false, false, part);
    for (const auto kind : {wire::OpKind::mul, wire::OpKind::add, wire::OpKind::sub, wire::OpKind::div}) add(kind, 0, false, true, part);
    for (const auto kind : {wire::OpKind::sqr, wire::OpKind::sqrt, wire::OpKind::clamp, wire::OpKind::scale, wire::OpKind::view})
      add(kind, 0, false, false, part);
  }
  const Workload even(shape_, 5, 1);
  for (const wire::Program& program : programs) {
    std::vector<std::vector<float>> answers;
    for (const std::int32_t skipped : {-1, 3}) {  // grid, flat
      Share share(shape_, even, [&](std::int32_t e) { return e != skipped; });
      share.output.resize(share.pairs.size() * program.n_out());
      HostRequest request{.n_tokens = 5, .pairs = share.pairs, .inputs = {even.x, share.w}, .output = share.output};
      auto done = host->run(program, 0, {&request, 1});
      ASSERT_TRUE(done) << done.error().message;
      if (skipped < 0) {
        answers.push_back(share.output);
        continue;
      }
      for (std::size_t p = 0; p < share.pairs.size(); ++p) {
        ASSERT_EQ(std::memcmp(share.output.data() + p * program.n_out(), answers[0].data() + share.index[p] * program.n_out(),
                              program.n_out() * sizeof(float)),
                  0)
            << "op " << static_cast<int>(program.ops.back().kind) << " parameter " << program.ops.back().params[0];
      }
    }
  }
}

TEST_F(Host, OperandsInUnusualOrderAreExpanded) {
  const auto host = open_host(anatomy_, {});
  test::ProgramBuilder b;
  const auto x = test::from_input(b.input(wire::Input::Kind::token, 64));
  const auto w = test::from_input(b.input(wire::Input::Kind::pair, 64));
  const auto wide = test::from_op(b.op(wire::OpKind::mul, 64, x, w));  // token times pair
  b.weighted(wire::OpKind::add_id, 64, x, "ffn_down_exps.bias");
  b.op(wire::OpKind::add, 64, wide, test::from_op(1));
  const Workload load(shape_, 3, 1);
  const std::vector<float> pair_rows = test::random_floats(9 * 64, 4);
  Share share(shape_, load, [](auto) { return true; });
  share.output.resize(9 * 64);
  HostRequest request{.n_tokens = 3, .pairs = share.pairs, .inputs = {load.x, pair_rows}, .output = share.output};
  auto done = host->run(b.program, 0, {&request, 1});
  ASSERT_TRUE(done) << done.error().message;
  for (std::size_t p = 0; p < 9; ++p) {
    HostRequest alone{.n_tokens = 1, .pairs = {}, .inputs = {}, .output = {}};
    const std::vector<wire::WirePair> pair{{0, share.pairs[p].expert}};
    std::vector<float> output(64);
    alone.pairs = pair;
    alone.inputs = {std::span(load.x).subspan(share.pairs[p].token * 64, 64), std::span(pair_rows).subspan(p * 64, 64)};
    alone.output = output;
    ASSERT_TRUE(host->run(b.program, 0, {&alone, 1}));
    EXPECT_EQ(std::memcmp(output.data(), share.output.data() + p * 64, 64 * sizeof(float)), 0);
  }
}

TEST_F(Host, ATokensOwnRowAsResult) {
  const auto host = open_host(anatomy_, {});
  test::ProgramBuilder b;
  const auto x = test::from_input(b.input(wire::Input::Kind::token, 64));
  const auto part = test::from_op(b.op(wire::OpKind::view, 64, x));
  b.op(wire::OpKind::sqr, 64, part);
  b.program.output = 0;  // a view of an input that a later op reads
  const Workload load(shape_, 2, 1);
  Share share(shape_, load, [](auto) { return true; });
  HostRequest request = share.request(shape_, load, CombineMode::raw);
  request.inputs = {load.x};
  ASSERT_TRUE(host->run(b.program, 0, {&request, 1}));
  for (std::size_t p = 0; p < 6; ++p)
    EXPECT_EQ(std::memcmp(share.output.data() + p * 64, load.x.data() + share.pairs[p].token * 64, 256), 0);
}

/// Where this process has mapped a file.
std::byte* mapping_of(const std::filesystem::path& file) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(file.string())) return reinterpret_cast<std::byte*>(std::stoull(line.substr(0, line.find('-')), nullptr, 16));
  }
  return nullptr;
}

TEST_F(Host, TouchesOnlyHeldSlices) {
  const ModelShape big{.type = GGML_TYPE_F16, .n_embd = 512, .n_ff = 512, .n_layers = 1};
  const auto file = folder_.path() / "big.gguf";
  const Anatomy anatomy = test::write_model(big, file);
  const auto host = open_host(anatomy, {}, "3");
  std::byte* const mapped = mapping_of(file);
  ASSERT_NE(mapped, nullptr);
  // From here on, touching any page that belongs to other experts only is a segmentation fault.
  const std::uint64_t page = 4096;
  std::size_t n_protected = 0;
  for (const ExpertTensor& tensor : anatomy.layers[0].tensors) {
    for (std::uint32_t e = 0; e < tensor.n_expert; ++e) {
      if (e == 3) continue;
      const std::uint64_t first = (tensor.offset + e * tensor.slice_bytes + page - 1) / page * page;
      const std::uint64_t end = (tensor.offset + (e + 1) * tensor.slice_bytes) / page * page;
      ASSERT_EQ(::mprotect(mapped + first, end - first, PROT_NONE), 0);
      n_protected += end - first;
    }
  }
  EXPECT_GT(n_protected, 10u << 20);
  for (const std::int64_t n_tokens : {1, 20}) {
    const Workload load(big, n_tokens, 7);
    Share share(big, load, [](std::int32_t e) { return e == 3; });
    HostRequest request = share.request(big, load, CombineMode::raw);
    ASSERT_TRUE(host->run(test::make_program(big), 0, {&request, 1}));
  }
}

TEST_F(Host, InterruptEndsComputing) {
  const auto host = open_host(anatomy_, {});
  host->interrupt();
  const Workload load(shape_, 1, 1);
  Share share(shape_, load, [](auto) { return true; });
  HostRequest request = share.request(shape_, load, CombineMode::raw);
  auto done = host->run(program_, 0, {&request, 1});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind, ErrorKind::unavailable);
}

}  // namespace
}  // namespace linkcpp::engine
