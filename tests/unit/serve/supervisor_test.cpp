// The supervisor over real processes: shell scripts in the place of llama-server, real channels, real signals.
#include "serve/supervisor.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <filesystem>
#include <fstream>

#include "serve/temp_dir.h"

namespace linkcpp::serve {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

/// Runs a script under supervision until it ends or the time limit fails the test.
class Supervised {
 public:
  explicit Supervised(const std::string& script, SupervisionKnobs knobs = quick())
      : supervisor(context, {.argv = {"/bin/sh", "-c", script}}, knobs,
                   {.on_start =
                        [this] {
                          ++starts;
                          if (on_start) on_start();
                        },
                    .on_event =
                        [this](const Json& event) {
                          events.push_back(event);
                          if (on_event) on_event(event);
                        },
                    .on_log = [this](std::string_view line) { log.emplace_back(line); },
                    .on_crash =
                        [this](const ExitStatus& ended, std::chrono::milliseconds pause) {
                          crashes.push_back(ended);
                          pauses.push_back(pause);
                        }}) {}

  static SupervisionKnobs quick() {
    SupervisionKnobs knobs;
    knobs.backoff_min = 10ms;
    knobs.backoff_max = 40ms;
    knobs.stop_grace = 500ms;
    knobs.drain_grace = 200ms;
    return knobs;
  }

  Result<> run() {
    Result<> result = fail(ErrorKind::timeout, "the test ran out of time");
    asio::co_spawn(context, supervisor.run(), [&](const std::exception_ptr& failed, Result<> ended) {
      if (!failed) result = std::move(ended);
      context.stop();
    });
    context.run_for(20s);
    return result;
  }

  asio::io_context context{1};
  std::function<void()> on_start;
  std::function<void(const Json&)> on_event;
  int starts = 0;
  std::vector<Json> events;
  std::vector<std::string> log;
  std::vector<ExitStatus> crashes;
  std::vector<std::chrono::milliseconds> pauses;
  Supervisor supervisor;
};

TEST(Supervisor, HandsOnEventsAndLog) {
  Supervised it(R"(echo to stdout; echo to stderr >&2; echo '{"event":"ready"}' >&3; printf '{"event":"coverage","com' >&3;
                   printf 'plete":true}\n' >&3; exit 1)");
  const auto ended = it.run();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().kind, ErrorKind::unavailable);
  EXPECT_NE(ended.error().message.find("exited with code 1 before it was ready"), std::string::npos) << ended.error().message;
  EXPECT_NE(ended.error().message.find("| to stderr"), std::string::npos);
  EXPECT_EQ(it.log, (std::vector<std::string>{"to stdout", "to stderr"}));
  ASSERT_EQ(it.events.size(), 2u);
  EXPECT_EQ(it.events[0]["event"], "ready");
  EXPECT_EQ(it.events[1]["complete"], true);
}

TEST(Supervisor, QuotesThePluginsOwnError) {
  Supervised it("echo 'linkcpp: error: the model is another one'; echo later; exit 1");
  const auto ended = it.run();
  ASSERT_FALSE(ended);
  EXPECT_TRUE(ended.error().message.starts_with("the model is another one (sh exited with code 1")) << ended.error().message;
}

TEST(Supervisor, SurvivesGarbageOnTheStatusChannel) {
  Supervised it(
      R"(head -c 3000000 /dev/zero >&3; echo >&3; echo 'not json' >&3; echo '[1]' >&3; echo '{"event":7}' >&3; echo '{"event":"ready"}' >&3; exit 1)");
  ASSERT_FALSE(it.run());
  ASSERT_EQ(it.events.size(), 1u);
  EXPECT_EQ(it.events[0]["event"], "ready");
  EXPECT_EQ(it.log.size(), 4u);
}

TEST(Supervisor, RestartsACrashedServerWithGrowingPauses) {
  Supervised it(R"(echo '{"event":"ready"}' >&3; sleep 0.02; kill -SEGV $$)");
  it.on_event = [&](const Json&) { it.supervisor.served(); };
  const auto ended = it.run();
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message.find("crashed more than 5 times within 60 s"), std::string::npos) << ended.error().message;
  EXPECT_EQ(it.starts, 6);
  ASSERT_EQ(it.crashes.size(), 5u);
  EXPECT_EQ(it.crashes[0].signal, SIGSEGV);
  EXPECT_EQ(it.pauses, (std::vector<std::chrono::milliseconds>{10ms, 20ms, 40ms, 40ms, 40ms}));
}

TEST(Supervisor, OldCrashesAreForgotten) {
  auto knobs = Supervised::quick();
  knobs.max_crashes = 1;
  knobs.crash_window = 50ms;
  knobs.backoff_min = knobs.backoff_max = 1ms;
  Supervised it("sleep 0.12; kill -SEGV $$", knobs);
  it.on_start = [&] {
    if (it.starts == 4) it.supervisor.stop();
  };
  it.supervisor.served();
  ASSERT_TRUE(it.run());
  EXPECT_EQ(it.crashes.size(), 3u);
}

TEST(Supervisor, StopsGracefully) {
  Supervised it(R"(trap 'echo bye; exit 0' TERM; echo '{"event":"ready"}' >&3; while :; do sleep 0.02; done)");
  it.on_event = [&](const Json&) { it.supervisor.stop(); };
  const auto ended = it.run();
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(it.starts, 1);
  EXPECT_EQ(it.log, std::vector<std::string>{"bye"});
}

TEST(Supervisor, KillsAServerThatDoesNotStop) {
  Supervised it(R"(trap '' TERM; echo '{"event":"ready"}' >&3; while :; do sleep 0.02; done)");
  std::chrono::steady_clock::time_point begin;
  it.on_event = [&](const Json&) {
    begin = std::chrono::steady_clock::now();
    it.supervisor.stop();
  };
  ASSERT_TRUE(it.run());
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 500ms);
  EXPECT_LT(took, 5s);
}

TEST(Supervisor, StopDuringThePauseEndsIt) {
  auto knobs = Supervised::quick();
  knobs.backoff_min = knobs.backoff_max = 60s;
  Supervised it("kill -SEGV $$", knobs);
  asio::steady_timer timer(it.context, 300ms);
  timer.async_wait([&](boost::system::error_code) { it.supervisor.stop(); });
  ASSERT_TRUE(it.run());
  EXPECT_EQ(it.starts, 1);
}

TEST(Supervisor, AGrandchildThatHoldsTheChannelsDoesNotHoldUs) {
  Supervised it("sleep 3 & exit 4");
  const auto begin = std::chrono::steady_clock::now();
  const auto ended = it.run();
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().message.find("code 4"), std::string::npos) << ended.error().message;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
}

TEST(Supervisor, MissingProgram) {
  asio::io_context context;
  Supervisor supervisor(context, {.argv = {"/no/such/server"}}, {}, {});
  Result<> result;
  asio::co_spawn(context, supervisor.run(), [&](const std::exception_ptr&, Result<> ended) { result = std::move(ended); });
  context.run_for(10s);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::not_found);
}

}  // namespace
}  // namespace linkcpp::serve
