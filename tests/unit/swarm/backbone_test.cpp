// The backbone over real links, with workers that are scripted by hand: what it lets a worker do to it, and what not.
#include "swarm/backbone.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "dispatch/dispatcher.h"
#include "net/driver.h"
#include "net/session_transport.h"
#include "net/token.h"
#include "slice/cutter.h"
#include "support/mailbox.h"
#include "support/tiny_gguf.h"
#include "wire/frame_size.h"
#include "wire/provision.h"

namespace linkcpp::swarm {
namespace {

using namespace std::chrono_literals;
template <class T>
using Mailbox = test::TimedMailbox<T, 30>;

struct Frame {
  wire::FrameHeader header;
  Bytes body;
};

constexpr std::uint32_t n_embd = 64, n_expert = 6;

/// What an honest worker that holds `experts` of every layer says of itself.
wire::Hello hello_of(const Backbone& backbone, std::string name, std::uint64_t experts) {
  wire::Hello hello{.engine = engine::engine_version(),
                    .name = std::move(name),
                    .device = "none",
                    .n_threads = 1,
                    .row_types = 1,
                    .model = backbone.anatomy().digest};
  for (std::uint16_t layer = 0; layer < 2; ++layer) hello.holdings.push_back({layer, n_expert, {experts}});
  return hello;
}

/// A worker that answers only what the test tells it to.
class ScriptedWorker {
 public:
  /// Dials the backbone; greets it where there is a hello.
  ScriptedWorker(const Backbone& backbone, const net::PeerKey& key, const net::Secret& secret, std::optional<wire::Hello> hello)
      : hello_(std::move(hello)) {
    driver_.run_exclusive([&] {
      dialer_ = net::SessionDialer::start(
          driver_.context(), {backbone.listen_address()}, {*net::Identity::generate(), secret, key, false}, {}, {},
          [this](net::LinkPtr link) { adopt(std::move(link)); }, [](const Error&) {});
    });
  }
  ~ScriptedWorker() {
    driver_.run_exclusive([this] {
      dialer_.reset();
      link_.reset();
    });
  }
  std::optional<Frame> next(wire::FrameType type) {
    while (auto frame = frames_.take()) {
      if (frame->header.type == type) return frame;
    }
    return std::nullopt;
  }
  void send(Bytes frame) { link_->send(std::move(frame)); }
  void greet(const wire::Hello& hello) {
    Bytes body;
    wire::encode(hello, body);
    send(wire::make_frame(wire::FrameType::hello, 0, body));
  }
  bool wait_connected() { return connected_.take().has_value(); }
  /// What the backbone says when it turns this worker away; empty if it does not.
  std::string refusal() {
    const auto frame = next(wire::FrameType::refuse);
    if (!frame) return {};
    const auto refuse = wire::decode_refuse(frame->body);
    return refuse ? refuse->reason : std::string();
  }

 private:
  void adopt(net::LinkPtr link) {
    link_ = std::move(link);
    link_->start({.on_frame = [this](const wire::FrameView& f) { frames_.put({f.header, Bytes(f.body.begin(), f.body.end())}); },
                  .on_close = [](const Error&) {}});
    if (hello_) greet(*hello_);
    connected_.put(true);
  }

  std::optional<wire::Hello> hello_;
  Mailbox<bool> connected_;
  Mailbox<Frame> frames_;
  net::Driver driver_;
  net::LinkPtr link_;
  std::unique_ptr<net::SessionDialer> dialer_;
};

class RealBackbone : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    linkcpp::test::write_file(folder_ / "tiny.gguf", linkcpp::test::tiny_model().bytes());
    Config config;
    config.model = folder_ / "tiny.gguf";
    config.home = folder_ / "home";
    config.listen = {"127.0.0.1:0"};
    config.deadline = 1500ms;
    prepare(config);
    auto opened = Backbone::open(config);
    ASSERT_TRUE(opened) << opened.error().message;
    backbone_ = std::move(*opened);
  }
  virtual void prepare(Config&) {}
  void TearDown() override {
    backbone_.reset();
    std::filesystem::remove_all(folder_);
  }
  std::unique_ptr<ScriptedWorker> worker(std::optional<wire::Hello> hello) {
    const auto key = net::Identity::load_or_create(folder_ / "home")->key();
    const auto secret = *net::load_or_create_secret(folder_ / "home");
    return std::make_unique<ScriptedWorker>(*backbone_, key, secret, std::move(hello));
  }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / ("backbone-" + std::to_string(::getpid()));
  std::unique_ptr<Backbone> backbone_;
};

