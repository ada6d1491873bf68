#include "net/session_core.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace linkcpp::net {
namespace {

/// A path that carries nothing learns of the numbers so often that none is ever misread on it.
constexpr std::uint64_t mark_period = 2048;
constexpr std::size_t ack_bitmap = 32;
constexpr auto attach_period = std::chrono::seconds(1);

wire::FrameType type_of(const Bytes& frame) { return static_cast<wire::FrameType>(std::to_integer<std::uint8_t>(frame[5])); }

/// Connections' and sessions' own frames carry no number.
bool numbered(wire::FrameType type) {
  using enum wire::FrameType;
  return type != ping && type != pong && type != auth && type != attach && type != attached && type != ack && type != end &&
         type != candidates;
}

/// Requests and answers name each other by their ids; all other frames mean something by their place.
bool overtakable(wire::FrameType type) {
  using enum wire::FrameType;
  return type == dispatch || type == combine || type == failed;
}

Bytes trimmed(Bytes bits) {
  while (!bits.empty() && bits.back() == std::byte{0}) bits.pop_back();
  return bits;
}

bool bit(const Bytes& bits, std::size_t i) { return (std::to_integer<unsigned>(bits[i / 8]) >> (i % 8) & 1) != 0; }

}  // namespace

SessionCore::SessionCore(wire::SessionId id, bool dialled, SessionCoreKnobs knobs) : id_(id), dialled_(dialled), knobs_(knobs) {
  knobs_.max_kept_frames = std::clamp<std::size_t>(knobs_.max_kept_frames, 1, max_session_window);
  knobs_.ack_frames = std::clamp<unsigned>(knobs_.ack_frames, 1, max_session_window / 4);
}

// ---- paths -----------------------------------------------------------------------------------------------------------

SessionCore::Path* SessionCore::find(PathId path) {
  const auto found = std::ranges::find(paths_, path, &Path::id);
  return found == paths_.end() ? nullptr : &*found;
}

const SessionCore::Path* SessionCore::find(PathId path) const {
  const auto found = std::ranges::find(paths_, path, &Path::id);
  return found == paths_.end() ? nullptr : &*found;
}

bool SessionCore::answered(PathId path) const {
  const Path* found = find(path);
  return found != nullptr && found->answered;
}

std::size_t SessionCore::kept_bytes(PathId path) const {
  std::size_t bytes = 0;
  for (const Kept& kept : kept_) bytes += kept.frame && kept.path == path ? kept.frame->size() : 0;
  return bytes;
}

void SessionCore::add_dialled_path(PathId path, Time, Actions& out) {
  if (over_) return;
  // Read relative to what was received last: the peer sends nothing further away from it than a window.
  Path& added = paths_.emplace_back(Path{.id = path, .reference = next_});
  attach_on(added, out);
  if (preferred_ == 0) preferred_ = path;
  transmit(out);
}

Result<> SessionCore::add_accepted_path(PathId path, const wire::Attach& attach, Time, Actions& out) {
  if (over_) return {};
  Path& added = paths_.emplace_back(Path{.id = path, .answered = true, .reference = next_});
  known_ = true;
  if (auto sound = take_state(added, attach.state); !sound) return sound;
  say(added, wire::make_session_state(wire::FrameType::attached, state(wire::max_session_bitmap)), out);
  acknowledged();
  if (preferred_ == 0) preferred_ = path;
  come_back(out);
  transmit(out);
  return {};
}

void SessionCore::attach_on(Path& path, Actions& out) {
  path.answered = false;
  path.early = 0;
  say(path, wire::make_attach({.id = id_, .may_create = dialled_ && !known_, .state = state(wire::max_session_bitmap)}), out);
  acknowledged();
}

void SessionCore::come_back(Actions& out) {
  if (suspended_since_) out.resumed = true;
  suspended_since_.reset();
}

/// What this path carried waits to be sent again.
void SessionCore::unsend(PathId path) {
  for (std::size_t i = kept_.size(); i-- > 0;) {
    if (!kept_[i].frame || kept_[i].path != path) continue;
    kept_[i].path = 0;
    waiting_ = std::min(waiting_, i);
  }
}

