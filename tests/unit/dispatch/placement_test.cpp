#include "dispatch/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "dispatch/dispatcher.h"

namespace linkcpp::dispatch {
namespace {

using wire::LayerHolding;
using Holdings = std::vector<LayerHolding>;

Holdings holding(std::initializer_list<std::pair<std::uint16_t, std::vector<std::uint32_t>>> layers, std::uint16_t n_expert = 4) {
  Holdings result;
  for (const auto& [layer, experts] : layers) {
    result.push_back(wire::empty_holding(layer, n_expert));
    for (const std::uint32_t e : experts) result.back().add(e);
  }
  return result;
}

const std::vector<LayerSize> two_layers{{0, 4, 100}, {1, 4, 100}};

TEST(Placement, FillsUncoveredLayersInOrder) {
  const Placement placement = place_slices(two_layers, {}, {}, 599);
  EXPECT_EQ(describe(placement.urgent), "layer 0: experts 0-3; layer 1: experts 0");
  EXPECT_TRUE(placement.spare.empty());
  EXPECT_EQ(placement.bytes, 500u);
}

TEST(Placement, TheNextWorkerTakesTheRestAndThenReplicas) {
  const std::vector<Holdings> others{holding({{0, {0, 1, 2, 3}}, {1, {0}}})};
  const Placement placement = place_slices(two_layers, others, {}, 500);
  EXPECT_EQ(describe(placement.urgent), "layer 1: experts 1-3");
  EXPECT_EQ(describe(placement.spare), "layer 0: experts 0-1");
}

TEST(Placement, WhatIsStoredIsNotFetchedElsewhere) {
  const Holdings stored = holding({{1, {2, 3}}});
  EXPECT_EQ(describe(place_slices(two_layers, {}, stored, 300).urgent), "layer 0: experts 0; layer 1: experts 2-3");
  // Others have come to hold it: what nobody holds goes first, then what is stored.
  const std::vector<Holdings> others{holding({{0, {1, 2, 3}}, {1, {0, 1, 2, 3}}})};
  const Placement placement = place_slices(two_layers, others, stored, 300);
  EXPECT_EQ(describe(placement.urgent), "layer 0: experts 0");
  EXPECT_EQ(describe(placement.spare), "layer 1: experts 2-3");
}

TEST(Placement, ReplicatesTheLeastHeldFirst) {
  const std::vector<Holdings> others{holding({{0, {0, 1, 2, 3}}, {1, {0, 1, 2, 3}}}), holding({{0, {0, 1, 2, 3}}, {1, {0, 1}}})};
  EXPECT_EQ(describe(place_slices(two_layers, others, {}, 200).spare), "layer 1: experts 2-3");
}

TEST(Placement, ASmallerSliceMayFitWhereALargerDoesNot) {
  const std::vector<LayerSize> layers{{0, 2, 100}, {1, 2, 10}};
  EXPECT_EQ(describe(place_slices(layers, {}, {}, 115).urgent), "layers 0-1: experts 0");
}

TEST(Placement, NothingFitsIntoNothing) {
  EXPECT_TRUE(place_slices(two_layers, {}, {}, 99).empty());
  EXPECT_TRUE(place_slices({}, {}, {}, 1 << 20).empty());
}

TEST(Placement, IgnoresStoredLayersOfAnotherShape) {
  const Holdings stored = holding({{0, {5}}, {9, {0}}}, 8);
  EXPECT_EQ(describe(place_slices(two_layers, {}, stored, 100).urgent), "layer 0: experts 0");
}

/// Whatever joins in whatever order: budgets are kept, nothing is placed twice on one worker, and as soon as the budgets suffice
/// (but for what a slice's size leaves over) everything is held.
TEST(Placement, CoversTheModelWhenBudgetsSuffice) {
  std::mt19937 random(7);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<LayerSize> layers;
    std::uint64_t total = 0, largest = 0;
    for (std::uint16_t l = 0; l < 1 + below(6); ++l) {
      layers.push_back({l, static_cast<std::uint16_t>(1 + below(90)), 1 + below(1000)});
      total += layers.back().n_expert * layers.back().slice_bytes;
      largest = std::max(largest, layers.back().slice_bytes);
    }
    std::vector<Holdings> held;
    std::uint64_t room = 0;
    while (room < total) {
      const std::uint64_t budget = largest + below(static_cast<std::uint32_t>(total));
      const Placement placement = place_slices(layers, held, {}, budget);
      ASSERT_LE(placement.bytes, budget);
      std::uint64_t bytes = 0;
      for (const auto* part : {&placement.urgent, &placement.spare}) {
        for (const LayerHolding& holding : *part) bytes += holding.count() * layers[holding.layer].slice_bytes;
      }
      ASSERT_EQ(bytes, placement.bytes) << "a slice was placed twice or not counted";
      held.push_back(wire::united(placement.urgent, placement.spare));
      room += budget - (largest - 1);
    }
    std::vector<std::pair<std::uint16_t, std::uint16_t>> shapes;
    Dispatcher dispatcher;
    Actions actions;
    for (const LayerSize& layer : layers) shapes.emplace_back(layer.layer, layer.n_expert);
    for (const Holdings& worker : held) dispatcher.add_worker({.name = "w", .holdings = worker}, Time(0), actions);
    ASSERT_THAT(dispatcher.gaps(shapes), ::testing::IsEmpty()) << "round " << round;
  }
}

}  // namespace
}  // namespace linkcpp::dispatch
