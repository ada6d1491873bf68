#include "net/path_choice.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace linkcpp::net {
namespace {

using namespace std::chrono_literals;

constexpr PathKnobs usual_knobs;

PathView path(std::uint32_t id, std::chrono::nanoseconds rtt, bool relayed = false) {
  return {.id = id, .relayed = relayed, .answered = true, .silent = false, .rtt = rtt};
}
PathView silent(PathView view) {
  view.silent = true;
  return view;
}
PathView unanswered(PathView view) {
  view.answered = false;
  return view;
}
std::uint32_t choose(std::vector<PathView> paths, std::uint32_t present) { return choose_path(paths, present, usual_knobs); }

TEST(PathChoice, NoneOfNoneAndTheOnlyOneOfOne) {
  EXPECT_EQ(choose({}, 0), 0u);
  EXPECT_EQ(choose({path(7, 10ms)}, 0), 7u);
  EXPECT_EQ(choose({silent(path(7, 10ms))}, 7), 7u) << "a silent path is better than none";
  EXPECT_EQ(choose({unanswered(path(7, 10ms))}, 7), 7u) << "a new session goes on at once";
  EXPECT_EQ(choose({unanswered(path(7, 10ms))}, 0), 0u);
}

TEST(PathChoice, DirectBeforeRelayedWhateverTheRoundTrip) {
  EXPECT_EQ(choose({path(1, 10ms, true), path(2, 50ms)}, 1), 2u);
  EXPECT_EQ(choose({path(1, 10ms, true), path(2, 0ms)}, 1), 2u) << "also before it is measured";
  EXPECT_EQ(choose({path(1, 10ms, true), path(2, 50ms)}, 2), 2u);
}

TEST(PathChoice, OnlyAClearlyShorterRoundTripIsWorthMoving) {
  EXPECT_EQ(choose({path(1, 100ms), path(2, 91ms)}, 1), 1u) << "less than a tenth";
  EXPECT_EQ(choose({path(1, 100ms), path(2, 89ms)}, 1), 2u);
  EXPECT_EQ(choose({path(1, 4ms), path(2, 2500us)}, 1), 1u) << "less than 2 ms";
  EXPECT_EQ(choose({path(1, 100ms), path(2, 0ms)}, 1), 1u) << "not measured";
}

TEST(PathChoice, ASilentPathIsLeftAtOnceAlsoForARelay) {
  EXPECT_EQ(choose({silent(path(1, 10ms)), path(2, 200ms, true)}, 1), 2u);
  EXPECT_EQ(choose({silent(path(1, 10ms)), unanswered(path(2, 200ms))}, 1), 1u);
}

TEST(PathChoice, APathThatThePeerDoesNotKnowIsNotUsedWhileThereIsAnother) {
  EXPECT_EQ(choose({path(1, 200ms, true), unanswered(path(2, 1ms))}, 1), 1u);
}

TEST(PathChoice, NeverAlternatesWhileNothingChanges) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<PathView> paths;
    for (std::uint32_t id = 1; id <= 1 + random() % 4; ++id) {
      paths.push_back({id, random() % 2 == 0, random() % 4 != 0, random() % 4 == 0, std::chrono::milliseconds(random() % 60)});
    }
    const std::uint32_t first = choose(paths, static_cast<std::uint32_t>(random() % 5));
    std::uint32_t present = first;
    for (int i = 0; i < 6; ++i) present = choose(paths, present);
    EXPECT_EQ(choose(paths, present), present) << "it goes round in circles";
  }
}

TEST(PathChoice, SilenceCountsRoundTripsAndWhatIsUnderWay) {
  EXPECT_FALSE(path_is_silent(1000ms, 0ms, 0, usual_knobs));
  EXPECT_TRUE(path_is_silent(1001ms, 0ms, 0, usual_knobs));
  EXPECT_FALSE(path_is_silent(1900ms, 300ms, 0, usual_knobs));
  EXPECT_TRUE(path_is_silent(1901ms, 300ms, 0, usual_knobs));
  EXPECT_FALSE(path_is_silent(4900ms, 300ms, 3u << 20, usual_knobs));
  EXPECT_TRUE(path_is_silent(4901ms, 300ms, 3u << 20, usual_knobs));
}

TEST(PathChoice, RelaysAreKnownByTheirKind) {
  EXPECT_TRUE(is_relayed("relay"));
  EXPECT_FALSE(is_relayed("tcp"));
  EXPECT_FALSE(is_relayed("quic"));
}

}  // namespace
}  // namespace linkcpp::net
