// The planner finds regions by data flow, in every form in which models write their experts.
#include "engine/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/moe_graph.h"

namespace linkcpp::engine {
namespace {

using test::build_moe_graph;
using test::MoeGraph;
using test::MoeShape;
using testing::ElementsAre;
using wire::OpKind;

Plan plan(const MoeGraph& moe) {
  return plan_graph(abi::view(moe.graph), [](const ExpertName&, const ggml_tensor&) { return true; });
}

std::vector<OpKind> kinds(const Region& region) {
  std::vector<OpKind> out;
  for (const wire::Op& op : region.program.ops) out.push_back(op.kind);
  return out;
}

/// What must hold of every plan: nothing is lost, nothing runs twice, and every region goes snapshot, dispatch, combine.
void check_invariants(const MoeGraph& moe, const Plan& p) {
  ASSERT_EQ(p.error, "");
  EXPECT_EQ(p.work_before.size(), p.base_nodes.size() + 1);
  for (const ggml_tensor* node : p.base_nodes) {
    EXPECT_FALSE(node->op == GGML_OP_MUL_MAT_ID && parse_expert_name(node->src[0]->name)) << node->name << " stayed on the base";
  }
  std::vector<int> stage(p.regions.size(), 0);
  std::uint32_t before = 0;
  for (const PlanEvent& event : p.events) {
    EXPECT_GE(event.after, before);
    before = event.after;
    int& s = stage[event.region];
    switch (event.kind) {
      case PlanEvent::Kind::snapshot_ids:
      case PlanEvent::Kind::snapshot_input:
        EXPECT_LE(s, 0);
        break;
      case PlanEvent::Kind::dispatch:
        EXPECT_EQ(s, 0);
        s = 1;
        break;
      case PlanEvent::Kind::combine:
        EXPECT_EQ(s, 1);
        s = 2;
        break;
    }
  }
  EXPECT_THAT(stage, testing::Each(2));
  EXPECT_EQ(p.matmuls, p.dispatched + p.on_base.size());
  for (const Region& region : p.regions) EXPECT_TRUE(wire::check_program(region.program).has_value());
  EXPECT_GT(ggml_graph_n_nodes(moe.graph), 0);
}

TEST(Region, PlainLayerIsOneReducedRegion) {
  const MoeGraph moe = build_moe_graph({});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 1);
  const Region& r = p.regions[0];
  EXPECT_TRUE(r.reduced);
  EXPECT_EQ(r.layer, 0);
  EXPECT_EQ(r.top_k, 4);
  EXPECT_EQ(r.n_tokens, 3);
  EXPECT_THAT(kinds(r), ElementsAre(OpKind::mul_mat_id, OpKind::mul_mat_id, OpKind::glu, OpKind::mul_mat_id, OpKind::mul));
  ASSERT_EQ(r.program.inputs.size(), 2);
  EXPECT_EQ(r.program.inputs[0], (wire::Input{wire::Input::Kind::token, 32}));
  EXPECT_EQ(r.program.inputs[1], (wire::Input{wire::Input::Kind::pair, 1}));
  EXPECT_EQ(r.program.n_out(), 32);
}

TEST(Region, EveryLayerHasItsRegionAndTheyShareOneProgram) {
  const MoeGraph moe = build_moe_graph({.n_layers = 5});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 5);
  for (int layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(p.regions[layer].layer, layer);
    EXPECT_EQ(p.regions[layer].program_id, p.regions[0].program_id);
  }
}

