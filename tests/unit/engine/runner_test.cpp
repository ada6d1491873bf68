// The runner gives the very bits of the engine's own computation, with the engine's own memory reuse, and fails cleanly.
#include "engine/runner.h"

#include <ggml-alloc.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/moe_graph.h"
#include "support/reference_service.h"

namespace linkcpp::engine {
namespace {

using test::build_moe_graph;
using test::MoeGraph;
using test::MoeShape;
using test::ReferenceService;

struct BackendFree {
  void operator()(ggml_backend_t b) const { ggml_backend_free(b); }
};
struct AllocatorFree {
  void operator()(ggml_gallocr_t a) const { ggml_gallocr_free(a); }
};

/// A graph with data, allocated as the scheduler does it: weights apart, everything else in one arena that is reused.
class Bench {
 public:
  explicit Bench(MoeShape shape, unsigned seed = 7) : moe_(build_moe_graph(shape)), random_(seed) {
    [[maybe_unused]] static const bool loaded = (ggml_backend_load_all(), true);
    cpu_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    for (ggml_tensor* w : moe_.weights) own(w);
    allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(cpu_.get())));
    EXPECT_TRUE(ggml_gallocr_alloc_graph(allocator_.get(), moe_.graph));
    input_.resize(static_cast<std::size_t>(ggml_nelements(moe_.input)));
    for (float& v : input_) v = uniform_(random_);
  }

  std::vector<float> plain() {
    set_input();
    EXPECT_EQ(ggml_backend_graph_compute(cpu_.get(), moe_.graph), GGML_STATUS_SUCCESS);
    return output();
  }
  ggml_status run(Runner& runner) {
    set_input();
    return runner.compute(moe_.graph, {});
  }
  std::vector<float> output() const {
    std::vector<float> out(static_cast<std::size_t>(ggml_nelements(moe_.output)));
    ggml_backend_tensor_get(moe_.output, out.data(), 0, out.size() * sizeof(float));
    return out;
  }
  /// The experts' bytes are destroyed on the base: whatever still used them would show.
  void punch_holes() {
    for (ggml_tensor* w : moe_.weights) {
      if (parse_expert_name(w->name)) ggml_backend_tensor_memset(w, 0xFF, 0, ggml_nbytes(w));
    }
  }
  ggml_backend_t base() { return cpu_.get(); }
  MoeGraph& moe() { return moe_; }

 private:
  void own(ggml_tensor* w) {
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(w)));
    for (float& v : values) v = uniform_(random_);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(cpu_.get(), ggml_nbytes(w) + 64);
    buffers_.emplace_back(buffer, ggml_backend_buffer_free);
    EXPECT_EQ(ggml_backend_tensor_alloc(buffer, w, ggml_backend_buffer_get_base(buffer)), GGML_STATUS_SUCCESS);
    std::vector<std::byte> bytes(ggml_nbytes(w));
    if (w->type == GGML_TYPE_F32) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else {
      ggml_quantize_chunk(w->type, values.data(), bytes.data(), 0, ggml_nrows(w), w->ne[0], nullptr);
    }
    ggml_backend_tensor_set(w, bytes.data(), 0, bytes.size());
  }
  void set_input() { ggml_backend_tensor_set(moe_.input, input_.data(), 0, input_.size() * sizeof(float)); }

  MoeGraph moe_;
  std::mt19937 random_;
  std::uniform_real_distribution<float> uniform_{-1, 1};
  std::unique_ptr<ggml_backend, BackendFree> cpu_;
  std::unique_ptr<ggml_gallocr, AllocatorFree> allocator_;
  std::vector<std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer_t)>> buffers_;
  std::vector<float> input_;
};

/// A copy of the weights for the "workers", so that those of the base may be destroyed.
class Workers {
 public:
  explicit Workers(const MoeGraph& moe) {
    context_.reset(ggml_init({.mem_size = std::size_t{64} << 20, .mem_buffer = nullptr, .no_alloc = false}));
    for (const ggml_tensor* w : moe.weights) {
      ggml_tensor* copy = ggml_dup_tensor(context_.get(), w);
      ggml_set_name(copy, w->name);
      ggml_backend_tensor_get(w, copy->data, 0, ggml_nbytes(w));
      weights_.push_back(copy);
    }
  }
  ReferenceService service() const { return ReferenceService(weights_); }

 private:
  std::unique_ptr<ggml_context, void (*)(ggml_context*)> context_{nullptr, ggml_free};
  std::vector<ggml_tensor*> weights_;
};

bool any_expert(const ExpertName&, const ggml_tensor&) { return true; }

std::vector<MoeShape> shapes() {
  return {{},
          {.n_layers = 4},
          {.n_tokens = 1, .n_layers = 3},
          {.top_k = 1, .n_layers = 2},
          {.top_k = 1, .n_tokens = 1, .n_layers = 2},
          {.top_k = 8, .n_tokens = 17, .n_layers = 2},
          {.n_layers = 3, .shared_expert = true},
          {.n_layers = 2, .merged_gate_up = true, .bias = true},
          {.n_layers = 2, .weight_before = true, .shared_expert = true},
          {.n_layers = 2, .gated = false},
          {.n_layers = 2, .gated = false, .squared = true, .shared_expert = true},
          {.n_layers = 2, .shared_expert = true, .lora = true},
          {.top_k = 1, .n_tokens = 1, .n_layers = 2, .lora = true},
          {.n_layers = 2, .gated = false, .squared = true, .lora = true},
          {.n_layers = 3, .scale_tensor = true},
          {.n_layers = 2, .reduce = false},
          {.n_layers = 2, .observe_up = true},
          {.n_embd = 64, .n_ff = 32, .n_layers = 3, .weight_type = GGML_TYPE_Q8_0, .shared_expert = true}};
}