/// Chooses another path if this one was preferred, and sends there what this one carried. All of it at once if it is little, else as soon
/// as the peer has said what it has.
void SessionCore::move_from(PathId path, Time now, Actions& out) {
  const std::size_t carried = kept_bytes(path);
  if (preferred_ == path) {
    preferred_ = 0;
    for (const Path& other : paths_) {
      if (other.id == path) continue;
      if (preferred_ == 0 || (other.answered && !answered(preferred_))) preferred_ = other.id;
    }
  }
  unsend(path);
  Path* to = find(preferred_);
  if (to == nullptr) return;
  if (carried > knobs_.early_bytes && to->answered) attach_on(*to, out);
  // The peer sends again what it sent on that path, unless it knows that it arrived.
  ack_due_ = now;
  acknowledge(out);
  transmit(out);
}

void SessionCore::lose_path(PathId path, Time now, Actions& out) {
  if (over_ || find(path) == nullptr) return;
  std::erase_if(paths_, [path](const Path& p) { return p.id == path; });
  move_from(path, now, out);
  if (!paths_.empty()) return;
  if (farewell_) return end({farewell_->kind, farewell_->reason}, out);
  if (!suspended_since_) {
    suspended_since_ = now;
    out.suspended = true;
  }
  if (forsaken_) end({ErrorKind::unavailable, "the connection is gone, and nobody dials or listens for another"}, out);
}

void SessionCore::doubt_path(PathId path, Time now, Actions& out) {
  if (over_ || find(path) == nullptr) return;
  const bool another = std::ranges::any_of(paths_, [path](const Path& p) { return p.id != path && p.answered; });
  if (another) move_from(path, now, out);
}

void SessionCore::prefer_path(PathId path) {
  if (answered(path)) preferred_ = path;
}

// ---- sending ---------------------------------------------------------------------------------------------------------

void SessionCore::send(Bytes frame, Time, Actions& out) {
  if (over_ || frame.size() < wire::frame_header_bytes) return;
  if (!numbered(type_of(frame))) {
    if (Path* path = find(preferred_)) say(*path, std::move(frame), out);
    return;
  }
  if (kept_.size() >= knobs_.max_kept_frames || kept_bytes_ + frame.size() > knobs_.max_kept_bytes) {
    const Error error{ErrorKind::unavailable, std::format("the peer does not take what is sent to it: {} frames with {} MiB wait",
                                                          kept_.size(), kept_bytes_ >> 20)};
    close(error, out);
    out.ended = error;
    return;
  }
  number(frame);
  kept_bytes_ += frame.size();
  kept_.push_back({std::make_shared<const Bytes>(std::move(frame)), 0});
  transmit(out);
  if (next_number() % mark_period == 0) mark_others(out);
}

void SessionCore::number(Bytes& frame) {
  auto flags = static_cast<std::uint16_t>(next_number() & wire::sequence_mask);
  if (!overtakable(type_of(frame))) {
    ordered_behind_ = next_number() + 1;
  } else if (ordered_behind_ <= kept_base_) {
    flags |= wire::may_overtake;
  }
  std::memcpy(frame.data() + wire::flags_offset, &flags, sizeof flags);
}

bool SessionCore::may_send(const Path& path, std::size_t bytes) const { return path.answered || path.early + bytes <= knobs_.early_bytes; }

/// Sends what waits, as far as the preferred path takes it.
void SessionCore::transmit(Actions& out) {
  Path* path = find(preferred_);
  if (path == nullptr) return;
  for (; waiting_ < kept_.size(); ++waiting_) {
    Kept& kept = kept_[waiting_];
    if (!kept.frame || kept.path != 0) continue;
    if (!may_send(*path, kept.frame->size())) return;
    if (!path->answered) path->early += kept.frame->size();
    kept.path = path->id;
    out.sends.push_back({path->id, kept.frame});
  }
}

/// Tells the paths that carry nothing at present how far the numbers are.
void SessionCore::mark_others(Actions& out) {
  for (Path& path : paths_) {
    if (path.id != preferred_) say(path, wire::make_session_state(wire::FrameType::ack, state(ack_bitmap)), out);
  }
}

void SessionCore::say(Path& path, Bytes frame, Actions& out) {
  out.sends.push_back({path.id, std::make_shared<const Bytes>(std::move(frame))});
}

wire::SessionState SessionCore::state(std::size_t max_bitmap) const {
  wire::SessionState state{.next = next_, .mark = next_number(), .beyond = {}};
  if (slots_.size() <= 1) return state;
  const std::size_t n = std::min(slots_.size() - 1, 8 * max_bitmap);
  state.beyond.resize((n + 7) / 8);
  for (std::size_t i = 0; i < n; ++i) {
    if (slots_[i + 1].there) state.beyond[i / 8] |= static_cast<std::byte>(1u << (i % 8));
  }
  state.beyond = trimmed(std::move(state.beyond));
  return state;
}

