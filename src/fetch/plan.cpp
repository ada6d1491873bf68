#include "fetch/plan.h"

#include <algorithm>

namespace linkcpp::fetch {

std::size_t Plan::add_slice() {
  slices_.emplace_back();
  ++open_;
  return slices_.size() - 1;
}

std::size_t Plan::add_source(int tier, unsigned max_parallel) {
  sources_.push_back({.tier = tier, .max_parallel = max_parallel});
  for (auto& slice : slices_) slice.rest_until = {};  // it may have what all others lacked
  return sources_.size() - 1;
}

void Plan::remove_source(std::size_t source) { sources_[source].barred = true; }

void Plan::have(std::size_t slice) { close(slices_[slice], State::done); }

void Plan::close(Slice& slice, State state) {
  if (slice.state == State::done || slice.state == State::failed) return;
  slice = Slice{};  // its sets are not needed any more
  slice.state = state;
  --open_;
  if (state == State::failed) ++failed_;
  while (first_ < slices_.size() && (slices_[first_].state == State::done || slices_[first_].state == State::failed)) ++first_;
}

bool Plan::may(const Slice& slice, std::size_t source) const {
  return !sources_[source].barred && !slice.asked.contains(source) && !slice.lied.contains(source);
}

Plan::Time Plan::backoff(int failures) const {
  auto pause = knobs_.backoff_min;
  for (int i = 1; i < failures && pause < knobs_.backoff_max; ++i) pause *= 2;
  return std::min(pause, knobs_.backoff_max);
}

/// It failed lately and nothing is under way from it. Slices do not wait for its rest to end: it counts as asked.
bool Plan::broken(std::size_t source, Time now) const {
  return sources_[source].failures > 0 && sources_[source].running == 0 && sources_[source].rest_until > now;
}

/// The source for a slice now. None: those that may have it are resting or busy; a round that is over ends here.
std::optional<std::size_t> Plan::choose(Slice& slice, Time now) {
  const auto ready = [&](std::size_t i) {
    const Source& source = sources_[i];
    return may(slice, i) && source.rest_until <= now && (source.max_parallel == 0 || source.running < source.max_parallel);
  };
  if (slice.again && ready(*slice.again)) return slice.again;
  std::optional<std::size_t> best;
  bool any = false;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    any = any || (may(slice, i) && !broken(i, now));
    if (!ready(i)) continue;
    const Source& source = sources_[i];
    if (!best || source.tier < sources_[*best].tier || (source.tier == sources_[*best].tier && source.running < sources_[*best].running))
      best = i;
  }
  if (!any && !best) end_round(slice, now);
  return best;
}

void Plan::end_round(Slice& slice, Time now) {
  ++slice.rounds;
  if (knobs_.give_up_rounds > 0 && slice.rounds >= knobs_.give_up_rounds) return close(slice, State::failed);
  slice.asked.clear();
  slice.again.reset();
  slice.rest_until = now + backoff(slice.rounds);
}

std::optional<Plan::Job> Plan::next(Time now) {
  if (now < pause_until_) return std::nullopt;
  for (std::size_t i = first_; i < slices_.size(); ++i) {
    Slice& slice = slices_[i];
    if (slice.state != State::pending || slice.rest_until > now) continue;
    const auto source = choose(slice, now);
    if (!source) continue;
    slice.state = State::running;
    ++sources_[*source].running;
    return Job{i, *source};
  }
  return std::nullopt;
}

void Plan::finish(Job job, Outcome outcome, Time now) {
  Slice& slice = slices_[job.slice];
  Source& source = sources_[job.source];
  --source.running;
  if (slice.state != State::running) return;
  slice.state = State::pending;
  slice.again.reset();
  switch (outcome) {
    case Outcome::done:
      source.failures = 0;
      return close(slice, State::done);
    case Outcome::missing:
      source.failures = 0;
      slice.asked.insert(job.source);
      break;
    case Outcome::vanished:
      source.rest_until = now + backoff(++source.failures);
      slice.asked.insert(job.source);
      break;
    case Outcome::useless:
      source.barred = true;
      break;
    case Outcome::wrong:
      slice.lied.insert(job.source);
      if (++source.wrong >= knobs_.wrong_limit) source.barred = true;
      break;
    case Outcome::tainted:
      slice.again = job.source;
      break;
    case Outcome::local:
      pause_until_ = now + backoff(++slice.rounds);
      if (knobs_.give_up_rounds > 0 && slice.rounds >= knobs_.give_up_rounds) return close(slice, State::failed);
      break;
    case Outcome::busy:
      slice.rest_until = now + knobs_.busy_pause;
      break;
    case Outcome::stopped:
      break;
  }
}

std::optional<Plan::Time> Plan::wake() const {
  std::optional<Time> first;
  const auto offer = [&](Time time) {
    time = std::max(time, pause_until_);
    if (!first || time < *first) first = time;
  };
  for (std::size_t i = first_; i < slices_.size(); ++i) {
    const Slice& slice = slices_[i];
    if (slice.state != State::pending) continue;
    bool any = false;
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      if (!may(slice, s)) continue;
      const bool broken = sources_[s].failures > 0 && sources_[s].running == 0 && sources_[s].rest_until > slice.rest_until;
      any = any || !broken;
      offer(std::max(slice.rest_until, sources_[s].rest_until));
    }
    if (!any) offer(slice.rest_until);  // its round ends then
  }
  return first;
}

}  // namespace linkcpp::fetch
