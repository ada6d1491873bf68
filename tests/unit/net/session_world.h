// Two ends of a session in virtual time, joined by paths that delay, reorder, repeat, fall silent and die. For simulations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "net/session_core.h"

namespace linkcpp::net::sim {

using namespace std::chrono_literals;
using Time = SessionCore::Time;
using PathId = SessionCore::PathId;

struct WorldKnobs {
  SessionCoreKnobs core;
  int max_paths = 3;
  bool reorders = true;  ///< some paths do
  Time longest_delay = 80ms;
  Time longest_outage = 300ms;  ///< until the other side notices that a path is gone
  std::size_t largest_body = 3000;
  std::size_t frames = 400;  ///< of each side
};

/// What one side sent: by its index, which the body carries.
struct Sent {
  bool ordered = false;
  int delivered = 0;
};

struct Side {
  std::unique_ptr<SessionCore> core;
  std::vector<Sent> sent;
  std::size_t delivered_to = 0;  ///< everything that the other side sent before this was delivered here
  std::size_t ordered_to = 0;    ///< every ordered one before
  std::uint64_t bytes = 0, control_bytes = 0;
  bool ended = false;
  int suspensions = 0, resumptions = 0;
};

class World {
 public:
  World(unsigned seed, WorldKnobs knobs) : knobs_(knobs), random_(seed) {
    for (int i = 0; i < 2; ++i) sides_[i].core = std::make_unique<SessionCore>(wire::SessionId{1, 2, 3}, i == 0, knobs.core);
  }

  void run() {
    dial();
    while ((sides_[0].sent.size() < knobs_.frames || sides_[1].sent.size() < knobs_.frames) && sound()) event();
    calm();
  }
  /// No more faults: everything must arrive and be forgotten.
  void calm() {
    faults_ = false;
    for (int i = 0; i < 4000 && sound() && !settled(); ++i) {
      if (live_paths() == 0) dial();
      advance(10ms);
    }
    for (int i = 0; i < 2 && sound(); ++i) {
      const Side& from = sides_[i];
      for (std::size_t n = 0; n < from.sent.size(); ++n)
        ASSERT_EQ(from.sent[n].delivered, 1) << "frame " << n << " of " << from.sent.size() << " from side " << i;
      EXPECT_EQ(from.core->kept_frames(), 0u) << "side " << i << " keeps what was acknowledged";
      EXPECT_EQ(from.core->kept_bytes(), 0u);
      EXPECT_EQ(from.core->held_bytes(), 0u);
      EXPECT_EQ(from.suspensions, from.resumptions);
    }
  }

