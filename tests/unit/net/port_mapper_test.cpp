// Keeping a port open: renewed in time, taken back at the end, troubles told once; and NAT-PMP with a router that is a socket here.
#include "net/port_mapper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>

#include "unit/net/harness.h"

namespace linkcpp::net {
namespace {

using testing::HasSubstr;

/// What a router was asked, and how it behaves.
struct RouterScript {
  std::mutex mutex;
  std::vector<std::string> calls;
  std::string outside = "203.0.113.9";
  std::chrono::seconds lease{3600};
  std::uint16_t port_outside = 0;  ///< 0: as wished
  bool refuses = false;
  std::chrono::milliseconds slow{0};
  std::atomic<int> opened{0}, closed{0}, found{0};
};

class ScriptedRouter final : public Router {
 public:
  explicit ScriptedRouter(std::shared_ptr<RouterScript> script) : script_(std::move(script)) {}
  [[nodiscard]] std::string_view protocol() const override { return "paper"; }
  [[nodiscard]] std::string where() const override { return "192.168.1.1"; }
  Result<boost::asio::ip::address> outside() override {
    const std::lock_guard lock(script_->mutex);
    return boost::asio::ip::make_address(script_->outside);
  }
  Result<PortGrant> open(const PortWish& wish) override {
    const std::lock_guard lock(script_->mutex);
    if (script_->refuses) return fail(ErrorKind::unauthorized, "the router does not want to");
    ++script_->opened;
    return PortGrant{script_->port_outside == 0 ? wish.port : script_->port_outside, script_->lease};
  }
  void close(const PortWish& /*wish*/, const PortGrant& /*grant*/) override {
    std::this_thread::sleep_for(script_->slow);
    ++script_->closed;
  }

 private:
  std::shared_ptr<RouterScript> script_;
};

struct MapperOfScript {
  std::shared_ptr<RouterScript> script = std::make_shared<RouterScript>();
  Mailbox<PortMapper::Mapped> mapped;
  Mailbox<Error> troubles;
  PortMapperKnobs knobs{.retry_first = 20ms, .retry_longest = 40ms, .farewell = 2s};
  std::unique_ptr<PortMapper> mapper;
  void start() {
    mapper = std::make_unique<PortMapper>(
        std::uint16_t{7101}, [this](const PortMapper::Mapped& m) { mapped.put(m); }, [this](const Error& e) { troubles.put(e); }, knobs,
        [script = script](const std::stop_token&, std::chrono::milliseconds) -> Result<std::unique_ptr<Router>> {
          ++script->found;
          return std::make_unique<ScriptedRouter>(script);
        });
  }
};

TEST(PortMapperTest, OpensBothPortsAndTakesThemBack) {
  MapperOfScript one;
  one.script->port_outside = 40'000;
  one.start();
  const auto mapped = one.mapped.take().value();
  EXPECT_EQ(mapped.candidate, (Candidate{{boost::asio::ip::make_address("203.0.113.9"), 40'000}, CandidateKind::mapped}));
  EXPECT_EQ(mapped.tcp_port, 40'000);
  EXPECT_EQ(mapped.by, "paper 192.168.1.1");
  one.mapper.reset();
  EXPECT_EQ(one.script->closed, 2);
}

TEST(PortMapperTest, RenewsBeforeTheLeaseEndsAndTellsChangesOnly) {
  MapperOfScript one;
  one.script->lease = 1s;
  one.start();
  ASSERT_TRUE(one.mapped.take());
  while (one.script->opened < 4) std::this_thread::sleep_for(10ms);  // twice UDP and TCP
  {
    const std::lock_guard lock(one.script->mutex);
    one.script->outside = "203.0.113.10";
  }
  EXPECT_EQ(one.mapped.take()->candidate.at.address().to_string(), "203.0.113.10") << "the next that is told is another one";
}

TEST(PortMapperTest, TroubleIsToldOnceAndPasses) {
  MapperOfScript one;
  one.script->refuses = true;
  one.start();
  EXPECT_THAT(one.troubles.take()->message, HasSubstr("does not want"));
  while (one.script->found < 4) std::this_thread::sleep_for(5ms);
  {
    const std::lock_guard lock(one.script->mutex);
    one.script->refuses = false;
    one.script->outside = "100.64.3.4";
  }
  EXPECT_THAT(one.troubles.take()->message, HasSubstr("another NAT")) << "the next trouble is another one";
  {
    const std::lock_guard lock(one.script->mutex);
    one.script->outside = "203.0.113.9";
  }
  EXPECT_TRUE(one.mapped.take());
}

TEST(PortMapperTest, ARouterThatHangsDoesNotHoldUpTheEnd) {
  MapperOfScript one;
  one.script->slow = 1s;
  one.knobs.farewell = 50ms;
  one.start();
  ASSERT_TRUE(one.mapped.take());
  const auto begun = Clock::now();
  one.mapper.reset();
  EXPECT_LT(Clock::now() - begun, 900ms);
  while (one.script->closed < 2) std::this_thread::sleep_for(10ms);  // the thread goes on by itself
}

TEST(RouterTest, WhoDoesNotAnswerIsNoRouterAndAskingCanBeEnded) {
  const auto nobody = boost::asio::ip::make_address_v4("127.0.0.1");
  auto none = find_natpmp_router({}, 300ms, nobody);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::not_found);
  EXPECT_THAT(none.error().message, HasSubstr("127.0.0.1"));
  std::stop_source stop;
  stop.request_stop();
  const auto begun = Clock::now();
  EXPECT_FALSE(find_natpmp_router(stop.get_token(), 5s, nobody));
  EXPECT_LT(Clock::now() - begun, 1s);
}

}  // namespace
}  // namespace linkcpp::net