/// What the peer says that it has need not be kept.
Result<> SessionCore::take_state(Path& path, const wire::SessionState& state) {
  if (state.next > next_number() || (!state.beyond.empty() && state.next + 8 * state.beyond.size() >= next_number() + 8))
    return fail(ErrorKind::invalid_input, "it acknowledges frames that were never sent");
  if (state.mark > next_ + max_session_window)
    return fail(ErrorKind::invalid_input, "it claims to be {} frames ahead of what was acknowledged", state.mark - next_);
  path.reference = std::max(path.reference, state.mark);
  if (state.next < kept_base_) return {};  // overtaken by a later one
  const auto release = [this](Kept& kept) {
    if (kept.frame) kept_bytes_ -= kept.frame->size();
    kept.frame.reset();
  };
  for (; kept_base_ < state.next; ++kept_base_) {
    release(kept_.front());
    kept_.pop_front();
    if (waiting_ > 0) --waiting_;
  }
  for (std::size_t i = 0; i < 8 * state.beyond.size(); ++i) {
    if (!bit(state.beyond, i)) continue;
    if (i + 1 >= kept_.size()) return fail(ErrorKind::invalid_input, "it acknowledges frames that were never sent");
    release(kept_[i + 1]);
  }
  return {};
}

// ---- receiving -------------------------------------------------------------------------------------------------------

Result<> SessionCore::receive(PathId id, const wire::FrameView& frame, Time now, Actions& out) {
  Path* path = find(id);
  if (over_ || path == nullptr) return {};
  known_ = true;
  switch (frame.header.type) {
    using enum wire::FrameType;
    case attach:
      return on_attach(*path, frame, now, out);
    case attached:
    case ack:
      return on_state(*path, frame, out);
    case end:
      return on_end(frame, now, out);
    case ping:
    case pong:
    case auth:
    case candidates:
      return {};  // the connection's, and the search's for others
    default:
      return on_numbered(*path, frame, now, out);
  }
}

/// On a path that is attached already: the peer asks what is here before it sends much again.
Result<> SessionCore::on_attach(Path& path, const wire::FrameView& frame, Time now, Actions& out) {
  auto attach = wire::decode_attach(frame);
  if (!attach) return pass(attach);
  if (attach->id != id_) return fail(ErrorKind::invalid_input, "it attaches a connection to two sessions");
  if (now - path.attaches_since >= attach_period) path.attaches = 0, path.attaches_since = now;
  if (++path.attaches > knobs_.max_attaches) return fail(ErrorKind::invalid_input, "it floods a connection with attaches");
  if (auto sound = take_state(path, attach->state); !sound) return sound;
  say(path, wire::make_session_state(wire::FrameType::attached, state(wire::max_session_bitmap)), out);
  return {};
}

Result<> SessionCore::on_state(Path& path, const wire::FrameView& frame, Actions& out) {
  auto state = wire::decode_session_state(frame);
  if (!state) return pass(state);
  if (auto sound = take_state(path, *state); !sound) return sound;
  if (frame.header.type == wire::FrameType::attached) {
    path.answered = true;
    if (!answered(preferred_)) preferred_ = path.id;
    come_back(out);
  }
  transmit(out);
  return {};
}

Result<> SessionCore::on_end(const wire::FrameView& frame, Time now, Actions& out) {
  auto end = wire::decode_end(frame);
  if (!end) return pass(end);
  if (!farewell_) farewell_due_ = now + knobs_.end_patience;
  farewell_ = std::move(*end);
  end_if_complete(out);
  return {};
}

void SessionCore::end_if_complete(Actions& out) {
  if (farewell_ && next_ >= farewell_->mark) end({farewell_->kind, farewell_->reason}, out);
}

/// The number nearest to what the path carried before.
Result<std::uint64_t> SessionCore::read_number(Path& path, std::uint16_t flags) const {
  constexpr std::uint32_t half = (wire::sequence_mask + 1u) / 2;
  const auto ahead = static_cast<std::uint32_t>((flags - path.reference) & wire::sequence_mask);
  if (ahead < half) {
    const std::uint64_t number = path.reference + ahead;
    if (number >= next_ + max_session_window)
      return fail(ErrorKind::invalid_input, "a frame is {} ahead of what was acknowledged, {} are allowed", number - next_,
                  max_session_window);
    path.reference = number;
    return number;
  }
  const std::uint64_t behind = 2 * half - ahead;
  if (behind > path.reference) return fail(ErrorKind::invalid_input, "a frame's number lies before the first");
  return path.reference - behind;
}

