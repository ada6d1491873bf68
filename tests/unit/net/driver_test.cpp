// Who drives: waiters, tasks and the background thread, one at a time.
#include "net/driver.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace linkcpp::net {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace asio = boost::asio;

Clock::time_point in(Clock::duration time) { return Clock::now() + time; }

/// A one-shot event between threads.
class Flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool wait(Clock::duration limit = 30s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

TEST(DriverTest, TheWaiterDrives) {
  Driver driver;
  std::thread::id ran_on;
  bool done = false;
  asio::steady_timer timer(driver.context());
  driver.run_exclusive([&] {
    timer.expires_after(10ms);
    timer.async_wait([&](auto) {
      ran_on = std::this_thread::get_id();
      done = true;
    });
  });
  EXPECT_TRUE(driver.run_until([&] { return done; }, in(30s)));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(DriverTest, TheBackgroundThreadDrivesWhenNobodyWaits) {
  Driver driver;
  for (int i = 0; i < 20; ++i) {
    Flag ran;
    std::thread::id ran_on;
    asio::post(driver.context(), [&] {
      ran_on = std::this_thread::get_id();
      ran.set();
    });
    ASSERT_TRUE(ran.wait());
    EXPECT_NE(ran_on, std::this_thread::get_id());
    EXPECT_FALSE(driver.run_until([] { return false; }, in(100us)));
  }
}

TEST(DriverTest, DeadlinePassesAndLateCallersStillMakeProgress) {
  Driver driver;
  const auto start = Clock::now();
  EXPECT_FALSE(driver.run_until([] { return false; }, start + 20ms));
  EXPECT_GE(Clock::now() - start, 20ms);
  EXPECT_LT(Clock::now() - start, 5s);
  bool done = false;
  asio::post(driver.context(), [&] { done = true; });
  EXPECT_TRUE(driver.run_until([&] { return done; }, start));
}

TEST(DriverTest, WaitersInterruptTheBackgroundThreadAtOnce) {
  Driver driver;
  std::vector<Clock::duration> times;
  for (int i = 0; i < 15; ++i) {
    std::this_thread::sleep_for(30ms);  // the background thread has taken over
    bool done = false;
    const auto start = Clock::now();
    asio::post(driver.context(), [&] { done = true; });
    EXPECT_TRUE(driver.run_until([&] { return done; }, in(30s)));
    times.push_back(Clock::now() - start);
  }
  std::ranges::sort(times);
  EXPECT_LT(times[7], 5ms) << "median";
}

TEST(DriverTest, HandedOverTheBackgroundThreadDrivesAtOnce) {
  Driver driver;
  std::vector<Clock::duration> times;
  for (int i = 0; i < 15; ++i) {
    driver.run_until([] { return false; }, in(i % 3 == 0 ? 40ms : 1ms));  // so long that the background thread has parked, and shorter
    Flag ran;
    const auto start = Clock::now();
    asio::post(driver.context(), [&] { ran.set(); });
    driver.hand_over();
    ASSERT_TRUE(ran.wait());
    times.push_back(Clock::now() - start);
  }
  std::ranges::sort(times);
  EXPECT_LT(times[7], 5ms) << "median";
}

TEST(DriverTest, ConsecutiveWaitsPayNoHandOver) {
  Driver driver;
  driver.run_until([] { return false; }, in(1ms));
  std::vector<double> microseconds;
  rusage before{}, after{};
  ::getrusage(RUSAGE_THREAD, &before);
  constexpr int n = 20'000;
  const auto start = Clock::now();
  for (int i = 0; i < n; ++i) {
    bool done = false;
    asio::post(driver.context(), [&] { done = true; });
    ASSERT_TRUE(driver.run_until([&] { return done; }, in(30s)));
  }
  const double each = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / n;
  ::getrusage(RUSAGE_THREAD, &after);
  RecordProperty("microseconds_each", std::to_string(each));
  std::printf("run_until with a ready handler: %.2f us, %ld voluntary switches in %d calls\n", each, after.ru_nvcsw - before.ru_nvcsw, n);
  std::fflush(stdout);  // forked tests would print it again
  EXPECT_LT(after.ru_nvcsw - before.ru_nvcsw, n / 20) << "the waiting thread was put to sleep for hand-overs";
}

TEST(DriverTest, DoesNotSpinWhileIdle) {
  Driver driver;
  driver.run_until([] { return false; }, in(1ms));
  const auto cpu = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  std::this_thread::sleep_for(20ms);
  const auto before = cpu();
  std::this_thread::sleep_for(400ms);
  EXPECT_LT(cpu() - before, 40ms);
  const auto waiting = cpu();
  EXPECT_FALSE(driver.run_until([] { return false; }, in(400ms)));
  EXPECT_LT(cpu() - waiting, 40ms);
}

TEST(DriverTest, HandlersAndTasksExcludeEachOther) {
  Driver driver;
  int inside = 0, most = 0;
  long count = 0;  // no atomics: ThreadSanitizer must be content
  const auto work = [&] {
    most = std::max(most, ++inside);
    ++count;
    --inside;
  };
  constexpr int n = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < n; ++i) driver.run_exclusive(work);
    });
    threads.emplace_back([&] {
      for (int i = 0; i < n; ++i) {
        asio::post(driver.context(), work);
        if (i % 50 == 0) std::this_thread::sleep_for(5ms);
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < n; ++i) {
        bool done = false;
        asio::post(driver.context(), [&] {
          work();
          done = true;
        });
        EXPECT_TRUE(driver.run_until([&] { return done; }, in(30s)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(driver.run_until([&] { return count == 6 * n; }, in(30s)));
  EXPECT_EQ(most, 1);
}

TEST(DriverTest, TwoWaitersAreServedWhicheverIsReadyFirst) {
  Driver driver;
  for (const bool first_is_slow : {true, false}) {
    bool a = false, b = false;
    asio::steady_timer timer_a(driver.context()), timer_b(driver.context());
    driver.run_exclusive([&] {
      timer_a.expires_after(first_is_slow ? 200ms : 20ms);
      timer_a.async_wait([&](auto) { a = true; });
      timer_b.expires_after(first_is_slow ? 20ms : 200ms);
      timer_b.async_wait([&](auto) { b = true; });
    });
    const auto start = Clock::now();
    Clock::duration took_b{};
    std::thread other([&] {
      std::this_thread::sleep_for(5ms);
      EXPECT_TRUE(driver.run_until([&] { return b; }, in(30s)));
      took_b = Clock::now() - start;
    });
    EXPECT_TRUE(driver.run_until([&] { return a; }, in(30s)));
    const auto took_a = Clock::now() - start;
    other.join();
    if (first_is_slow) {
      EXPECT_LT(took_b, took_a) << "the second waiter waited for the first";
    } else {
      EXPECT_LT(took_a, took_b) << "the first waiter waited for the second";
    }
  }
}

TEST(DriverTest, TheDeadlineOfAWaiterThatDoesNotDriveHolds) {
  Driver driver;
  std::atomic<bool> stop = false;
  std::thread other([&] { driver.run_until([&] { return stop.load(); }, in(30s)); });
  std::this_thread::sleep_for(5ms);
  const auto start = Clock::now();
  EXPECT_FALSE(driver.run_until([] { return false; }, in(30ms)));
  EXPECT_LT(Clock::now() - start, 10s);
  stop = true;
  driver.run_exclusive([] {});
  other.join();
}

TEST(DriverTest, ATaskReachesADrivingWaiterAndWakesIt) {
  Driver driver;
  bool done = false;
  std::thread waiter([&] { EXPECT_TRUE(driver.run_until([&] { return done; }, in(30s))); });
  std::this_thread::sleep_for(20ms);
  const auto start = Clock::now();
  driver.run_exclusive([&] { done = true; });
  waiter.join();
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST(DriverTest, TasksMayPollAndNest) {
  Driver driver;
  int ran = 0;
  driver.run_exclusive([&] {
    asio::post(driver.context(), [&] { ++ran; });
    driver.context().poll();
    EXPECT_EQ(ran, 1);
    driver.run_exclusive([&] { ++ran; });
    asio::post(driver.context(), [&] { ++ran; });
    EXPECT_TRUE(driver.run_until([&] { return ran == 3; }, in(30s)));
  });
  EXPECT_EQ(ran, 3);
}

TEST(DriverTest, AThrowingTaskOrHandlerLeavesTheDriverUsable) {
  Driver driver;
  EXPECT_THROW(driver.run_exclusive([] { throw 1; }), int);
  bool posted = false;  // from inside the wait, so that the background thread cannot come first
  EXPECT_THROW(driver.run_until(
                   [&] {
                     if (!std::exchange(posted, true)) asio::post(driver.context(), [] { throw 2; });
                     return false;
                   },
                   in(30s)),
               int);
  bool done = false;
  driver.run_exclusive([&] { done = true; });
  EXPECT_TRUE(driver.run_until([&] { return done; }, in(1s)));
}

TEST(DriverTest, DestructionReleasesWaitersAndDropsHandlers) {
  for (int i = 0; i < 20; ++i) {
    auto driver = std::make_unique<Driver>();
    auto ran = std::make_shared<bool>(false);
    std::weak_ptr<asio::steady_timer> watch;
    {
      auto timer = std::make_shared<asio::steady_timer>(driver->context(), 1h);
      watch = timer;
      timer->async_wait([timer, ran](auto) { *ran = true; });  // the handler alone keeps the timer
    }
    std::atomic<int> entered = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&used = *driver, &entered] {
        EXPECT_FALSE(used.run_until(
            [&] {
              ++entered;
              return false;
            },
            in(30s)));
      });
    }
    while (entered < 1) std::this_thread::yield();
    std::this_thread::sleep_for(10ms);  // both are inside
    driver.reset();
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(watch.expired());
    EXPECT_FALSE(*ran);
  }
}

}  // namespace
}  // namespace linkcpp::net