TEST(Region, SharedExpertRunsBetweenDispatchAndCombine) {
  const MoeGraph moe = build_moe_graph({.shared_expert = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  std::uint32_t sent = 0, needed = 0;
  for (const PlanEvent& e : p.events) {
    if (e.kind == PlanEvent::Kind::dispatch) sent = e.after;
    if (e.kind == PlanEvent::Kind::combine) needed = e.after;
  }
  EXPECT_EQ(p.work_before[needed] - p.work_before[sent], 3) << "two matmuls and the activation of the shared expert";
}

TEST(Region, WithoutOtherWorkNothingLiesBetween) {
  const Plan p = plan(build_moe_graph({}));
  std::uint32_t sent = 0, needed = 0;
  for (const PlanEvent& e : p.events) {
    if (e.kind == PlanEvent::Kind::dispatch) sent = e.after;
    if (e.kind == PlanEvent::Kind::combine) needed = e.after;
  }
  EXPECT_FALSE(p.has_work(sent, needed));
}

TEST(Region, MergedGateUpBecomesRowViews) {
  const MoeGraph moe = build_moe_graph({.merged_gate_up = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 1);
  EXPECT_THAT(kinds(p.regions[0]),
              ElementsAre(OpKind::mul_mat_id, OpKind::view, OpKind::view, OpKind::glu, OpKind::mul_mat_id, OpKind::mul));
  EXPECT_EQ(p.regions[0].program.ops[2].offset, 16);
}

TEST(Region, BiasesAreWeightsOfTheProgram) {
  const MoeGraph moe = build_moe_graph({.bias = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 1);
  EXPECT_TRUE(p.regions[0].reduced);
  EXPECT_THAT(p.regions[0].program.weights,
              testing::UnorderedElementsAre("ffn_up_exps.weight", "ffn_up_exps.bias", "ffn_gate_exps.weight", "ffn_gate_exps.bias",
                                            "ffn_down_exps.weight", "ffn_down_exps.bias"));
}

TEST(Region, RouterWeightsBeforeTheExpertsArePairRows) {
  const MoeGraph moe = build_moe_graph({.weight_before = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 1);
  EXPECT_EQ(p.regions[0].program.inputs[0], (wire::Input{wire::Input::Kind::pair, 32}));
  EXPECT_TRUE(p.regions[0].reduced);
}

TEST(Region, UngatedTopOneAndTopTwo) {
  for (const std::int64_t top_k : {1, 2}) {
    const MoeGraph moe = build_moe_graph({.top_k = top_k, .gated = false});
    const Plan p = plan(moe);
    check_invariants(moe, p);
    ASSERT_EQ(p.regions.size(), 1) << top_k;
    EXPECT_TRUE(p.regions[0].reduced) << top_k;
    EXPECT_EQ(p.regions[0].top_k, top_k);
  }
}

TEST(Region, OneTokenWithOneExpertIsOneReducedRegion) {
  for (const bool merged : {false, true}) {
    const MoeGraph moe = build_moe_graph({.top_k = 1, .n_tokens = 1, .n_layers = 2, .merged_gate_up = merged});
    const Plan p = plan(moe);
    check_invariants(moe, p);
    ASSERT_EQ(p.regions.size(), 2);
    EXPECT_TRUE(p.regions[0].reduced);
    EXPECT_TRUE(p.regions[1].reduced);
  }
}

TEST(Region, SquaredActivationBelongsToTheRegion) {
  const MoeGraph moe = build_moe_graph({.gated = false, .squared = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 1);
  EXPECT_THAT(kinds(p.regions[0]), ElementsAre(OpKind::mul_mat_id, OpKind::unary, OpKind::sqr, OpKind::mul_mat_id, OpKind::mul));
}

/// The adapter lies on the base, which needs the rows inside of the region for it: every matrix goes to the workers by itself.
TEST(Region, AdapterOnExpertsStaysOnTheBaseAndItsMatricesAreDispatched) {
  const MoeGraph moe = build_moe_graph({.lora = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 3);
  for (const Region& region : p.regions) EXPECT_THAT(kinds(region), ElementsAre(OpKind::mul_mat_id));
  EXPECT_EQ(p.dispatched, 3);
  EXPECT_EQ(p.on_base.size(), 6);
  for (const std::string& name : p.on_base) EXPECT_THAT(name, testing::HasSubstr(".lora_"));
}

TEST(Region, LateScaleIsAnInputThatIsReadLater) {
  const MoeGraph moe = build_moe_graph({.scale_tensor = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 1);
  EXPECT_EQ(p.regions[0].program.inputs.size(), 3);
}

TEST(Region, UnknownReductionFallsBackToRawRows) {
  const MoeGraph moe = build_moe_graph({.reduce = false});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 1);
  EXPECT_FALSE(p.regions[0].reduced);
}

TEST(Region, ObservedIntermediateSplitsIntoSingleMatmuls) {
  const MoeGraph moe = build_moe_graph({.observe_up = true});
  const Plan p = plan(moe);
  check_invariants(moe, p);
  ASSERT_EQ(p.regions.size(), 3);
  for (const Region& region : p.regions) {
    EXPECT_THAT(kinds(region), ElementsAre(OpKind::mul_mat_id));
    EXPECT_FALSE(region.reduced);
  }
}

TEST(Region, GraphsCutAfterEveryNodeStillDispatchEverything) {
  for (const bool bias : {false, true}) {
    const MoeGraph moe = build_moe_graph({.bias = bias});
    const abi::Graph& whole = abi::view(moe.graph);
    for (int i = 0; i < whole.n_nodes; ++i) {
      abi::Graph one = abi::subgraph(whole, whole.nodes + i, 1);
      const Plan p = plan_graph(one, [](const ExpertName&, const ggml_tensor&) { return true; });
      EXPECT_EQ(p.error, "");
      const bool on_experts = whole.nodes[i]->op == GGML_OP_MUL_MAT_ID || whole.nodes[i]->op == GGML_OP_ADD_ID;
      EXPECT_EQ(p.regions.size(), on_experts ? 1 : 0) << ggml_op_name(whole.nodes[i]->op);
    }
  }
}

TEST(Region, ResultUsedBeyondTheCutEscapes) {
  // Cut in the middle of the slot views: the sum is not in this graph, so the pair rows must be written for the next one.
  const MoeGraph moe = build_moe_graph({});
  const abi::Graph& whole = abi::view(moe.graph);
  int first_view = 0;
  while (!(whole.nodes[first_view]->op == GGML_OP_VIEW && whole.nodes[first_view]->src[0]->op == GGML_OP_MUL)) ++first_view;
  abi::Graph head = abi::subgraph(whole, whole.nodes, first_view + 2);
  const Plan p = plan_graph(head, [](const ExpertName&, const ggml_tensor&) { return true; });
  ASSERT_EQ(p.error, "");
  ASSERT_EQ(p.regions.size(), 1);
  EXPECT_FALSE(p.regions[0].reduced);
}

TEST(Region, OtherTensorsWithExpertsAreLeftAlone) {
  const MoeGraph moe = build_moe_graph({.suffix = "vexps"});
  const Plan p = plan(moe);
  EXPECT_EQ(p.error, "");
  EXPECT_TRUE(p.regions.empty());
  EXPECT_EQ(p.base_nodes.size(), static_cast<std::size_t>(ggml_graph_n_nodes(moe.graph)));
}

TEST(Region, EveryStackedMatmulIsCountedWhereItIsComputed) {
  const Plan all = plan(build_moe_graph({.n_layers = 3}));
  EXPECT_EQ(all.matmuls, 9);
  EXPECT_EQ(all.dispatched, 9);
  EXPECT_TRUE(all.on_base.empty());
  const Plan none = plan(build_moe_graph({.suffix = "vexps"}));
  EXPECT_EQ(none.matmuls, 3);
  EXPECT_EQ(none.dispatched, 0);
  EXPECT_THAT(none.on_base, testing::UnorderedElementsAre("ffn_up_vexps.weight", "ffn_gate_vexps.weight", "ffn_down_vexps.weight"));
}

TEST(Region, ExpertWeightOutsideOfARegionFailsLoudly) {
  MoeGraph moe = build_moe_graph({});
  ggml_context* c = moe.context.get();
  ggml_tensor* stacked = ggml_new_tensor_3d(c, GGML_TYPE_F32, 32, 16, 8);
  ggml_set_name(stacked, "blk.0.ffn_up_exps.weight");
  ggml_build_forward_expand(moe.graph, ggml_scale(c, stacked, 2.0f));
  EXPECT_THAT(plan(moe).error, testing::HasSubstr("blk.0.ffn_up_exps.weight"));
}

}  // namespace
}  // namespace linkcpp::engine