class TwoWorkers : public RealBackbone {
 protected:
  void SetUp() override {
    RealBackbone::SetUp();
    if (HasFatalFailure()) return;
    low_ = worker(hello_of(*backbone_, "low", 0b000111));
    high_ = worker(hello_of(*backbone_, "high", 0b111000));
    ASSERT_TRUE(backbone_->wait_for_coverage({}));

    program_.inputs = {{wire::Input::Kind::token, n_embd}};
    program_.weights = {"ffn_up_exps.weight"};
    wire::Op op{.kind = wire::OpKind::mul_mat_id, .n_out = 4};
    op.sources = {wire::Source{wire::Source::Kind::input, 0}, wire::Source{wire::Source::Kind::weight, 0}, {}};
    program_.ops = {op};
    call_ = {.layer = 0,
             .program_id = wire::program_id(program_),
             .program = &program_,
             .n_tokens = 1,
             .top_k = 2,
             .experts = experts_,
             .inputs = {rows_},
             .sum = false,
             .output = output_};
  }
  void TearDown() override {
    low_.reset();
    high_.reset();
    RealBackbone::TearDown();
  }

  /// One pair row of four times `value`, as the answer to `request`.
  static Bytes answer(std::uint64_t request, float value) {
    const float row[4] = {value, value, value, value};
    wire::Combine combine{.n_rows = 1, .n = 4};
    Bytes body;
    wire::encode_combine_header(combine, body);
    wire::encode_rows(wire::RowType::f32, row, 4, 1, 4, ByteWriter(body).extend(sizeof row));
    return wire::make_frame(wire::FrameType::combine, request, body);
  }
  static Bytes failure(std::uint64_t request) {
    Bytes body;
    wire::encode(wire::Failed{ErrorKind::internal, "made up"}, body);
    return wire::make_frame(wire::FrameType::failed, request, body);
  }
  void forge(Bytes frame) {
    low_->send(std::move(frame));
    std::this_thread::sleep_for(200ms);  // it is on its way before the honest answers are
  }

  std::unique_ptr<ScriptedWorker> low_, high_;
  wire::Program program_;
  std::vector<std::int32_t> experts_{1, 4};
  std::vector<float> rows_ = std::vector<float>(n_embd, 1.0f), output_ = std::vector<float>(8, -1.0f);
  engine::RegionCall call_;
};

// ---- provisioning ------------------------------------------------------------------------------------------------------

class Provisioning : public RealBackbone {
 protected:
  void prepare(Config& config) override {
    config.index = folder_ / "index.json";
    config.slice_port = 7103;
    config.sources = {"https://example.org/model/"};
  }
  /// The index of the tiny model, whose digests are numbers: nobody here reads the slices.
  void write_index() {
    store::SliceIndex index = slice::plan_index(backbone_->anatomy()).value();
    for (store::LayerSlices& layer : index.layers) {
      for (std::uint8_t e = 0; e < layer.slices.size(); ++e) layer.slices[e] = {static_cast<std::uint8_t>(layer.layer + 1), e};
    }
    slice_bytes_ = index.layers[0].slice_bytes();
    text_ = store::encode_index(index);
    linkcpp::test::write_file(folder_ / "index.new", text_);
    std::filesystem::rename(folder_ / "index.new", folder_ / "index.json");
  }
  static wire::Hello newcomer(std::string name) {
    return {.engine = engine::engine_version(), .name = std::move(name), .device = "none", .n_threads = 1, .row_types = 1};
  }
  static Bytes offer(wire::Offer offer) {
    Bytes body;
    wire::encode(offer, body);
    return wire::make_frame(wire::FrameType::offer, 0, body);
  }
  static Bytes holds(std::vector<wire::LayerHolding> holdings) {
    Bytes body;
    wire::encode(wire::Holds{.bytes = 1, .bytes_wanted = 1, .holdings = std::move(holdings)}, body);
    return wire::make_frame(wire::FrameType::holds, 0, body);
  }
  std::unique_ptr<ScriptedWorker> volunteer(const char* name, wire::Offer what) {
    auto joined = worker(newcomer(name));
    EXPECT_TRUE(joined->next(wire::FrameType::welcome));
    joined->send(offer(std::move(what)));
    return joined;
  }
  static wire::Assign assigned(ScriptedWorker& worker) {
    const auto frame = worker.next(wire::FrameType::assign);
    EXPECT_TRUE(frame);
    return frame ? wire::decode_assign(frame->body).value_or(wire::Assign{}) : wire::Assign{};
  }

