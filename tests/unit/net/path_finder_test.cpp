// Finding a direct path: offers, discovery by STUN from a third node, punching, the connection; and offers that are wrong.
#include "net/path_finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/net/quic_harness.h"

namespace linkcpp::net {
namespace {

using testing::HasSubstr;

Udp::endpoint at(const char* address, std::uint16_t port) { return {boost::asio::ip::make_address(address), port}; }

TEST(PathOfferTest, ComesBackAsItWas) {
  PathOffer offer;
  offer.key.fill(9);
  offer.candidates = {{at("192.0.2.1", 7000), CandidateKind::host},
                      {at("2001:db8::7", 7001), CandidateKind::reflexive},
                      {at("198.51.100.4", 65535), CandidateKind::mapped}};
  EXPECT_EQ(decode_offer(encode_offer(offer)).value(), offer);
  const Bytes bytes = encode_offer(offer);
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode_offer(ByteSpan(bytes).first(n))) << n;
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_offer(longer));
}

TEST(PathOfferTest, LeavesOutWhereNobodyCanBe) {
  PathOffer offer;
  offer.candidates = {
      {at("0.0.0.0", 7000)}, {at("224.0.0.1", 7000)}, {at("ff02::1", 7000)}, {at("192.0.2.1", 0)}, {at("255.255.255.255", 9)}};
  EXPECT_TRUE(decode_offer(encode_offer(offer))->candidates.empty());
  offer.candidates.assign(40, {at("192.0.2.1", 7000)});
  EXPECT_EQ(decode_offer(encode_offer(offer))->candidates.size(), PathOffer::max_candidates);
}

/// A worker and a backbone whose offers travel by hand, as a session would carry them.
struct Finders {
  Nodes nodes;
  Loop loop;
  QuicNode backbone, worker, server;
  std::shared_ptr<PathFinder> at_worker, at_backbone;
  Mailbox<LinkPtr> direct;

  explicit Finders(PathFinderKnobs knobs = {})
      : backbone(loop.context(), nodes.backbone_credentials(), nodes.knobs),
        worker(loop.context(), nodes.worker_credentials(), nodes.knobs),
        server(loop.context(), nodes.backbone_credentials(), nodes.knobs) {
    backbone.accept();
    const std::vector servers{server.endpoint->local()};
    at_backbone = std::make_shared<PathFinder>(
        backbone.endpoint, false, servers,
        PathFinder::Handlers{.send_offer = [this](Bytes offer) { to(worker, at_worker, std::move(offer)); }, .on_connection = {}});
    at_worker = std::make_shared<PathFinder>(
        worker.endpoint, true, servers,
        PathFinder::Handlers{.send_offer = [this](Bytes offer) { to(backbone, at_backbone, std::move(offer)); },
                             .on_connection = [this](std::shared_ptr<Connection> c) { direct.put(make_link(std::move(c))); }},
        knobs);
  }
  static void to(QuicNode& node, std::weak_ptr<PathFinder> finder, Bytes offer) {
    boost::asio::post(node.endpoint->hub()->strand(), [finder = std::move(finder), offer = std::move(offer)] {
      if (const auto target = finder.lock()) target->received_offer(offer);
    });
  }
  ~Finders() {
    worker.on_strand([this] { at_worker.reset(); });
    backbone.on_strand([this] { at_backbone.reset(); });
  }
};

TEST(PathFinderTest, FindsTheDirectPathAndConnects) {
  Finders both;
  both.worker.on_strand([&] { both.at_worker->start(); });
  auto at_worker = both.direct.take(), at_backbone = both.backbone.links.take();
  ASSERT_TRUE(at_worker && at_backbone);
  Recorder recorder;
  (*at_backbone)->start(recorder.handlers());
  (*at_worker)->start({});
  (*at_worker)->send(frame_of(6000, 3));
  EXPECT_EQ(recorder.frames->take()->header.request, 3u);
  PathFinder::Report report;
  both.worker.on_strand([&] { report = both.at_worker->report(); });
  EXPECT_EQ(report.found, both.backbone.endpoint->local());
  ASSERT_EQ(report.seen_by.size(), 1u) << "the third node answers STUN";
  EXPECT_EQ(report.seen_by[0].second, both.worker.endpoint->local());
  EXPECT_THAT(report.state, HasSubstr("directly"));
}

TEST(PathFinderTest, APathThatIsLostAtOnceIsLookedForAgainSoon) {
  PathFinderKnobs knobs;
  knobs.punch.deadline = 300ms;  // the attempt that found it still runs when it is lost
  knobs.retry_lost = 500ms;
  knobs.retry_first = 2 * patience;  // for attempts that find nothing
  Finders both(knobs);
  both.worker.on_strand([&] { both.at_worker->start(); });
  for (int i = 0; i < 3; ++i) {
    auto direct = both.direct.take();
    ASSERT_TRUE(direct) << i;
    both.worker.on_strand([&] { both.at_worker->lost(); });
  }
}

TEST(PathFinderTest, AnOfferOfAnotherAttemptIsIgnored) {
  Finders both;
  std::shared_ptr<PathFinder> lonely;
  both.worker.on_strand([&] {
    lonely = std::make_shared<PathFinder>(both.worker.endpoint, true, std::vector<Udp::endpoint>{},
                                          PathFinder::Handlers{.send_offer = [](const Bytes&) {}, .on_connection = [](auto) {}});
    lonely->start();
    PathOffer offer;
    offer.candidates = {{at("127.0.0.1", 9), CandidateKind::host}};
    lonely->received_offer(encode_offer(offer));
    EXPECT_TRUE(lonely->report().peers.empty());
  });
  both.worker.on_strand([&] { lonely.reset(); });
}

}  // namespace
}  // namespace linkcpp::net
