#include "net/driver.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

/// How long the background thread keeps away after the last waiter left: a thread that waits for one layer soon waits for the next, and
/// should find the context free. Longer than the computing of a layer when generating, or every layer would pay for two hand-overs;
/// who cannot wait so long says so by hand_over().
constexpr auto linger = std::chrono::milliseconds(10);
/// Ready handlers that a wait whose deadline has passed still runs, so that a caller that is always late makes progress.
constexpr int late_handlers = 64;

/// A thread inside run_until().
struct Waiter {
  const std::function<bool()>* done;
  bool satisfied = false;  ///< found by whoever drove, on its behalf
};

enum class Owner { nobody, background, waiter, exclusive };

}  // namespace

/// Whoever owns the context may run its handlers. An owner gives it up soon when somebody with more right to it asks: a task for
/// run_exclusive() before a waiter, a waiter before the background thread.
struct Driver::State {
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};

  std::mutex mutex;
  std::condition_variable changed;     ///< owner or satisfied
  std::condition_variable background;  ///< for the background thread alone
  Owner owner = Owner::nobody;
  std::atomic<std::thread::id> owner_thread{};
  std::vector<Waiter*> waiters;
  std::uint64_t visits = 0;  ///< how often a waiter or a task has left
  bool parked = false;       ///< the background thread wants to be told when nobody waits
  bool urgent = false;       ///< hand_over() was called
  bool stopping = false;
  // Read by the owner between handlers, without the lock. Written with it.
  std::atomic<int> n_exclusive{0};  ///< tasks that wait for ownership
  std::atomic<int> n_waiters{0};
  std::atomic<bool> leave{false};  ///< stopping
  std::thread thread;

  using Lock = std::unique_lock<std::mutex>;

  [[nodiscard]] bool is_mine() const { return owner_thread.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  void take(Owner as) {
    owner = as;
    owner_thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }

  void release() {
    owner = Owner::nobody;
    owner_thread.store({}, std::memory_order_relaxed);
    changed.notify_all();
  }

  /// Makes the owner look up from waiting for events.
  void nudge() {
    if (owner != Owner::nobody) asio::post(context, [] {});
  }

  /// A waiter or a task has left.
  void departed() {
    ++visits;
    if (std::exchange(parked, false)) background.notify_one();
  }

  // ---- waiting

  /// For the owner: tells the other waiters whose condition has come true. Their conditions are called with the lock held.
  void look_after_others(const Waiter& self) {
    if (n_waiters.load(std::memory_order_relaxed) < 2) return;
    const std::lock_guard lock(mutex);
    bool any = false;
    for (Waiter* waiter : waiters) {
      if (waiter == &self || waiter->satisfied || !(*waiter->done)()) continue;
      waiter->satisfied = any = true;
    }
    if (any) changed.notify_all();
  }

  /// Runs handlers until the waiter's condition holds, the deadline passes or a task asks for ownership. Returns the condition.
  bool drive(const Waiter& self, Clock::time_point deadline) {
    int late = 0;
    for (;;) {
      look_after_others(self);
      if ((*self.done)()) return true;
      if (n_exclusive.load(std::memory_order_acquire) > 0 || leave.load(std::memory_order_relaxed)) return false;
      if (context.stopped()) context.restart();
      if (Clock::now() < deadline) {
        context.run_one_until(deadline);
      } else if (late++ == late_handlers || context.poll_one() == 0) {
        return false;
      }
    }
  }

  bool run_until(const std::function<bool()>& done, Clock::time_point deadline) {
    Waiter self{&done};
    if (is_mine()) return drive_nested(self, deadline);
    Lock lock(mutex);
    const Visit visit(*this, self);
    if (owner == Owner::background) nudge();
    bool tried = false;
    while (!self.satisfied && !stopping) {
      if (owner == Owner::nobody && n_exclusive.load(std::memory_order_relaxed) == 0) {
        tried = true;
        if (drive_as_owner(self, deadline, lock)) self.satisfied = true;
      } else if (owner == Owner::waiter && n_exclusive.load(std::memory_order_relaxed) == 0) {
        if (Clock::now() >= deadline) break;
        changed.wait_until(lock, deadline);
        continue;
      } else {
        changed.wait(lock);  // the background thread and tasks leave by themselves
        continue;
      }
      if (tried && Clock::now() >= deadline && n_exclusive.load(std::memory_order_relaxed) == 0) break;
    }
    return self.satisfied;
  }

  /// Registration of a waiter. Made and ended with the lock held.
  struct Visit {
    State& state;
    Waiter& waiter;
    Visit(State& s, Waiter& w) : state(s), waiter(w) {
      state.waiters.push_back(&waiter);
      state.n_waiters.fetch_add(1, std::memory_order_release);
    }
    ~Visit() {
      std::erase(state.waiters, &waiter);
      state.n_waiters.fetch_sub(1, std::memory_order_release);
      state.departed();
      if (state.stopping) state.changed.notify_all();  // the destructor waits for this
    }
  };

  /// Also gives the context up if a handler throws.
  bool drive_as_owner(const Waiter& self, Clock::time_point deadline, Lock& lock) {
    struct Turn {
      State& state;
      Lock& lock;
      Turn(State& s, Lock& l) : state(s), lock(l) {
        state.take(Owner::waiter);
        lock.unlock();
      }
      ~Turn() {
        lock.lock();
        state.release();
      }
    } turn(*this, lock);
    return drive(self, deadline);
  }

  /// From inside a handler or task: this thread drives already.
  bool drive_nested(const Waiter& self, Clock::time_point deadline) {
    while (!(*self.done)()) {
      if (context.stopped()) context.restart();
      if (Clock::now() >= deadline || leave.load(std::memory_order_relaxed)) return (*self.done)();
      context.run_one_until(deadline);
    }
    return true;
  }

  // ---- tasks

  void run_exclusive(const std::function<void()>& task) {
    if (is_mine()) return task();
    Lock lock(mutex);
    if (owner != Owner::nobody) {
      n_exclusive.fetch_add(1, std::memory_order_release);
      nudge();
      changed.wait(lock, [this] { return owner == Owner::nobody; });
      n_exclusive.fetch_sub(1, std::memory_order_release);
    }
    take(Owner::exclusive);
    if (context.stopped()) context.restart();
    lock.unlock();
    struct Turn {
      State& state;
      Lock& lock;
      ~Turn() {
        lock.lock();
        state.release();
        state.departed();
      }
    } turn{*this, lock};
    task();
  }

  // ---- the background thread

  [[nodiscard]] bool in_use() const {
    return owner != Owner::nobody || !waiters.empty() || n_exclusive.load(std::memory_order_relaxed) > 0;
  }

  void run_background() {
    Lock lock(mutex);
    while (!stopping) {
      const std::uint64_t seen = visits;
      background.wait_for(lock, linger, [this] { return stopping || urgent; });
      const bool at_once = std::exchange(urgent, false);
      if (stopping || (seen != visits && !at_once)) continue;
      if (in_use()) {
        // Told only after such a long use: in a quick succession of uses, telling would cost each of them a wake-up.
        parked = true;
        background.wait(lock, [this] { return stopping || !parked; });
        continue;
      }
      take(Owner::background);
      lock.unlock();
      while (n_waiters.load(std::memory_order_acquire) == 0 && n_exclusive.load(std::memory_order_acquire) == 0 &&
             !leave.load(std::memory_order_acquire)) {
        if (context.stopped()) context.restart();
        context.run_one();
      }
      lock.lock();
      release();
    }
  }

  void hand_over() {
    const Lock lock(mutex);
    urgent = true;
    parked = false;
    background.notify_one();
  }

  State() : thread([this] { run_background(); }) {}

  ~State() {
    {
      Lock lock(mutex);
      stopping = true;
      leave.store(true, std::memory_order_release);
      nudge();
      background.notify_one();
      changed.notify_all();
      // Threads inside run_until() return early.
      changed.wait(lock, [this] { return waiters.empty() && owner == Owner::nobody; });
    }
    thread.join();
  }
};

Driver::Driver() : state_(std::make_unique<State>()) {}
Driver::~Driver() = default;

asio::io_context& Driver::context() { return state_->context; }

bool Driver::run_until(const std::function<bool()>& done, Clock::time_point deadline) { return state_->run_until(done, deadline); }

void Driver::run_exclusive(const std::function<void()>& task) { state_->run_exclusive(task); }

void Driver::hand_over() { state_->hand_over(); }

}  // namespace linkcpp::net