  std::string text_;
  std::uint64_t slice_bytes_ = 0;
};

TEST_F(Provisioning, AssignsEverythingToTheFirstThatHasRoom) {
  write_index();
  auto first = volunteer("first", {.budget = 12 * slice_bytes_});
  const wire::Assign assign = assigned(*first);
  EXPECT_EQ(assign.model, backbone_->anatomy().digest);
  EXPECT_EQ(assign.index, store::index_digest(text_));
  EXPECT_EQ(dispatch::describe(assign.urgent), "layers 0-1: experts 0-5");
  EXPECT_TRUE(assign.spare.empty());
  ASSERT_EQ(assign.sources.size(), 2u);
  EXPECT_EQ(assign.sources[0].url, "lks://:7103");
  EXPECT_EQ(assign.sources[0].key, net::Identity::load_or_create(folder_ / "home")->key().bytes);
  EXPECT_EQ(assign.sources[1].url, "https://example.org/model/");
  EXPECT_FALSE(backbone_->wait_for_coverage([] { return true; })) << "assigned is not held";
  first->send(holds(assign.urgent));
  EXPECT_TRUE(backbone_->wait_for_coverage({}));
}

TEST_F(Provisioning, TheNextGetsTheRestAndTheFirstAsSource) {
  write_index();
  auto first = volunteer("first", {.budget = 7 * slice_bytes_, .share_port = 4711});
  EXPECT_EQ(dispatch::describe(assigned(*first).urgent), "layer 0: experts 0-5; layer 1: experts 0");
  auto second = volunteer("second", {.budget = 6 * slice_bytes_});
  const wire::Assign assign = assigned(*second);
  EXPECT_EQ(dispatch::describe(assign.urgent), "layer 1: experts 1-5");
  EXPECT_EQ(dispatch::describe(assign.spare), "layer 0: experts 0");
  ASSERT_EQ(assign.sources.size(), 3u);
  EXPECT_EQ(assign.sources[0].url, "lks://127.0.0.1:4711");
}

TEST_F(Provisioning, WhatIsStoredOfThisModelIsAssignedAgain) {
  write_index();
  wire::Offer stored{.budget = 2 * slice_bytes_, .model = backbone_->anatomy().digest, .stored = {{1, n_expert, {0b110000}}}};
  auto knows = volunteer("knows", stored);
  EXPECT_EQ(dispatch::describe(assigned(*knows).urgent), "layer 1: experts 4-5");
  stored.model[0] ^= 1;
  auto other = volunteer("other", stored);
  EXPECT_EQ(dispatch::describe(assigned(*other).urgent), "layer 0: experts 0-1") << "of another model nothing counts";
}

TEST_F(Provisioning, WaitsForTheIndex) {
  auto early = volunteer("early", {.budget = 1ull << 40});
  std::this_thread::sleep_for(100ms);
  write_index();
  EXPECT_EQ(dispatch::describe(assigned(*early).urgent), "layers 0-1: experts 0-5");
}

TEST_F(Provisioning, RefusesRoomForNothing) {
  write_index();
  auto small = volunteer("small", {.budget = slice_bytes_ - 1});
  EXPECT_NE(small->refusal().find(std::to_string(slice_bytes_) + " or more"), std::string::npos);
}

