#include "net/path_finder.h"

#include <openssl/rand.h>

#include <algorithm>
#include <utility>

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

bool knows(const std::vector<Candidate>& list, const Candidate& candidate) {
  return std::ranges::find(list, candidate.at, &Candidate::at) != list.end();
}

}  // namespace

PathFinder::PathFinder(std::shared_ptr<QuicEndpoint> endpoint, bool dialer, std::vector<Udp::endpoint> stun_servers, Handlers handlers,
                       PathFinderKnobs knobs)
    : endpoint_(std::move(endpoint)),
      hub_(endpoint_->hub()),
      dialer_(dialer),
      servers_(std::move(stun_servers)),
      handlers_(std::move(handlers)),
      knobs_(knobs),
      timer_(hub_->strand()),
      retry_timer_(hub_->strand()),
      pause_(knobs.retry_first) {
  report_.state = "has not looked for a direct path yet";
}

PathFinder::~PathFinder() {
  if (key_) hub_->forget_probes(punch_key_name(*key_));
  for (const auto& [server, id] : stun_ids_) hub_->forget_stun(id);
  if (attempt_) attempt_->abort({ErrorKind::unavailable, "no direct path is looked for any more"});
}

void PathFinder::start() {
  retry_timer_.cancel();
  ++report_.attempts;
  report_.found.reset();
  report_.peers.clear();
  say("looks for a direct path");
  puncher_.reset();
  begun_ = now();
  if (dialer_) {
    if (key_) hub_->forget_probes(punch_key_name(*key_));
    RAND_bytes(key_.emplace().data(), static_cast<int>(key_->size()));
  }
  gather();
  if (dialer_) offer();
}

// ---- own addresses ---------------------------------------------------------------------------------------------------

void PathFinder::gather() {
  std::erase_if(report_.own, [](const Candidate& one) { return one.kind != CandidateKind::mapped; });
  const auto local = hub_->local();
  auto host = local.address().is_unspecified() ? host_candidates(local.port(), local.address().is_v6())
                                               : std::vector<Candidate>{{local, CandidateKind::host}};
  report_.own.insert(report_.own.begin(), host.begin(), host.end());
  report_.seen_by.clear();
  for (const auto& [server, id] : stun_ids_) hub_->forget_stun(id);
  stun_ids_.clear();
  stun_timers_.clear();
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    StunId id{};
    RAND_bytes(id.data(), static_cast<int>(id.size()));
    stun_ids_[i] = id;
    stun_timers_.push_back(std::make_shared<asio::steady_timer>(hub_->strand()));
    hub_->expect_stun(id, [weak = weak_from_this(), i, id](ByteSpan datagram) {
      const auto self = weak.lock();
      const auto seen = parse_stun_answer(datagram, id);
      if (!self || !seen) return;
      self->hub_->forget_stun(id);
      self->stun_ids_.erase(i);
      self->stun_timers_[i]->cancel();
      self->report_.seen_by.emplace_back(to_text(self->servers_[i]), *seen);
      self->add_candidate({*seen, CandidateKind::reflexive});
    });
    ask(i, knobs_.stun_tries);
  }
}

void PathFinder::ask(std::size_t server, int tries_left) {
  const auto id = stun_ids_.find(server);
  if (id == stun_ids_.end() || tries_left == 0) return;
  hub_->send_other(servers_[server], make_stun_request(id->second));
  stun_timers_[server]->expires_after(knobs_.stun_pause);
  stun_timers_[server]->async_wait([weak = weak_from_this(), server, tries_left](const error_code& error) {
    if (auto self = weak.lock(); self && !error) self->ask(server, tries_left - 1);
  });
}

void PathFinder::add_candidate(const Candidate& candidate) {
  if (knows(report_.own, candidate)) return;
  report_.own.push_back(candidate);
  if (key_) offer();
}

void PathFinder::offer() { handlers_.send_offer(encode_offer({*key_, report_.own})); }

// ---- the peer --------------------------------------------------------------------------------------------------------

void PathFinder::received_offer(ByteSpan body) {
  auto offered = decode_offer(body);
  if (!offered) return;                                     // of a newer version, or broken: there is still the path that it came by
  if (dialer_ && (!key_ || *key_ != offered->key)) return;  // of an attempt that is over
  if (!dialer_ && key_ != offered->key) {
    if (key_) hub_->forget_probes(punch_key_name(*key_));
    key_ = offered->key;
    start();
    offer();
  }
  for (const Candidate& candidate : offered->candidates) {
    if (!knows(report_.peers, candidate)) report_.peers.push_back(candidate);
  }
  begin_punching();
}

void PathFinder::begin_punching() {
  if (report_.found) return;
  if (!puncher_) {
    std::uint64_t seed = 0;
    RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof seed);
    puncher_.emplace(*key_, dialer_, seed, now(), knobs_.punch);
    hub_->expect_probes(punch_key_name(*key_), [weak = weak_from_this()](const Udp::endpoint& from, ByteSpan datagram) {
      const auto self = weak.lock();
      if (!self || !self->puncher_) return;
      self->puncher_->received(datagram, from, now());
      self->tick();
    });
  }
  for (const Candidate& candidate : report_.peers) puncher_->add(candidate.at, now());
  tick();
}

void PathFinder::tick() {
  if (!puncher_) return;
  for (const auto& send : puncher_->due(now())) hub_->send_other(send.to, send.datagram);
  for (const auto& found : puncher_->found()) {
    if (report_.found) continue;
    report_.found = found.at;
    report_.round_trip = found.round_trip;
    report_.took = now() - begun_;
    say(std::format("reaches the peer directly at {}, found in {} ms", to_text(found.at),
                    std::chrono::duration_cast<std::chrono::milliseconds>(report_.took).count()));
    if (dialer_) connect(found);
  }
  if (!puncher_->over(now())) return arm(puncher_->next());
  if (report_.found) return;
  say(std::format("found no direct path: none of {} addresses answered; both sides may be behind symmetric NATs, or UDP is blocked",
                  puncher_->asked()));
  retry_later();
}

void PathFinder::arm(std::chrono::nanoseconds at) {
  timer_.expires_at(std::chrono::steady_clock::time_point(std::max<std::chrono::nanoseconds>(at, now())));
  timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    if (auto self = weak.lock(); self && !error) self->tick();
  });
}

void PathFinder::connect(const Puncher::Found& found) {
  attempt_ = hub_->dial(found.at, to_text(found.at), [weak = weak_from_this()](Result<std::shared_ptr<Connection>> ready) {
    const auto self = weak.lock();
    if (!self) return;
    self->attempt_.reset();
    if (!ready) {
      self->say(std::format("found a direct path, but: {}", ready.error().message));
      return self->retry_later();
    }
    self->pause_ = self->knobs_.retry_first;
    self->handlers_.on_connection(std::move(*ready));
  });
}

void PathFinder::lost() {
  puncher_.reset();  // of the attempt that found it: its end is not that of the next one
  report_.found.reset();
  say("lost the direct path");
  retry_after(knobs_.retry_lost);
}

void PathFinder::say(std::string state) {
  report_.state = std::move(state);
  if (handlers_.on_state) handlers_.on_state(report_.state);
}

/// Only the dialling side begins anew; the other one follows its offers.
void PathFinder::retry_later() {
  retry_after(pause_);
  pause_ = std::min(2 * pause_, knobs_.retry_longest);
}

void PathFinder::retry_after(std::chrono::nanoseconds pause) {
  if (!dialer_) return;
  retry_timer_.expires_after(pause);
  retry_timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    if (auto self = weak.lock(); self && !error) self->start();
  });
}

}  // namespace linkcpp::net
