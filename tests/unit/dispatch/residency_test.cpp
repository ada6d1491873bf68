// Residency in any course of events: the budget holds, no expert is twice anywhere, and what is used most is what is kept.
#include "dispatch/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace linkcpp::dispatch::residency_test {
namespace {

constexpr std::uint16_t n_layers = 3, n_expert = 16;
constexpr std::uint64_t slice = 100;

std::vector<LayerSize> layers() {
  std::vector<LayerSize> out;
  for (std::uint16_t l = 0; l < n_layers; ++l) out.push_back({l, n_expert, slice});
  return out;
}

/// A router that selects experts `first` to `first + 3` nine times of ten, and any four else.
class Router {
 public:
  explicit Router(unsigned seed) : random_(seed) {}
  std::vector<std::int32_t> select(std::int32_t first) {
    const bool usual = random_() % 10 != 0;
    std::set<std::int32_t> out;
    while (out.size() < 4) {
      out.insert(usual ? (first + static_cast<std::int32_t>(out.size())) % n_expert : static_cast<std::int32_t>(random_() % n_expert));
    }
    return {out.begin(), out.end()};
  }

 private:
  std::mt19937 random_;
};

/// One pass of a token: everything that was asked for arrives at once. Returns how many experts moved.
std::size_t pass(Residency& residency, Router& router, std::uint64_t number, std::int32_t first) {
  for (std::uint16_t l = 0; l < n_layers; ++l) residency.note(number, l, 1, router.select(first));
  const Moves moves = residency.next_moves(4 * slice);
  for (const ExpertSlice& e : moves.admit) EXPECT_TRUE(residency.arrived(e.layer, e.expert));
  return moves.admit.size();
}

std::size_t resident_in(const Residency& residency, std::int32_t first) {
  std::size_t n = 0;
  for (std::uint16_t l = 0; l < n_layers; ++l) {
    for (std::int32_t e = 0; e < 4; ++e) n += residency.resident(l, static_cast<std::uint32_t>((first + e) % n_expert)) ? 1 : 0;
  }
  return n;
}

TEST(Residency, KeepsWhatIsUsedMostAndFollowsWhereItGoes) {
  Residency residency(layers(), 12 * slice);
  Router router(5);
  std::uint64_t number = 0;
  for (int i = 0; i < 400; ++i) pass(residency, router, ++number, 0);
  EXPECT_GE(resident_in(residency, 0), 11);
  for (int i = 0; i < 400; ++i) pass(residency, router, ++number, 8);
  EXPECT_GE(resident_in(residency, 8), 11);
}

TEST(Residency, DoesNotThrashWhereAllAreAlike) {
  Residency residency(layers(), 12 * slice);
  Router router(6);
  std::size_t moved = 0;
  for (std::uint64_t number = 1; number <= 1000; ++number) {
    const std::size_t n = pass(residency, router, number, static_cast<std::int32_t>(number * 5 % n_expert));
    if (number > 500) moved += n;
  }
  EXPECT_LT(moved, 500) << "less than one expert a pass, of twelve selected ones";
}

TEST(Residency, KeepsItsBudgetWhateverHappens) {
  std::mt19937 random(7);
  Residency residency(layers(), 10 * slice);
  Router router(8);
  std::set<std::pair<std::uint16_t, std::uint16_t>> coming;
  for (std::uint64_t number = 1; number <= 2000; ++number) {
    for (std::uint16_t l = 0; l < n_layers; ++l) residency.note(number, l, 1, router.select(static_cast<std::int32_t>(number / 200)));
    if (number % 300 == 0) residency.set_budget((2 + random() % 20) * slice);
    const Moves moves = residency.next_moves((random() % 4) * slice);
    for (const ExpertSlice& e : moves.evict) EXPECT_NE(residency.state(e.layer, e.expert), SliceState::resident);
    for (const ExpertSlice& e : moves.admit) {
      EXPECT_EQ(residency.state(e.layer, e.expert), SliceState::coming);
      coming.insert({e.layer, e.expert});
    }
    EXPECT_LE(residency.bytes(), residency.budget());
    if (!coming.empty() && random() % 2 == 0) {
      const auto [layer, expert] = *coming.begin();
      coming.erase(coming.begin());
      const bool was_coming = residency.state(layer, expert) == SliceState::coming;
      if (random() % 4 == 0) {
        residency.failed(layer, expert);
        EXPECT_EQ(residency.state(layer, expert), SliceState::absent);
      } else {
        EXPECT_EQ(residency.arrived(layer, expert), was_coming);
      }
    }
    std::uint64_t held = 0;
    for (std::uint16_t l = 0; l < n_layers; ++l) {
      for (std::uint32_t e = 0; e < n_expert; ++e) held += residency.state(l, e) == SliceState::absent ? 0 : slice;
    }
    EXPECT_EQ(held, residency.bytes());
  }
}

}  // namespace
}  // namespace linkcpp::dispatch::residency_test