TEST_F(Provisioning, RefusesASecondOfferAndHoldingsOfAnotherShape) {
  write_index();
  auto twice = volunteer("twice", {.budget = 1ull << 40});
  assigned(*twice);
  twice->send(offer({.budget = 1}));
  EXPECT_NE(twice->refusal().find("second offer"), std::string::npos);
  auto odd = volunteer("odd", {.budget = 1ull << 40});
  assigned(*odd);
  odd->send(holds({{0, 64, {1}}}));
  EXPECT_NE(odd->refusal().find("64 experts in layer 0"), std::string::npos);
}

TEST_F(Provisioning, HoldingsWithoutAnOfferAreAViolation) {
  write_index();
  auto liar = worker(newcomer("liar"));
  ASSERT_TRUE(liar->next(wire::FrameType::welcome));
  liar->send(holds({{0, n_expert, {1}}}));
  EXPECT_NE(liar->refusal().find("nothing was assigned"), std::string::npos);
}

TEST_F(RealBackbone, WithoutSlicesOffersAreRefused) {
  auto newcomer = worker(wire::Hello{.engine = engine::engine_version(), .name = "new", .device = "none", .n_threads = 1, .row_types = 1});
  ASSERT_TRUE(newcomer->next(wire::FrameType::welcome));
  Bytes body;
  wire::encode(wire::Offer{.budget = 1ull << 40}, body);
  newcomer->send(wire::make_frame(wire::FrameType::offer, 0, body));
  EXPECT_NE(newcomer->refusal().find("assigns no experts"), std::string::npos);
}

// ---- joining ---------------------------------------------------------------------------------------------------------

struct BadHello {
  const char* name;
  void (*spoil)(wire::Hello&);
  std::vector<std::string> says;  ///< what the refusal must name
};
class Joining : public RealBackbone, public ::testing::WithParamInterface<BadHello> {};

TEST_P(Joining, IsRefusedWithTheReason) {
  auto hello = hello_of(*backbone_, "odd", 0b111111);
  GetParam().spoil(hello);
  auto odd = worker(hello);
  const std::string reason = odd->refusal();
  for (const auto& part : GetParam().says) EXPECT_NE(reason.find(part), std::string::npos) << reason;
  EXPECT_FALSE(backbone_->wait_for_coverage([] { return true; })) << "it was admitted all the same";
}

INSTANTIATE_TEST_SUITE_P(
    Hellos, Joining,
    ::testing::Values(BadHello{"AnotherEngine",
                               [](wire::Hello& h) { h.engine = "ggml 0.26.1"; },
                               {"ggml 0.26.1", engine::engine_version(), "install the same"}},
                      BadHello{"AnotherMajorEngine", [](wire::Hello& h) { h.engine = "ggml 1.27.0"; }, {"ggml 1.27.0", "install the same"}},
                      BadHello{"AnotherModel", [](wire::Hello& h) { h.model[0] ^= 1; }, {"another model", "same GGUF"}},
                      BadHello{"NoKnownRows", [](wire::Hello& h) { h.row_types = 2; }, {"f32", "update it"}},
                      BadHello{"AnotherNumberOfExperts",
                               [](wire::Hello& h) {
                                 h.holdings[1].n_expert = 5;
                                 h.holdings[1].bits = {0b11111};
                               },
                               {"5 experts", "layer 1", "has 6"}},
                      BadHello{"ALayerThatIsNot", [](wire::Hello& h) { h.holdings[1].layer = 7; }, {"layer 7", "has 0"}}),
    [](const auto& hello) { return std::string(hello.param.name); });

TEST_F(RealBackbone, APatchOfTheSameEngineIsWelcome) {
  auto hello = hello_of(*backbone_, "patched", 0b111111);
  hello.engine = engine::engine_version() + "9";  // 0.27.0 becomes 0.27.09: a later patch
  auto patched = worker(hello);
  EXPECT_TRUE(patched->next(wire::FrameType::welcome));
}

TEST_F(RealBackbone, FramesBeforeTheHelloAreRefused) {
  auto rude = worker(std::nullopt);
  ASSERT_TRUE(rude->wait_connected());
  rude->send(wire::make_frame(wire::FrameType::drain, 0, {}));
  EXPECT_NE(rude->refusal().find("before its hello"), std::string::npos);
}

