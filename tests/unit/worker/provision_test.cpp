// A worker that offers room: real links, a real slice server, a real model's slices.
#include "wire/provision.h"

#include <csignal>

#include "dispatch/dispatcher.h"
#include "fetch/server.h"
#include "slice/cutter.h"
#include "store/index.h"
#include "unit/worker/worker_harness.h"
#include "worker/slice_layer.h"

namespace linkcpp::worker {
namespace {

using test::dispatch_body;
using test::ModelShape;
using test::Peer;
using test::rows_of;
using test::Share;
using test::TestBackbone;
using test::Workload;
using wire::CombineMode;
using wire::FrameType;

class ProvisionedWorker : public testing::Test {
 protected:
  ProvisionedWorker() {
    index_ = slice::make_index(anatomy_, {}).value();
    text_ = store::encode_index(index_);
    auto provider = fetch::provide_gguf(std::make_shared<const store::SliceIndex>(index_), anatomy_.files);
    identity_ = net::Identity::generate().value();
    slices_ = fetch::SliceServer::open({.listen = "127.0.0.1:0", .credentials = {identity_, backbone_.token().secret, std::nullopt, true}},
                                       {provider.value()})
                  .value();
  }
  void start(std::uint64_t budget) {
    ServerOptions options;
    options.identity = net::Identity::generate().value();
    options.token = backbone_.token();
    options.name = "new";
    options.dial = options.token.addresses;
    options.provision = ProvisionOptions{.budget = budget,
                                         .store = folder_.path() / "store",
                                         .share = "127.0.0.1:0",
                                         .identity = options.identity,
                                         .secret = options.token.secret};
    server_ = Server::open(engine::ExpertHost::open_empty({.n_threads = 1}).value(), std::move(options)).value();
    thread_ = std::thread([this] { server_->run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    server_->stop();
    thread_.join();
    server_.reset();
  }
  ~ProvisionedWorker() override { stop(); }

  wire::Offer offered(Peer& peer) { return wire::decode_offer(peer.expect(FrameType::offer)).value_or(wire::Offer{}); }
  void assign(Peer& peer, std::vector<wire::LayerHolding> experts) {
    wire::Assign assign{
        .model = anatomy_.digest, .index = store::index_digest(text_), .urgent = std::move(experts), .spare = {}, .sources = {}};
    assign.sources = {{"lks://:" + std::to_string(slices_->port()), identity_.key().bytes}};
    Bytes body;
    wire::encode(assign, body);
    peer.send(FrameType::assign, 0, body);
  }
  /// The next frame that says something else than what is held.
  static std::optional<test::Frame> next_answer(Peer& peer) {
    auto frame = peer.frames->take();
    while (frame && frame->header.type == FrameType::holds) frame = peer.frames->take();
    return frame;
  }
  /// Waits until it says that it holds this; what it said before is less.
  void expect_holds(Peer& peer, const std::string& experts) {
    for (std::string said; said != experts;) {
      const auto holds = wire::decode_holds(peer.expect(FrameType::holds));
      ASSERT_TRUE(holds) << "said last: " << said;
      said = dispatch::describe(holds->holdings);
    }
  }

  test::TempFolder folder_;
  ModelShape shape_{.type = GGML_TYPE_Q8_0, .bias = true};
  std::filesystem::path path_ = folder_.path() / "model.gguf";
  engine::Anatomy anatomy_ = test::write_model(shape_, path_);
  TestBackbone backbone_;
  store::SliceIndex index_;
  std::string text_;
  net::Identity identity_;
  std::unique_ptr<fetch::SliceServer> slices_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

TEST_F(ProvisionedWorker, FetchesComputesAndRemembers) {
  start(1 << 30);
  Peer peer = backbone_.next_link();
  const wire::Hello hello = peer.admit();
  EXPECT_EQ(hello.model, wire::Digest{});
  EXPECT_TRUE(hello.holdings.empty());
  const wire::Offer offer = offered(peer);
  EXPECT_EQ(offer.budget, 1u << 30);
  EXPECT_NE(offer.share_port, 0);
  EXPECT_TRUE(offer.stored.empty());
  assign(peer, {{0, 8, {0xFF}}, {1, 8, {0x0F}}});
  expect_holds(peer, "layer 0: experts 0-7; layer 1: experts 0-3");

  const wire::Program program = test::make_program(shape_);
  const std::uint64_t id = peer.send_program(program);
  const Workload load(shape_, 5, 4);
  const Share share(shape_, load, [](auto) { return true; });
  peer.send(FrameType::dispatch, 1, dispatch_body(shape_, load, share, id, 0, CombineMode::raw));
  const auto answer = next_answer(peer);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->header.type, FrameType::combine);
  EXPECT_EQ(rows_of(answer->body), test::reference(shape_, path_, 0, load).pairs);

  // The next life offers what is stored, and takes it up without a byte from anywhere.
  stop();
  const std::uint64_t before = slices_->counters().bytes();
  EXPECT_EQ(before, 12 * index_.layers[0].slice_bytes());
  start(1 << 30);
  Peer again = backbone_.next_link();
  EXPECT_EQ(again.admit().model, wire::Digest{});
  const wire::Offer stored = offered(again);
  EXPECT_EQ(stored.model, anatomy_.digest);
  EXPECT_EQ(dispatch::describe(stored.stored), "layer 0: experts 0-7; layer 1: experts 0-3");
  assign(again, stored.stored);
  expect_holds(again, "layer 0: experts 0-7; layer 1: experts 0-3");
  EXPECT_EQ(slices_->counters().bytes(), before);
}

TEST_F(ProvisionedWorker, ALostLinkCostsNothing) {
  start(1 << 30);
  Peer peer = backbone_.next_link();
  peer.admit();
  offered(peer);
  assign(peer, {{1, 8, {0x3}}});
  expect_holds(peer, "layer 1: experts 0-1");
  peer.link->close({ErrorKind::unavailable, "lost"});
  Peer again = backbone_.next_link();
  const wire::Hello hello = again.admit();
  EXPECT_EQ(hello.model, anatomy_.digest);
  EXPECT_EQ(dispatch::describe(hello.holdings), "layer 1: experts 0-1") << "it serves from its hello on";
  EXPECT_EQ(dispatch::describe(offered(again).stored), "layer 1: experts 0-1");
}

TEST_F(ProvisionedWorker, RefusesAnotherModelWhileItHoldsOne) {
  start(1 << 30);
  Peer peer = backbone_.next_link();
  peer.admit();
  offered(peer);
  assign(peer, {{1, 8, {0x3}}});
  expect_holds(peer, "layer 1: experts 0-1");
  anatomy_.digest[0] ^= 1;
  assign(peer, {{1, 8, {0x3}}});
  const auto refusal = next_answer(peer);
  ASSERT_TRUE(refusal) << "it did not refuse";
  ASSERT_EQ(refusal->header.type, FrameType::refuse);
  EXPECT_NE(wire::decode_refuse(refusal->body)->reason.find("experts of another model"), std::string::npos);
}

TEST(SliceLayer, RefusesWhatTheEngineDoesNotKnow) {
  store::LayerSlices layer{.layer = 3, .parts = {{"blk.3.ffn_up_exps.weight", "q8_0", 64, 10, 680, 0, 0, 0}}, .slices = {{}, {}}};
  ASSERT_TRUE(layer_of(layer));
  EXPECT_EQ(layer_of(layer)->tensors[0].role, "ffn_up_exps.weight");
  for (const auto& spoil : std::vector<void (*)(store::SlicePart&)>{
           [](auto& p) { p.tensor = "blk.4.ffn_up_exps.weight"; }, [](auto& p) { p.tensor = "blk.3.ffn_up.weight"; },
           [](auto& p) { p.type = "q9_9"; }, [](auto& p) { p.type = "f32"; }, [](auto& p) { p.n_in = 60; }, [](auto& p) { p.n_in = 0; },
           [](auto& p) { p.n_out = -1; }, [](auto& p) { p.n_out = std::int64_t{1} << 62; }}) {
    store::LayerSlices bad = layer;
    spoil(bad.parts[0]);
    EXPECT_FALSE(layer_of(bad));
  }
}

}  // namespace
}  // namespace linkcpp::worker