class RunnerBits : public testing::TestWithParam<std::tuple<std::size_t, bool, bool>> {};

TEST_P(RunnerBits, EqualThePlainGraph) {
  const auto [index, sum, overlap] = GetParam();
  Bench bench(shapes()[index]);
  const Workers workers(bench.moe());
  const std::vector<float> expected = bench.plain();
  bench.punch_holes();
  ReferenceService service = workers.service();
  Runner runner(bench.base(), &service, any_expert, {.overlap = overlap, .sum = sum});
  for (int pass = 0; pass < 2; ++pass) {
    ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS) << runner.error();
    const std::vector<float> got = bench.output();
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)), 0) << "shape " << index << " pass " << pass;
  }
  EXPECT_EQ(service.in_flight(), 0);
  EXPECT_EQ(service.passes, 2);
  EXPECT_GE(service.begun, 2 * shapes()[index].n_layers);
}

INSTANTIATE_TEST_SUITE_P(AllShapes, RunnerBits,
                         testing::Combine(testing::Range<std::size_t>(0, shapes().size()), testing::Bool(), testing::Bool()));

TEST(Runner, WithoutServiceItIsTheBase) {
  Bench bench({});
  const std::vector<float> expected = bench.plain();
  Runner runner(bench.base(), nullptr, nullptr, {});
  ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS);
  EXPECT_EQ(bench.output(), expected);
}

TEST(Runner, FailureToSendFailsThePassAndTheNextPassWorks) {
  Bench bench({.n_layers = 3});
  const Workers workers(bench.moe());
  const std::vector<float> expected = bench.plain();
  ReferenceService service = workers.service();
  Runner runner(bench.base(), &service, any_expert, {});
  service.fail_next = true;
  EXPECT_EQ(bench.run(runner), GGML_STATUS_FAILED);
  EXPECT_EQ(runner.error(), "no worker");
  service.fail_next = false;
  service.fail_await = true;
  EXPECT_EQ(bench.run(runner), GGML_STATUS_FAILED);
  EXPECT_EQ(service.in_flight(), 0) << "nothing may stay in flight after a failure";
  service.fail_await = false;
  ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS);
  EXPECT_EQ(bench.output(), expected);
}

TEST(Runner, ModelWithOnlySomeMatricesRemote) {
  Bench bench({});
  const Workers workers(bench.moe());
  ReferenceService service = workers.service();
  // Only the up matrix counts as remote: gate and down stay, so no whole region forms; the remote part must still be dispatched.
  Runner runner(bench.base(), &service, [](const ExpertName& name, const ggml_tensor&) { return name.role == "ffn_up_exps.weight"; }, {});
  const std::vector<float> expected = bench.plain();
  ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS) << runner.error();
  EXPECT_EQ(bench.output(), expected);
  EXPECT_EQ(service.begun, 1);
  EXPECT_EQ(service.regions, 1);
  EXPECT_EQ(service.matmuls, 3);
  EXPECT_EQ(service.dispatched, 1);
  EXPECT_THAT(service.on_base, testing::UnorderedElementsAre("ffn_gate_exps.weight", "ffn_down_exps.weight"));
}

TEST(Runner, GraphWhoseExpertsAllStayOnTheBaseIsReported) {
  Bench bench({});
  const Workers workers(bench.moe());
  ReferenceService service = workers.service();
  Runner runner(bench.base(), &service, [](const ExpertName&, const ggml_tensor&) { return false; }, {});
  const std::vector<float> expected = bench.plain();
  ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS);
  EXPECT_EQ(bench.output(), expected);
  EXPECT_EQ(service.begun, 0);
  EXPECT_EQ(service.regions, 0);
  EXPECT_EQ(service.on_base.size(), 3);
}

TEST(Runner, PlansAreCachedByGraphIdentity) {
  Bench bench({.n_layers = 2});
  const Workers workers(bench.moe());
  ReferenceService service = workers.service();
  Runner runner(bench.base(), &service, any_expert, {});
  const_cast<abi::Graph&>(abi::view(bench.moe().graph)).uid = 99;
  for (int i = 0; i < 5; ++i) ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS);
  EXPECT_EQ(runner.counters().planned, 1);
  EXPECT_EQ(runner.counters().cached, 4);
  const_cast<abi::Graph&>(abi::view(bench.moe().graph)).uid = 100;
  ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS);
  EXPECT_EQ(runner.counters().planned, 2);
}

TEST(Runner, GraphsWithoutIdentityDisplaceNoCachedPlan) {
  Bench bench({.n_layers = 2});
  const Workers workers(bench.moe());
  ReferenceService service = workers.service();
  Runner runner(bench.base(), &service, any_expert, {.cached_plans = 2});
  auto& uid = const_cast<abi::Graph&>(abi::view(bench.moe().graph)).uid;
  for (const std::uint64_t id : {7, 0, 0, 0, 7}) {
    uid = id;
    ASSERT_EQ(bench.run(runner), GGML_STATUS_SUCCESS) << runner.error();
  }
  EXPECT_EQ(runner.counters().planned, 4);
  EXPECT_EQ(runner.counters().cached, 1);
}

}  // namespace
}  // namespace linkcpp::engine
