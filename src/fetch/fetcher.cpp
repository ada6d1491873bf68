#include "fetch/fetcher.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "fetch/stream.h"
#include "wire/text.h"

namespace linkcpp::fetch {
namespace {

using store::Wanted;

constexpr auto rate_window = std::chrono::seconds(5);
constexpr std::size_t max_problems = 1000;  ///< remembered to say each only once

class ThreadedFetcher final : public Fetcher {
 public:
  ThreadedFetcher(std::shared_ptr<store::Store> store, FetchKnobs knobs, FetchHandlers handlers)
      : store_(std::move(store)), knobs_(knobs), handlers_(std::move(handlers)), plan_(knobs.plan) {
    const unsigned n = std::clamp(knobs_.parallel, 1u, 64u);
    running_.resize(n);
    for (unsigned i = 0; i < n; ++i) threads_.emplace_back([this, i] { run(i); });
  }
  ~ThreadedFetcher() override { stop(); }

  void want(const std::vector<Wanted>& slices) override {
    const std::lock_guard lock(mutex_);
    for (const auto& wanted : slices) {
      if (!known_.insert(wanted.digest).second) continue;
      plan_.add_slice();
      slices_.push_back(wanted);
      progress_.bytes += wanted.bytes;
      ++progress_.slices;
      unseen_.push_back(slices_.size() - 1);
    }
    changed_.notify_all();
  }

  std::size_t add(Source source) override {
    const std::lock_guard lock(mutex_);
    plan_.add_source(source.tier, source.max_parallel);
    progress_.sources.push_back({.name = source.name});
    sources_.push_back(std::make_shared<Source>(std::move(source)));
    changed_.notify_all();
    return sources_.size() - 1;
  }

  void remove(std::size_t source) override {
    const std::lock_guard lock(mutex_);
    if (source >= sources_.size()) return;
    plan_.remove_source(source);
    for (auto& transfer : running_) {
      if (transfer.reader && transfer.source == source) transfer.reader->cancel();
    }
    changed_.notify_all();
  }

  [[nodiscard]] FetchProgress progress() const override {
    const std::lock_guard lock(mutex_);
    FetchProgress result = progress_;
    result.slices_failed = plan_.failed();
    for (const auto& transfer : running_) result.bytes_done += transfer.there;
    if (samples_.size() > 1) {
      const std::chrono::duration<double> span = Clock::now() - samples_.front().when;
      if (span < rate_window * 2 && span.count() > 0) {
        result.bytes_per_second = static_cast<double>(result.fetched() - samples_.front().bytes) / span.count();
      }
    }
    if (result.bytes_per_second > 0) result.seconds_left = static_cast<double>(result.bytes - result.bytes_done) / result.bytes_per_second;
    return result;
  }

  bool wait(std::chrono::milliseconds limit) override {
    std::unique_lock lock(mutex_);
    return settled_.wait_for(lock, limit, [&] { return stop_ || settled(); }) && settled();
  }

  void stop() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      for (auto& transfer : running_) {
        if (transfer.reader) transfer.reader->cancel();
      }
    }
    changed_.notify_all();
    settled_.notify_all();
    const std::lock_guard lock(join_mutex_);
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  struct Transfer {
    std::shared_ptr<store::SliceSource> reader;
    std::size_t source = 0;
    std::uint64_t there = 0;  ///< bytes of the slice that have arrived
  };
  struct Sample {
    Clock::time_point when;
    std::uint64_t bytes;
  };
  using Readers = std::map<std::size_t, std::shared_ptr<store::SliceSource>>;

  static Plan::Time now() { return Clock::now().time_since_epoch(); }
  [[nodiscard]] bool settled() const { return unseen_.empty() && looking_ == 0 && plan_.finished(); }

  void run(unsigned id) {
    Readers readers;  // connections of this thread
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (!unseen_.empty()) {
        look(lock);
        continue;
      }
      // Not before all have been looked at: what is there must not be counted as missing.
      const auto job = looking_ == 0 ? plan_.next(now()) : std::nullopt;
      if (!job) {
        if (settled()) settled_.notify_all();
        rest(lock);
        continue;
      }
      const Wanted wanted = slices_[job->slice];
      const auto source = sources_[job->source];
      lock.unlock();
      std::string problem;
      const Outcome outcome = transfer(id, wanted, job->source, *source, readers, problem);
      if (outcome != Outcome::done && outcome != Outcome::missing) readers.erase(job->source);
      if (outcome == Outcome::done && handlers_.on_slice) {
        const std::lock_guard one(handler_mutex_);
        handlers_.on_slice(wanted);
      }
      if (!problem.empty()) tell(problem);
      lock.lock();
      running_[id] = {};
      if (outcome == Outcome::done) {
        ++progress_.slices_done;
        progress_.bytes_done += wanted.bytes;
      }
      plan_.finish(*job, outcome, now());
      changed_.notify_all();
      if (settled()) settled_.notify_all();
    }
  }

  /// Whether a wanted slice is in the store already.
  void look(std::unique_lock<std::mutex>& lock) {
    const std::size_t slice = unseen_.front();
    unseen_.pop_front();
    ++looking_;
    const Wanted wanted = slices_[slice];
    lock.unlock();
    const bool there = store_->has(wanted.digest, wanted.bytes);
    if (there && handlers_.on_slice) {
      const std::lock_guard one(handler_mutex_);
      handlers_.on_slice(wanted);
    }
    lock.lock();
    --looking_;
    if (there) {
      plan_.have(slice);
      ++progress_.slices_done;
      progress_.bytes_done += wanted.bytes;
      progress_.bytes_had += wanted.bytes;
    }
    if (looking_ == 0 && unseen_.empty()) changed_.notify_all();
    if (settled()) settled_.notify_all();
  }