Result<> SessionCore::on_numbered(Path& path, const wire::FrameView& frame, Time now, Actions& out) {
  const auto number = read_number(path, frame.header.flags);
  if (!number) return std::unexpected(number.error());
  const bool overtakes = (frame.header.flags & wire::may_overtake) != 0;
  const bool ordered = !overtakable(frame.header.type);
  if (overtakes && ordered)
    return fail(ErrorKind::invalid_input, "a frame of type {} may not overtake others", static_cast<int>(frame.header.type));
  const std::uint64_t at = *number - next_;  // huge if it lies before
  const bool known = *number < next_ || (at < slots_.size() && slots_[at].there);
  if (!known) {
    if (at >= slots_.size()) slots_.resize(at + 1);
    slots_[at].there = true;
    out.deliver = overtakes || at == 0;
    if (!out.deliver) {
      if (auto held = hold(*number, frame); !held) return held;
    }
    if (at == 0) advance(out);
  }
  owe_ack(ordered, now, out);
  end_if_complete(out);
  return {};
}

Result<> SessionCore::hold(std::uint64_t number, const wire::FrameView& frame) {
  held_bytes_ += frame.body.size() + wire::frame_header_bytes;
  if (held_bytes_ > knobs_.max_kept_bytes)
    return fail(ErrorKind::invalid_input, "more than {} MiB of frames wait for an earlier one", knobs_.max_kept_bytes >> 20);
  slots_[number - next_].held = std::make_unique<Held>(Held{frame.header, Bytes(frame.body.begin(), frame.body.end())});
  return {};
}

/// The first slot was filled: what is in order now is handed over.
void SessionCore::advance(Actions& out) {
  for (; !slots_.empty() && slots_.front().there; ++next_) {
    if (auto held = std::move(slots_.front().held)) {
      held_bytes_ -= held->body.size() + wire::frame_header_bytes;
      out.deliveries.push_back(std::move(*held));
    }
    slots_.pop_front();
  }
}

// ---- acknowledging ---------------------------------------------------------------------------------------------------

/// Also for a frame that was here before: the peer cannot know it.
void SessionCore::owe_ack(bool ordered, Time now, Actions& out) {
  if (++unacknowledged_ == 1) ack_due_ = now + knobs_.ack_delay;
  if (ordered || unacknowledged_ >= knobs_.ack_frames) acknowledge(out);
}

void SessionCore::acknowledge(Actions& out) {
  Path* path = find(preferred_);
  if (path == nullptr) return;  // an attach or attached will say it
  acknowledged();
  say(*path, wire::make_session_state(wire::FrameType::ack, state(ack_bitmap)), out);
}

void SessionCore::acknowledged() {
  unacknowledged_ = 0;
  ack_due_.reset();
}

// ---- time and end ----------------------------------------------------------------------------------------------------

void SessionCore::on_tick(Time now, Actions& out) {
  if (over_) return;
  if (ack_due_ && *ack_due_ <= now) acknowledge(out);
  if (farewell_ && farewell_due_ <= now) return end({farewell_->kind, farewell_->reason}, out);
  if (suspended_since_ && now - *suspended_since_ >= knobs_.patience) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(knobs_.patience).count();
    end({ErrorKind::timeout, std::format("the connection was lost and did not come back within {} ms", ms)}, out);
  }
}

std::optional<SessionCore::Time> SessionCore::next_deadline() const {
  if (over_) return std::nullopt;
  std::optional<Time> first;
  const auto consider = [&first](Time when) { first = first ? std::min(*first, when) : when; };
  if (ack_due_ && preferred_ != 0) consider(*ack_due_);
  if (farewell_) consider(farewell_due_);
  if (suspended_since_) consider(*suspended_since_ + knobs_.patience);
  return first;
}

void SessionCore::close(const Error& reason, Actions& out) {
  if (over_) return;
  for (Path& path : paths_) say(path, wire::make_end({next_number(), reason.kind, reason.message}), out);
  end(reason, out);
  out.ended.reset();  // the caller knows
}

void SessionCore::forsake(Time, Actions& out) {
  forsaken_ = true;
  if (!over_ && paths_.empty()) end({ErrorKind::unavailable, "the connection is gone, and nobody dials or listens for another"}, out);
}

void SessionCore::end(Error reason, Actions& out) {
  if (std::exchange(over_, true)) return;
  out.ended = std::move(reason);
  kept_.clear();
  slots_.clear();
  kept_bytes_ = held_bytes_ = waiting_ = 0;
  suspended_since_.reset();
  ack_due_.reset();
  farewell_.reset();
}

}  // namespace linkcpp::net