  // ---- single steps, for tests of one thing
  PathId dial() {
    Path path{.reorders = knobs_.reorders && dice(3) == 0, .delay = 1ms + Time(dice(static_cast<int>(knobs_.longest_delay.count())))};
    const PathId id = ++last_path_;
    paths_.emplace(id, path);
    act(0, [&](SessionCore& core, auto& out) {
      core.add_dialled_path(id, now_, out);
      return Result<>();
    });
    return id;
  }
  void send(int from, bool ordered, std::size_t body) {
    Bytes content;
    ByteWriter writer(content);
    writer.put<std::uint64_t>(sides_[from].sent.size());
    content.resize(std::max(content.size(), body));
    sides_[from].sent.push_back({.ordered = ordered});
    static constexpr wire::FrameType ordered_types[] = {wire::FrameType::program, wire::FrameType::holds};
    static constexpr wire::FrameType free_types[] = {wire::FrameType::dispatch, wire::FrameType::combine};
    Bytes frame = wire::make_frame(ordered ? ordered_types[from] : free_types[from], 0, content);
    act(from, [&](SessionCore& core, auto& out) {
      core.send(std::move(frame), now_, out);
      return Result<>();
    });
  }
  void lose(PathId id, int first_to_notice, Time later) {
    Path& path = paths_.at(id);
    path.cut = true;
    for (int i = 0; i < 2; ++i) later_.emplace(now_ + (i == first_to_notice ? Time(0) : later), Notice{id, i});
  }
  void advance(Time by) {
    const Time end = now_ + by;
    while (sound()) {
      std::optional<Time> at = first_event();
      if (!at || *at > end) break;
      now_ = std::max(now_, *at);
      happen();
    }
    now_ = end;
  }
  [[nodiscard]] Side& side(int i) { return sides_[i]; }
  [[nodiscard]] Time now() const { return now_; }
  [[nodiscard]] std::size_t live_paths() const {
    return static_cast<std::size_t>(std::ranges::count_if(paths_, [](const auto& entry) { return !entry.second.cut; }));
  }
  int dice(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool faults_ = true;

 private:
  struct Path {
    bool reorders = false, cut = false;
    Time delay{0};
    Time last[2] = {Time(0), Time(0)};  ///< in order: nothing arrives before this
    bool known[2] = {true, false};      ///< to the core of that side
    bool gone[2] = {false, false};      ///< that side noticed
    std::deque<Bytes> early;            ///< came before the attach
  };
  struct Flight {
    PathId path = 0;
    int to = 0;
    Bytes frame;
  };
  struct Notice {
    PathId path = 0;
    int side = 0;
  };

  static bool sound() { return !testing::Test::HasFailure(); }
  [[nodiscard]] bool settled() const {
    for (int i = 0; i < 2; ++i) {
      if (sides_[i].core->kept_frames() != 0 || sides_[1 - i].delivered_to != sides_[i].sent.size()) return false;
    }
    return later_.empty() && !sides_[0].core->suspended() && !sides_[1].core->suspended();
  }

  void event() {
    const int who = dice(2);
    switch (dice(16)) {
      case 0:
        if (live_paths() < static_cast<std::size_t>(knobs_.max_paths)) dial();
        return;
      case 1:
        if (const auto path = any_path(); path != 0 && dice(4) == 0)
          lose(path, who, Time(dice(static_cast<int>(knobs_.longest_outage.count()))));
        return;
      case 2:
        if (const auto path = any_path(); path != 0 && dice(3) == 0)
          act(who, [&](SessionCore& core, auto& out) {
            core.doubt_path(path, now_, out);
            return Result<>();
          });
        return;
      case 3:
        if (const auto path = any_path()) sides_[who].core->prefer_path(path);
        return;
      case 4:
        if (live_paths() == 0) dial();
        return;
      case 5:
      case 6:
        return advance(Time(dice(static_cast<int>(knobs_.longest_delay.count()))));
      default:
        for (int n = 1 + dice(4); n > 0; --n) {
          if (sides_[who].core->kept_frames() < knobs_.core.max_kept_frames)
            send(who, dice(8) == 0, 8 + static_cast<std::size_t>(dice(static_cast<int>(knobs_.largest_body))));
        }
    }
  }
  PathId any_path() {
    std::vector<PathId> alive;
    for (const auto& [id, path] : paths_) {
      if (!path.cut) alive.push_back(id);
    }
    return alive.empty() ? 0 : alive[static_cast<std::size_t>(dice(static_cast<int>(alive.size())))];
  }

  template <class Act>
  void act(int who, Act&& act_on) {
    SessionCore::Actions out;
    const Result<> result = act_on(*sides_[who].core, out);
    EXPECT_TRUE(result) << "an honest peer is blamed: " << (result ? "" : result.error().message);
    carry_out(who, out, nullptr);
  }
  void carry_out(int who, SessionCore::Actions& out, const wire::FrameView* received) {
    if (out.deliver) deliver(who, received->header, received->body);
    for (const auto& held : out.deliveries) deliver(who, held.header, held.body);
    for (auto& send : out.sends) fly(who, send.path, *send.frame);
    sides_[who].suspensions += out.suspended ? 1 : 0;
    sides_[who].resumptions += out.resumed ? 1 : 0;
    if (out.ended) sides_[who].ended = true;
    EXPECT_FALSE(out.ended) << out.ended->message;
    EXPECT_LE(sides_[who].core->held_bytes(), knobs_.core.max_kept_bytes);
    EXPECT_LE(sides_[who].core->kept_bytes(), knobs_.core.max_kept_bytes);
  }

  /// Each frame once; nothing before an ordered frame that was sent earlier; an ordered frame behind everything.
  void deliver(int to, const wire::FrameHeader&, ByteSpan body) {
    ByteReader in(body);
    const auto n = in.get<std::uint64_t>();
    Side& here = sides_[to];
    std::vector<Sent>& sent = sides_[1 - to].sent;
    ASSERT_LT(n, sent.size());
    ASSERT_EQ(++sent[n].delivered, 1) << "delivered twice";
    while (here.ordered_to < sent.size() && (!sent[here.ordered_to].ordered || sent[here.ordered_to].delivered > 0)) ++here.ordered_to;
    ASSERT_LE(n, here.ordered_to) << "overtook an ordered frame";
    if (sent[n].ordered) {
      while (here.delivered_to < n && sent[here.delivered_to].delivered > 0) ++here.delivered_to;
      ASSERT_EQ(here.delivered_to, n) << "an ordered frame overtook another";
    }
    while (here.delivered_to < sent.size() && sent[here.delivered_to].delivered > 0) ++here.delivered_to;
  }

  void fly(int from, PathId id, const Bytes& frame) {
    const auto type = static_cast<wire::FrameType>(std::to_integer<std::uint8_t>(frame[5]));
    (type >= wire::FrameType::attach ? sides_[from].control_bytes : sides_[from].bytes) += frame.size();
    Path& path = paths_.at(id);
    if (path.cut) return;
    Time at = now_ + path.delay;
    if (path.reorders) {
      at += Time(dice(static_cast<int>(path.delay.count())));
    } else {
      at = std::max(at, path.last[1 - from]);
      path.last[1 - from] = at;
    }
    flights_.emplace(at, Flight{id, 1 - from, frame});
  }

  [[nodiscard]] std::optional<Time> first_event() const {
    std::optional<Time> first;
    const auto consider = [&first](std::optional<Time> at) {
      if (at) first = first ? std::min(*first, *at) : *at;
    };
    if (!flights_.empty()) consider(flights_.begin()->first);
    if (!later_.empty()) consider(later_.begin()->first);
    for (const Side& side : sides_) consider(side.core->next_deadline());
    return first;
  }
  void happen() {
    for (int i = 0; i < 2; ++i) {
      if (const auto due = sides_[i].core->next_deadline(); due && *due <= now_)
        act(i, [&](SessionCore& core, auto& out) {
          core.on_tick(now_, out);
          return Result<>();
        });
    }
    if (!later_.empty() && later_.begin()->first <= now_) {
      const Notice notice = later_.begin()->second;
      later_.erase(later_.begin());
      return notices(notice);
    }
    if (flights_.empty() || flights_.begin()->first > now_) return;
    Flight flight = std::move(flights_.begin()->second);
    flights_.erase(flights_.begin());
    arrive(std::move(flight));
  }
  void notices(const Notice& notice) {
    Path& path = paths_.at(notice.path);
    path.gone[notice.side] = true;
    if (path.known[notice.side])
      act(notice.side, [&](SessionCore& core, auto& out) {
        core.lose_path(notice.path, now_, out);
        return Result<>();
      });
  }
  /// A cut path still delivers a part of what was under way, until its end is noticed.
  void arrive(Flight flight) {
    Path& path = paths_.at(flight.path);
    if (path.gone[flight.to]) return;
    if (path.cut && dice(2) == 0) path.gone[flight.to] = true;  // the rest is lost
    if (path.gone[flight.to]) return;
    if (path.known[flight.to]) return receive(flight);
    const auto header = wire::parse_frame_header(ByteSpan(flight.frame).first(wire::frame_header_bytes));
    if (header->type != wire::FrameType::attach) return path.early.push_back(std::move(flight.frame));
    const auto attach = wire::decode_attach({*header, ByteSpan(flight.frame).subspan(wire::frame_header_bytes)});
    ASSERT_TRUE(attach);
    path.known[1] = true;
    act(1, [&](SessionCore& core, auto& out) { return core.add_accepted_path(flight.path, *attach, now_, out); });
    for (Bytes& frame : std::exchange(path.early, {})) receive({flight.path, 1, std::move(frame)});
  }
  void receive(const Flight& flight) {
    const auto header = wire::parse_frame_header(ByteSpan(flight.frame).first(wire::frame_header_bytes));
    const wire::FrameView view{*header, ByteSpan(flight.frame).subspan(wire::frame_header_bytes)};
    SessionCore::Actions out;
    const auto result = sides_[flight.to].core->receive(flight.path, view, now_, out);
    EXPECT_TRUE(result) << "an honest peer is blamed: " << (result ? "" : result.error().message);
    carry_out(flight.to, out, &view);
    if (faults_ && dice(40) == 0) flights_.emplace(now_ + 1ms, flight);  // a duplicate
  }

  WorldKnobs knobs_;
  std::mt19937 random_;
  Side sides_[2];
  std::map<PathId, Path> paths_;
  std::multimap<Time, Flight> flights_;
  std::multimap<Time, Notice> later_;
  PathId last_path_ = 0;
  Time now_{0};
};

}  // namespace linkcpp::net::sim
