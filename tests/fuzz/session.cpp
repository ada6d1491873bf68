// Fuzzes one end of a session with a peer that says anything and paths that come and go. Whatever happened: what is kept and held back
// stays within its limits, a number is handed over at most once, an ordered frame only in its turn, and a session that is over is silent.
#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "fuzz/require.h"
#include "net/session_core.h"

namespace linkcpp {
namespace {

using fuzz::require;
using net::SessionCore;
using Time = SessionCore::Time;

constexpr std::size_t most_bytes = 4096, most_frames = 64;

/// The bytes of a program, taken one after the other; zeros behind its end.
class Program {
 public:
  explicit Program(ByteSpan bytes) : in_(bytes) {}
  [[nodiscard]] bool done() const { return in_.empty(); }
  unsigned byte() {
    if (done()) return 0;
    const unsigned value = std::to_integer<unsigned>(in_.front());
    in_ = in_.subspan(1);
    return value;
  }
  ByteSpan take(std::size_t n) {
    const ByteSpan part = in_.first(std::min(n, in_.size()));
    in_ = in_.subspan(part.size());
    return part;
  }

 private:
  ByteSpan in_;
};

class Peer {
 public:
  explicit Peer(bool dialled)
      : dialled_(dialled), core_({}, dialled, {.max_kept_bytes = most_bytes, .max_kept_frames = most_frames, .early_bytes = 512}) {}

  void step(Program& program) {
    const unsigned what = program.byte();
    SessionCore::Actions out;
    Result<> result;
    switch (what % 12) {
      case 0:
        if (core_.paths() < 4) result = add(program, out);
        break;
      case 1:
        core_.lose_path(program.byte() % 8, now_, out);
        break;
      case 2:
        core_.doubt_path(program.byte() % 8, now_, out);
        break;
      case 3:
        core_.prefer_path(program.byte() % 8);
        break;
      case 4:
        now_ += std::chrono::milliseconds(program.byte() * 10);
        core_.on_tick(now_, out);
        break;
      case 5:
        core_.send(wire::make_frame(static_cast<wire::FrameType>(2 + program.byte() % 13), 0, Bytes(program.byte())), now_, out);
        break;
      case 6:
        if (what > 240) core_.close({ErrorKind::unavailable, "enough"}, out);
        break;
      case 7:  // a frame of any kind with any contents
        result = receive(program, any_frame(program), out);
        break;
      case 8:  // about what was sent
        result = receive(program, sound_state(program), out);
        break;
      default:
        result = receive(program, numbered(program), out);
    }
    after(result, out);
  }

  void check() const {
    require(core_.kept_bytes() <= most_bytes && core_.kept_frames() <= most_frames, "what is kept is bounded");
    require(core_.held_bytes() <= most_bytes + 300, "what is held back is bounded");
    require(!core_.over() || (core_.kept_bytes() == 0 && core_.held_bytes() == 0), "a session that is over keeps nothing");
    require(core_.paths() > 0 || core_.preferred() == 0, "no path is preferred where there is none");
  }