  void rest(std::unique_lock<std::mutex>& lock) {
    const auto wake = looking_ == 0 ? plan_.wake() : std::nullopt;
    // A time that has passed means that a source is at its limit: the end of a transfer will tell. The second is for safety.
    if (!wake)
      changed_.wait(lock);
    else if (*wake <= now())
      changed_.wait_for(lock, std::chrono::seconds(1));
    else
      changed_.wait_until(lock, Clock::time_point(std::chrono::duration_cast<Clock::duration>(*wake)));
  }

  Result<std::shared_ptr<store::SliceSource>> reader_of(std::size_t number, const Source& source, Readers& readers) {
    auto& reader = readers[number];
    if (reader) return reader;
    auto opened = source.open();
    if (!opened) return pass(opened);
    reader = std::move(*opened);
    return reader;
  }

  Outcome transfer(unsigned id, const Wanted& wanted, std::size_t number, const Source& source, Readers& readers, std::string& problem) {
    auto incoming = store_->receive(wanted.digest, wanted.bytes);
    if (!incoming) {
      if (incoming.error().kind == ErrorKind::unavailable) return Outcome::busy;
      problem = incoming.error().message;
      return Outcome::local;
    }
    auto reader = reader_of(number, source, readers);
    if (!reader) return failed(source, reader.error(), problem);
    const std::uint64_t had = (*incoming)->have();
    if (!begin(id, number, *reader, wanted, had)) return Outcome::stopped;
    std::optional<Error> local;
    auto read = had == wanted.bytes ? Result<>{} : (*reader)->read(wanted, had, [&](ByteSpan bytes) -> Result<> {
      auto taken = (*incoming)->append(bytes);
      if (!taken)
        local = taken.error();
      else
        moved(id, number, bytes.size());
      return taken;
    });
    if (local && local->kind == ErrorKind::invalid_input) {  // more bytes than the slice has: what came cannot be right either
      (*incoming)->discard();
      local.reset();
      read = fail(ErrorKind::invalid_input, "it sent more than the slice");
    }
    if (local) {
      problem = local->message;
      return Outcome::local;
    }
    {
      const std::lock_guard lock(mutex_);
      if (stop_ && !read) return Outcome::stopped;
    }
    if (!read) return failed(source, read.error(), problem);
    return finish(**incoming, number, source, had, problem);
  }

  Outcome finish(store::Incoming& incoming, std::size_t number, const Source& source, std::uint64_t had, std::string& problem) {
    auto committed = incoming.commit();
    if (committed) {
      const std::lock_guard lock(mutex_);
      ++progress_.sources[number].slices;
      return Outcome::done;
    }
    switch (committed.error().kind) {
      case ErrorKind::invalid_input:
        problem = std::format("{}: {}", source.name, committed.error().message);
        return had == 0 ? Outcome::wrong : Outcome::tainted;
      case ErrorKind::unavailable:  // it ended too early without saying so
        problem = std::format("{}: {}", source.name, committed.error().message);
        return Outcome::vanished;
      default:
        problem = committed.error().message;
        return Outcome::local;
    }
  }

  static Outcome failed(const Source& source, const Error& error, std::string& problem) {
    if (error.kind == ErrorKind::not_found) return Outcome::missing;
    problem = std::format("{}: {}", source.name, error.message);
    switch (error.kind) {
      case ErrorKind::unauthorized:
      case ErrorKind::incompatible:
        return Outcome::useless;
      case ErrorKind::invalid_input:
        return Outcome::wrong;
      default:
        return Outcome::vanished;
    }
  }

  /// False if everything is stopping.
  bool begin(unsigned id, std::size_t number, std::shared_ptr<store::SliceSource> reader, const Wanted& wanted, std::uint64_t had) {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    running_[id] = {.reader = std::move(reader), .source = number, .there = had};
    if (resumed_.insert(wanted.digest).second) progress_.bytes_had += had;
    return true;
  }

  void moved(unsigned id, std::size_t number, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    running_[id].there += bytes;
    progress_.sources[number].bytes += bytes;
    const auto time = Clock::now();
    if (!samples_.empty() && time - samples_.back().when < std::chrono::milliseconds(100)) return;
    samples_.push_back({time, progress_.fetched()});
    while (samples_.size() > 2 && time - samples_.front().when > rate_window) samples_.pop_front();
  }

  void tell(const std::string& problem) {
    const std::string text = wire::plain_text(problem, 1000);
    {
      const std::lock_guard lock(mutex_);
      progress_.last_problem = text;
      if (told_.size() >= max_problems || !told_.insert(text).second) return;
    }
    const std::lock_guard one(handler_mutex_);
    if (handlers_.on_problem) handlers_.on_problem(text);
  }

  std::shared_ptr<store::Store> store_;
  const FetchKnobs knobs_;
  const FetchHandlers handlers_;
  std::mutex handler_mutex_, join_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, settled_;
  Plan plan_;
  std::vector<Wanted> slices_;
  std::set<store::Digest> known_, resumed_;
  std::deque<std::size_t> unseen_;
  std::size_t looking_ = 0;
  std::vector<std::shared_ptr<const Source>> sources_;
  std::vector<Transfer> running_;
  FetchProgress progress_;
  std::deque<Sample> samples_;
  std::set<std::string> told_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::uint64_t FetchProgress::fetched() const {
  std::uint64_t sum = 0;
  for (const auto& source : sources) sum += source.bytes;
  return sum;
}

std::unique_ptr<Fetcher> Fetcher::start(std::shared_ptr<store::Store> store, FetchKnobs knobs, FetchHandlers handlers) {
  return std::make_unique<ThreadedFetcher>(std::move(store), knobs, std::move(handlers));
}

}  // namespace linkcpp::fetch