TEST_F(RealBackbone, ASecondHelloIsRefused) {
  const auto hello = hello_of(*backbone_, "twice", 0b111111);
  auto twice = worker(hello);
  ASSERT_TRUE(twice->next(wire::FrameType::welcome));
  twice->greet(hello);
  EXPECT_NE(twice->refusal().find("second hello"), std::string::npos);
}

// ---- answering -------------------------------------------------------------------------------------------------------

TEST_F(TwoWorkers, RowsGoToTheirPairs) {
  auto ticket = backbone_->begin(call_);
  ASSERT_TRUE(ticket);
  const auto low = low_->next(wire::FrameType::dispatch), high = high_->next(wire::FrameType::dispatch);
  ASSERT_TRUE(low && high);
  high_->send(answer(high->header.request, 40));
  low_->send(answer(low->header.request, 10));
  ASSERT_TRUE(backbone_->await(*ticket, call_, {}));
  EXPECT_EQ(output_, (std::vector<float>{10, 10, 10, 10, 40, 40, 40, 40}));
}

TEST_F(TwoWorkers, AWorkerCannotAnswerForAnother) {
  auto ticket = backbone_->begin(call_);
  ASSERT_TRUE(ticket);
  const auto low = low_->next(wire::FrameType::dispatch), high = high_->next(wire::FrameType::dispatch);
  ASSERT_TRUE(low && high);
  forge(answer(high->header.request, 666));
  low_->send(answer(low->header.request, 10));
  std::jthread honest([&] {
    std::this_thread::sleep_for(300ms);
    high_->send(answer(high->header.request, 40));
  });
  ASSERT_TRUE(backbone_->await(*ticket, call_, {}));
  EXPECT_EQ(output_, (std::vector<float>{10, 10, 10, 10, 40, 40, 40, 40})) << "the forged answer ended the step";
}

TEST_F(TwoWorkers, AWorkerCannotFailTheRequestOfAnother) {
  auto ticket = backbone_->begin(call_);
  ASSERT_TRUE(ticket);
  const auto low = low_->next(wire::FrameType::dispatch), high = high_->next(wire::FrameType::dispatch);
  ASSERT_TRUE(low && high);
  forge(failure(high->header.request));
  low_->send(answer(low->header.request, 10));
  std::jthread honest([&] {
    std::this_thread::sleep_for(300ms);
    high_->send(answer(high->header.request, 40));
  });
  const auto done = backbone_->await(*ticket, call_, {});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(output_[4], 40);
}

TEST_F(TwoWorkers, TheAccountTellsMatmulsAndChosenExperts) {
  auto ticket = backbone_->begin(call_);
  ASSERT_TRUE(ticket);
  const auto low = low_->next(wire::FrameType::dispatch), high = high_->next(wire::FrameType::dispatch);
  ASSERT_TRUE(low && high);
  high_->send(answer(high->header.request, 40));
  low_->send(answer(low->header.request, 10));
  ASSERT_TRUE(backbone_->await(*ticket, call_, {}));
  const std::vector<std::string> on_base{"attn_v_exps.weight"}, none;
  backbone_->pass_done({.regions = 1, .matmuls = 4, .dispatched = 3, .on_base = on_base});
  backbone_->pass_done({.regions = 1, .matmuls = 3, .dispatched = 3, .on_base = none});
  backbone_->pass_done({.regions = 0, .matmuls = 1, .dispatched = 0, .on_base = on_base});
  const dispatch::Account account = backbone_->account();
  EXPECT_EQ(account.passes, 2) << "a graph without regions is no pass";
  EXPECT_EQ(account.regions, 2);
  EXPECT_EQ(account.matmuls.seen, 8);
  EXPECT_EQ(account.matmuls.dispatched, 6);
  EXPECT_EQ(account.matmuls.on_base, (std::map<std::string, std::uint64_t>{{"attn_v_exps.weight", 2}}));
  const std::vector<bool>& selected = account.selected.at(call_.layer);
  const std::set<std::int32_t> expected(call_.experts.begin(), call_.experts.end());
  EXPECT_EQ(std::ranges::count(selected, true), static_cast<std::ptrdiff_t>(expected.size()));
  for (const std::int32_t expert : expected) EXPECT_TRUE(selected[static_cast<std::size_t>(expert)]);
}

}  // namespace
}  // namespace linkcpp::swarm