 private:
  Result<> add(Program& program, SessionCore::Actions& out) {
    const SessionCore::PathId path = ++last_path_;
    if (dialled_) {
      core_.add_dialled_path(path, now_, out);
      return {};
    }
    return core_.add_accepted_path(path, {.state = {.next = program.byte() % 4u, .mark = program.byte()}}, now_, out);
  }
  static Bytes any_frame(Program& program) {
    Bytes frame = wire::begin_frame(static_cast<wire::FrameType>(1 + program.byte() % 18), program.byte());
    const ByteSpan body = program.take(program.byte() % 64);
    frame.insert(frame.end(), body.begin(), body.end());
    wire::finish_frame(frame);
    return frame;
  }
  static Bytes sound_state(Program& program) {
    const auto type = program.byte() % 2 == 0 ? wire::FrameType::ack : wire::FrameType::attached;
    wire::SessionState state{.next = program.byte() % most_frames, .mark = program.byte(), .beyond = {}};
    const unsigned bits = program.byte();
    if (bits != 0) state.beyond = {static_cast<std::byte>(bits)};
    return wire::make_session_state(type, state);
  }
  /// The body is the number that was meant.
  Bytes numbered(Program& program) {
    const unsigned how = program.byte();
    constexpr wire::FrameType types[] = {wire::FrameType::dispatch, wire::FrameType::program};
    const std::uint64_t number = at_ + program.byte() % 8 - std::min<std::uint64_t>(at_, how / 64);
    if (how % 8 != 0) at_ = number + 1;
    Bytes body;
    ByteWriter(body).put(number);
    Bytes frame = wire::make_frame(types[how / 8 % 2], 0, body);
    std::uint16_t flags = number & wire::sequence_mask;
    if (how / 16 % 2 == 0 && how / 8 % 2 == 0) flags |= wire::may_overtake;
    std::memcpy(frame.data() + wire::flags_offset, &flags, sizeof flags);
    return frame;
  }
  Result<> receive(Program& program, const Bytes& frame, SessionCore::Actions& out) {
    const auto header = wire::parse_frame_header(ByteSpan(frame).first(wire::frame_header_bytes));
    require(header.has_value(), "what was made can be parsed");
    const wire::FrameView view{*header, ByteSpan(frame).subspan(wire::frame_header_bytes)};
    const bool was_over = core_.over();
    const auto result = core_.receive(1 + program.byte() % 4, view, now_, out);
    require(!was_over || (!out.deliver && out.sends.empty()), "a session that is over is silent");
    if (out.deliver) hand_over(view.header.flags);
    for (const auto& held : out.deliveries) hand_over(held.header.flags);
    return result;
  }
  /// Fewer frames come than the numbers have values.
  void hand_over(std::uint16_t flags) {
    const auto number = static_cast<std::uint16_t>(flags & wire::sequence_mask);
    require(handed_over_.insert(number).second, "a number is handed over at most once");
    if ((flags & wire::may_overtake) != 0) return;
    const auto before = std::distance(handed_over_.begin(), handed_over_.find(number));
    require(before == number, "an ordered frame comes behind all before it");
  }
  void after(const Result<>& result, SessionCore::Actions& out) {
    for (const auto& send : out.sends) {
      require(send.path != 0 && send.frame != nullptr && send.frame->size() >= wire::frame_header_bytes,
              "what is sent is a frame on a path");
    }
    if (result) return;
    require(!result.error().message.empty(), "an error has a message");
    SessionCore::Actions closing;
    core_.close(result.error(), closing);
    require(core_.over(), "a closed session is over");
  }

  const bool dialled_;
  SessionCore core_;
  Time now_{0};
  SessionCore::PathId last_path_ = 0;
  std::uint64_t at_ = 0;
  std::set<std::uint16_t> handed_over_;
};

}  // namespace
}  // namespace linkcpp

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const auto program = [](std::initializer_list<int> bytes) {
    linkcpp::Bytes result;
    for (const int byte : bytes) result.push_back(static_cast<std::byte>(byte));
    return result;
  };
  const linkcpp::fuzz::SeedFolder seeds;
  seeds.add("accepted", program({0, 0, 0, 0, 9, 1, 0, 0, 9, 9, 0, 0, 4, 2, 5, 4, 40, 8, 0, 1, 1, 0, 0}));
  seeds.add("dialled", program({1, 0, 5, 3, 10, 5, 4, 20, 8, 1, 1, 2, 0, 0, 1, 1, 0, 0, 4, 255}));
  seeds.add("reordered", program({0, 0, 0, 0, 9, 9, 3, 0, 9, 9, 0, 0, 10, 73, 0, 0, 2, 1, 0, 0, 1, 2, 1}));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 2048) return -1;
  linkcpp::Program program(std::as_bytes(std::span(data, size)));
  linkcpp::Peer peer(program.byte() % 2 == 1);
  while (!program.done()) {
    peer.step(program);
    peer.check();
  }
  return 0;
}
