// The worker end to end: real TLS links on loopback, a real model file, the engine's own graph as judge.
#include "worker/server.h"

#include <csignal>

#include "unit/worker/worker_harness.h"

namespace linkcpp::worker {
namespace {

using test::Clock;
using test::dispatch_body;
using test::Expected;
using test::ModelShape;
using test::Peer;
using test::rows_of;
using test::Share;
using test::TestBackbone;
using test::TestWorker;
using test::Workload;
using wire::CombineMode;
using wire::FrameType;
using namespace std::chrono_literals;

class WorkerServer : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path path() const { return folder_.path() / "model.gguf"; }
  Share all(const Workload& load) const {
    return Share(shape_, load, [](auto) { return true; });
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  /// A link that has a program, admitted.
  struct Ready {
    Peer peer;
    std::uint64_t program = 0;
  };
  Ready ready(TestBackbone& backbone) const {
    Ready r{backbone.next_link()};
    r.peer.admit();
    r.program = r.peer.send_program(program_);
    return r;
  }
  void send(Ready& r, std::uint64_t request, const Workload& load, std::uint16_t layer, CombineMode mode = CombineMode::raw) const {
    r.peer.send(FrameType::dispatch, request, dispatch_body(shape_, load, all(load), r.program, layer, mode));
  }
  /// A worker that answers: nothing that happened before has harmed it.
  void expect_service(Ready& r) const {
    const Workload load(shape_, 1, 77);
    send(r, 7777, load, 0);
    EXPECT_TRUE(same(rows_of(r.peer.expect(FrameType::combine)), test::reference(shape_, path(), 0, load).pairs));
  }

  test::TempFolder folder_;
  ModelShape shape_{.type = GGML_TYPE_Q8_0};
  engine::Anatomy anatomy_ = test::write_model(shape_, path());
  wire::Program program_ = test::make_program(shape_);
  TestBackbone backbone_;
};

TEST_F(WorkerServer, IntroducesItselfAndAnswers) {
  TestWorker worker(anatomy_, backbone_, "0-3");
  Peer peer = backbone_.next_link();
  const wire::Hello hello = peer.admit();
  EXPECT_EQ(hello.engine, engine::engine_version());
  EXPECT_EQ(hello.name, "test");
  EXPECT_EQ(hello.model, anatomy_.digest);
  EXPECT_EQ(hello.n_threads, 1);
  ASSERT_EQ(hello.holdings.size(), 2u);
  EXPECT_TRUE(hello.holdings[1].has(3));
  EXPECT_FALSE(hello.holdings[1].has(4));
  const std::uint64_t program = peer.send_program(program_);
  for (const std::int64_t n_tokens : {1, 7, 64}) {
    const Workload load(shape_, n_tokens, 5);
    const Expected expected = test::reference(shape_, path(), 1, load);
    const Share share(shape_, load, [](std::int32_t e) { return e < 4; });
    // Tokens that need nothing from this worker are not sent to it: leave them out.
    std::vector<std::uint32_t> tokens;
    Share sent = share;
    for (auto& pair : sent.pairs) {
      if (tokens.empty() || tokens.back() != pair.token) tokens.push_back(pair.token);
      pair.token = static_cast<std::uint32_t>(tokens.size()) - 1;
    }
    Workload part = load;
    part.n_tokens = static_cast<std::int64_t>(tokens.size());
    part.x.clear();
    for (const std::uint32_t t : tokens) part.x.insert(part.x.end(), load.x.begin() + t * 64, load.x.begin() + (t + 1) * 64);
    if (tokens.empty()) continue;
    peer.send(FrameType::dispatch, 9, dispatch_body(shape_, part, sent, program, 1, CombineMode::raw));
    const std::vector<float> rows = rows_of(peer.expect(FrameType::combine));
    ASSERT_EQ(rows.size(), share.pairs.size() * 64);
    for (std::size_t p = 0; p < share.pairs.size(); ++p) {
      ASSERT_EQ(std::memcmp(rows.data() + p * 64, expected.pairs.data() + share.index[p] * 64, 64 * sizeof(float)), 0);
    }
  }
}

TEST_F(WorkerServer, SumsAndNarrowRows) {
  TestWorker worker(anatomy_, backbone_);
  Ready r = ready(backbone_);
  const Workload load(shape_, 5, 3);
  send(r, 1, load, 0, CombineMode::sum);
  EXPECT_TRUE(same(rows_of(r.peer.expect(FrameType::combine)), test::reference(shape_, path(), 0, load).sums));
  // F16: the worker must compute on exactly the rounded rows.
  Workload rounded = load;
  Bytes half(rounded.x.size() * 2);
  wire::encode_rows(wire::RowType::f16, load.x.data(), 64, 5, 64, half);
  wire::decode_rows(wire::RowType::f16, half, 64, 5, rounded.x.data(), 64);
  r.peer.send(FrameType::dispatch, 2, dispatch_body(shape_, load, all(load), r.program, 0, CombineMode::sum, wire::RowType::f16));
  std::vector<float> wanted = test::reference(shape_, path(), 0, rounded).sums;
  Bytes answer(wanted.size() * 2);
  wire::encode_rows(wire::RowType::f16, wanted.data(), 64, 5, 64, answer);
  wire::decode_rows(wire::RowType::f16, answer, 64, 5, wanted.data(), 64);
  EXPECT_TRUE(same(rows_of(r.peer.expect(FrameType::combine), wire::RowType::f16), wanted));
}

TEST_F(WorkerServer, MergesWhatWaitsForTheSameLayer) {
  ServerOptions options;
  options.listen = {"127.0.0.1:0"};
  TestWorker worker(anatomy_, backbone_, "all", options);
  backbone_.dial(worker.server().listen_address());
  backbone_.dial(worker.server().listen_address());
  Ready one = ready(backbone_), two = ready(backbone_);
  expect_service(one);
  expect_service(two);
  const Workload large(shape_, 4000, 1), small(shape_, 1, 2), other(shape_, 3, 3);
  const std::uint64_t before = worker.server().counters().batches;
  send(one, 1, large, 1);  // keeps it busy
  std::this_thread::sleep_for(5ms);
  send(one, 2, small, 0);
  send(two, 3, other, 0);
  send(two, 4, small, 0);
  EXPECT_EQ(rows_of(one.peer.expect(FrameType::combine)).size(), 4000u * 3 * 64);
  EXPECT_TRUE(same(rows_of(one.peer.expect(FrameType::combine)), test::reference(shape_, path(), 0, small).pairs));
  EXPECT_TRUE(same(rows_of(two.peer.expect(FrameType::combine)), test::reference(shape_, path(), 0, other).pairs));
  EXPECT_TRUE(same(rows_of(two.peer.expect(FrameType::combine)), test::reference(shape_, path(), 0, small).pairs));
  const auto counters = worker.server().counters();
  EXPECT_EQ(counters.requests, 6u);
  EXPECT_LT(counters.batches, before + 4) << "at least two of the three small ones went together";
  EXPECT_EQ(counters.tokens, 1u + 1 + 4000 + 1 + 3 + 1);
}

TEST_F(WorkerServer, SaysWhyARequestCannotBeServed) {
  TestWorker worker(anatomy_, backbone_, "0-5");
  Ready r = ready(backbone_);
  const Workload load(shape_, 8, 5);
  Share share(shape_, load, [](std::int32_t e) { return e < 6; });
  const auto failure = [&](Bytes body) {
    r.peer.send(FrameType::dispatch, 3, body);
    const wire::Failed failed = r.peer.expect_failed();
    EXPECT_FALSE(failed.reason.empty());
    return failed;
  };
  EXPECT_EQ(failure(dispatch_body(shape_, load, share, r.program + 1, 0, CombineMode::raw)).kind, ErrorKind::not_found)
      << "unknown program";
  EXPECT_EQ(failure(dispatch_body(shape_, load, share, r.program, 9, CombineMode::raw)).kind, ErrorKind::not_found) << "unknown layer";
  Share foreign = share;
  foreign.pairs[0].expert = 6;
  EXPECT_NE(failure(dispatch_body(shape_, load, foreign, r.program, 0, CombineMode::raw)).reason.find("expert 6 of layer 0 is not held"),
            std::string::npos);
  foreign.pairs[0].expert = 60;
  EXPECT_NE(failure(dispatch_body(shape_, load, foreign, r.program, 0, CombineMode::raw)).reason.find("does not exist"), std::string::npos);
  Bytes cut = dispatch_body(shape_, load, share, r.program, 0, CombineMode::raw);
  cut.resize(cut.size() - 4);
  EXPECT_EQ(failure(cut).kind, ErrorKind::invalid_input) << "row area";
  wire::Program wrong = program_;
  wrong.weights[0] = "ffn_missing_exps.weight";
  const std::uint64_t id = r.peer.send_program(wrong);
  EXPECT_NE(failure(dispatch_body(shape_, load, share, id, 0, CombineMode::raw)).reason.find("ffn_missing_exps"), std::string::npos);
  const Workload fine(shape_, 1, 1);
  Share held(shape_, fine, [](std::int32_t e) { return e < 6; });
  r.peer.send(FrameType::dispatch, 4, dispatch_body(shape_, fine, held, r.program, 0, CombineMode::raw));
  r.peer.expect(FrameType::combine);
}

TEST_F(WorkerServer, RefusesAnswersThatNoFrameCarries) {
  TestWorker worker(anatomy_, backbone_);
  Ready r = ready(backbone_);
  // One element in, a million out: a small request whose answer would need gigabytes.
  test::ProgramBuilder b;
  const auto x = test::from_input(b.input(wire::Input::Kind::token, wire::max_row_elements));
  b.op(wire::OpKind::sqr, wire::max_row_elements, x);
  const std::uint64_t id = r.peer.send_program(b.program);
  wire::Dispatch dispatch{.layer = 0, .mode = CombineMode::raw, .row_type = wire::RowType::f32, .program = id, .n_tokens = 1};
  dispatch.pairs.assign(100, {0, 0});
  Bytes body;
  wire::encode_dispatch_header(dispatch, body);
  body.resize(body.size() + wire::row_bytes(wire::RowType::f32, wire::max_row_elements));
  r.peer.send(FrameType::dispatch, 1, body);
  EXPECT_NE(r.peer.expect_failed().reason.find("a frame holds"), std::string::npos);
  expect_service(r);
}

TEST_F(WorkerServer, ABrokenProtocolEndsOneLinkOnly) {
  ServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.max_programs = 2;
  TestWorker worker(anatomy_, backbone_, "all", options);
  backbone_.dial(worker.server().listen_address());
  Ready good = ready(backbone_);
  const Workload load(shape_, 1, 1);
  const auto breaks = [&](bool admitted, auto&& act) {
    Peer peer = backbone_.next_link();
    if (admitted) {
      peer.admit();
    } else {
      peer.expect(FrameType::hello);
    }
    act(peer);
    const std::string reason = peer.expect_refuse();
    expect_service(good);
    return reason;
  };
  backbone_.dial(worker.server().listen_address());  // dials again after each loss
  EXPECT_NE(breaks(false, [&](Peer& p) { p.send_program(program_); }).find("before the welcome"), std::string::npos);
  EXPECT_NE(breaks(false, [&](Peer& p) { p.send(FrameType::dispatch, 1, dispatch_body(shape_, load, all(load), 1, 0, CombineMode::raw)); }),
            "");
  EXPECT_NE(breaks(true, [](Peer& p) { p.send(FrameType::welcome); }).find("second welcome"), std::string::npos);
  EXPECT_NE(breaks(true, [](Peer& p) { p.send(FrameType::combine, 1); }).find("backbones do not send"), std::string::npos);
  EXPECT_NE(breaks(true, [](Peer& p) { p.send(FrameType::dispatch, 1, Bytes(11)); }), "");
  EXPECT_NE(breaks(true, [](Peer& p) { p.send(FrameType::program, 1, Bytes(100)); }), "");
  EXPECT_NE(breaks(true,
                   [&](Peer& p) {
                     Bytes body;
                     wire::encode_program(program_, body);
                     p.send(FrameType::program, 1, body);
                   })
                .find("digest"),
            std::string::npos);
  EXPECT_NE(breaks(true,
                   [&](Peer& p) {
                     for (const std::uint32_t n : {1u, 2u, 3u}) {
                       test::ProgramBuilder b;
                       b.op(wire::OpKind::sqr, n, test::from_input(b.input(wire::Input::Kind::token, n)));
                       p.send_program(b.program);
                     }
                   })
                .find("more than 2 programs"),
            std::string::npos);
}

TEST_F(WorkerServer, BoundsWhatALinkMayQueue) {
  ServerOptions options;
  options.max_queued_requests = 3;
  options.delay = 20s;  // requests lie on the way in
  TestWorker worker(anatomy_, backbone_, "all", options);
  Ready r = ready(backbone_);
  const Workload load(shape_, 1, 1);
  for (std::uint64_t i = 0; i < 4; ++i) send(r, i, load, 0);
  EXPECT_NE(r.peer.expect_refuse().find("3 requests"), std::string::npos);
  Ready again = ready(backbone_);  // and it is back
  EXPECT_TRUE(again.peer.link);
}

TEST_F(WorkerServer, GivesUpOnABackboneThatNeverSaysWelcome) {
  ServerOptions options;
  options.welcome_deadline = 100ms;
  TestWorker worker(anatomy_, backbone_, "all", options);
  Peer peer = backbone_.next_link();
  peer.expect(FrameType::hello);
  EXPECT_NE(peer.expect_refuse().find("no welcome"), std::string::npos);
}

TEST_F(WorkerServer, DialsSlowlyAfterARefusal) {
  ServerOptions options;
  options.link.backoff_min = 1ms;
  options.link.backoff_max = 700ms;
  TestWorker worker(anatomy_, backbone_, "all", options);
  for (int i = 0; i < 2; ++i) {
    Peer peer = backbone_.next_link();
    ASSERT_TRUE(peer.link);
    peer.expect(FrameType::hello);
    Bytes body;
    wire::encode(wire::Refuse{ErrorKind::incompatible, "this backbone serves another model"}, body);
    const auto refused = Clock::now();
    peer.send(FrameType::refuse, 0, body);
    EXPECT_TRUE(peer.closed->take());
    if (i == 0) {
      EXPECT_FALSE(backbone_.next_link(300ms).link) << "it is in no hurry";
      EXPECT_LT(Clock::now() - refused, 600ms) << "the machine is too slow for this test to mean anything";
    }
  }
}

TEST_F(WorkerServer, RejoinsAfterALoss) {
  TestWorker worker(anatomy_, backbone_);
  for (int i = 0; i < 3; ++i) {
    Ready r = ready(backbone_);
    expect_service(r);
    r.peer.link->close({ErrorKind::unavailable, "test"});
    r.peer.closed->take();
  }
}

TEST_F(WorkerServer, DrainsWhatIsOnItsWay) {
  TestWorker worker(anatomy_, backbone_);
  Ready r = ready(backbone_);
  expect_service(r);
  const Workload large(shape_, 2000, 1), small(shape_, 1, 2);
  send(r, 1, large, 1);
  send(r, 2, small, 0);
  worker.server().stop();
  int combines = 0, drains = 0;
  for (int i = 0; i < 3; ++i) {
    auto frame = r.peer.frames->take();
    ASSERT_TRUE(frame);
    combines += frame->header.type == FrameType::combine;
    drains += frame->header.type == FrameType::drain;
    if (frame->header.type == FrameType::drain) send(r, 3, small, 1);  // crossed the drain frame on the way
  }
  auto last = r.peer.frames->take();
  ASSERT_TRUE(last);
  combines += last->header.type == FrameType::combine;
  EXPECT_EQ(combines, 3);
  EXPECT_EQ(drains, 1);
  EXPECT_TRUE(r.peer.closed->take());
  EXPECT_TRUE(worker.ended());
}

TEST_F(WorkerServer, EndsSoonWhenIdle) {
  ServerOptions options;
  options.drain_grace = 50s;
  TestWorker worker(anatomy_, backbone_, "all", options);
  Ready r = ready(backbone_);
  expect_service(r);
  const auto begun = Clock::now();
  std::raise(SIGTERM);
  r.peer.expect(FrameType::drain);
  ASSERT_TRUE(worker.ended());
  EXPECT_GE(Clock::now() - begun, 200ms);
  EXPECT_LT(Clock::now() - begun, 20s);
}

TEST_F(WorkerServer, ASecondStopEndsAtOnce) {
  ServerOptions options;
  options.drain_grace = options.drain_idle = 100s;
  options.delay = 100s;
  TestWorker worker(anatomy_, backbone_, "all", options);
  Ready r = ready(backbone_);
  send(r, 1, Workload(shape_, 1, 1), 0);
  worker.server().stop();
  r.peer.expect(FrameType::drain);
  EXPECT_FALSE(worker.ended(300ms)) << "it still waits for the request on its way";
  worker.server().stop();
  EXPECT_TRUE(worker.ended(30s));
}

TEST_F(WorkerServer, DelaysWithoutHoldingOthersUp) {
  ServerOptions options;
  options.delay = 400ms;
  TestWorker worker(anatomy_, backbone_, "all", options);
  Ready r = ready(backbone_);
  const Workload load(shape_, 1, 1);
  const auto begun = Clock::now();
  for (std::uint64_t i = 0; i < 8; ++i) send(r, i, load, static_cast<std::uint16_t>(i % 2));
  for (int i = 0; i < 8; ++i) r.peer.expect(FrameType::combine);
  EXPECT_GE(Clock::now() - begun, 400ms);
  EXPECT_LT(Clock::now() - begun, 8 * 400ms);
}

TEST_F(WorkerServer, AWrongListenAddressIsAnError) {
  ServerOptions options;
  options.identity = net::Identity::generate().value();
  options.token = backbone_.token();
  options.listen = {"127.0.0.1:99999"};
  engine::HostOptions host;
  host.experts = {{}};
  host.n_threads = 1;
  EXPECT_FALSE(Server::open(engine::ExpertHost::open(anatomy_, host).value(), options));
}

}  // namespace
}  // namespace linkcpp::worker
