// A backbone for tests: accepts or dials a worker over real TLS links and speaks the protocol by hand.
#pragma once

#include <gtest/gtest.h>
#include <openssl/rand.h>

#include <boost/asio/executor_work_guard.hpp>
#include <mutex>
#include <thread>

#include "net/session_transport.h"
#include "support/mailbox.h"
#include "unit/engine/expert_test_model.h"
#include "wire/frame_size.h"
#include "worker/server.h"

namespace linkcpp::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
/// Generous: under sanitizers on a busy machine everything is slow.
inline constexpr auto patience = 60s;

template <class T>
using Mailbox = TimedMailbox<T, patience.count()>;

struct Frame {
  wire::FrameHeader header;
  Bytes body;
};

/// One link to the worker, seen from the backbone.
struct Peer {
  net::LinkPtr link;
  std::shared_ptr<Mailbox<Frame>> frames = std::make_shared<Mailbox<Frame>>();
  std::shared_ptr<Mailbox<Error>> closed = std::make_shared<Mailbox<Error>>();

  /// The next frame, which must be of this type.
  Bytes expect(wire::FrameType type) {
    auto frame = frames->take();
    EXPECT_TRUE(frame) << "nothing came";
    if (!frame) return {};
    EXPECT_EQ(static_cast<int>(frame->header.type), static_cast<int>(type));
    if (frame->header.type != type && frame->header.type == wire::FrameType::failed)
      ADD_FAILURE() << wire::decode_failed(frame->body)->reason;
    return std::move(frame->body);
  }
  void send(wire::FrameType type, std::uint64_t request = 0, ByteSpan body = {}) { link->send(wire::make_frame(type, request, body)); }
  std::uint64_t send_program(const wire::Program& program) {
    Bytes body;
    wire::encode_program(program, body);
    send(wire::FrameType::program, wire::program_id(program), body);
    return wire::program_id(program);
  }
  wire::Hello admit() {
    const auto hello = wire::decode_hello(expect(wire::FrameType::hello));
    EXPECT_TRUE(hello);
    send(wire::FrameType::welcome);
    return hello ? *hello : wire::Hello{};
  }
  wire::Failed expect_failed() { return wire::decode_failed(expect(wire::FrameType::failed)).value_or(wire::Failed{}); }
  /// The worker closes the link, saying why.
  std::string expect_refuse() {
    const std::string reason = wire::decode_refuse(expect(wire::FrameType::refuse)).value_or(wire::Refuse{}).reason;
    EXPECT_TRUE(closed->take());
    return reason;
  }
};

class TestBackbone {
 public:
  TestBackbone() : work_(context_.get_executor()) {
    credentials_.identity = net::Identity::generate().value();
    RAND_bytes(credentials_.secret.data(), static_cast<int>(credentials_.secret.size()));
    credentials_.is_backbone = true;
    auto listener = net::SessionListener::open(
        context_, {"127.0.0.1:0"}, credentials_, {}, {}, [this](net::LinkPtr link) { adopt(std::move(link)); },
        [](const std::string&, const Error&) {});
    listener_ = std::move(listener.value());
    thread_ = std::thread([this] { context_.run(); });
  }
  ~TestBackbone() {
    dialers_.clear();
    listener_.reset();
    work_.reset();
    context_.stop();
    thread_.join();
  }

  [[nodiscard]] net::JoinToken token() const { return {credentials_.identity.key(), credentials_.secret, listener_->addresses()}; }
  Peer next_link(Clock::duration limit = patience) {
    auto peer = links_.take(limit);
    return peer ? *peer : Peer{};
  }
  void dial(const std::string& address) {
    net::LinkKnobs knobs;
    knobs.backoff_min = 10ms;
    knobs.backoff_max = 50ms;  // the tests lose links on purpose
    dialers_.push_back(net::SessionDialer::start(
        context_, {address}, credentials_, knobs, {}, [this](net::LinkPtr link) { adopt(std::move(link)); }, [](const Error&) {}));
  }

 private:
  void adopt(net::LinkPtr link) {
    Peer peer;
    peer.link = std::move(link);
    peer.link->start(
        {.on_frame =
             [frames = peer.frames](const wire::FrameView& view) { frames->put({view.header, Bytes(view.body.begin(), view.body.end())}); },
         .on_close = [closed = peer.closed](const Error& error) { closed->put(error); }});
    links_.put(peer);
  }

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  net::Credentials credentials_;
  std::unique_ptr<net::SessionListener> listener_;
  std::vector<std::unique_ptr<net::SessionDialer>> dialers_;
  Mailbox<Peer> links_;
  std::thread thread_;
};

/// A worker that runs on a thread of its own until it has drained.
class TestWorker {
 public:
  TestWorker(const engine::Anatomy& anatomy, const TestBackbone& backbone, const std::string& experts = "all",
             worker::ServerOptions options = {}) {
    engine::HostOptions host_options;
    host_options.n_threads = 1;
    host_options.experts = engine::parse_expert_ranges(experts, anatomy.n_expert).value();
    options.identity = net::Identity::generate().value();
    options.token = backbone.token();
    options.name = "test";
    options.model = anatomy.digest;
    if (options.listen.empty()) options.dial = options.token.addresses;
    server_ = worker::Server::open(engine::ExpertHost::open(anatomy, host_options).value(), std::move(options)).value();
    thread_ = std::thread([this] {
      server_->run();
      ended_.put(Clock::now());
    });
  }
  ~TestWorker() {
    server_->stop();
    server_->stop();
    thread_.join();
  }
  worker::Server& server() { return *server_; }
  /// When run() returned.
  std::optional<Clock::time_point> ended(Clock::duration limit = patience) { return ended_.take(limit); }

 private:
  std::unique_ptr<worker::Server> server_;
  Mailbox<Clock::time_point> ended_;
  std::thread thread_;
};

/// A dispatch frame's body for a share of a workload.
inline Bytes dispatch_body(const ModelShape& s, const Workload& load, const Share& share, std::uint64_t program, std::uint16_t layer,
                           wire::CombineMode mode, wire::RowType type = wire::RowType::f32) {
  wire::Dispatch dispatch{.layer = layer, .mode = mode, .row_type = type, .program = program};
  dispatch.n_tokens = static_cast<std::uint32_t>(load.n_tokens);
  dispatch.pairs = share.pairs;
  Bytes body;
  wire::encode_dispatch_header(dispatch, body);
  ByteWriter writer(body);
  const auto n = static_cast<std::size_t>(s.n_embd), n_tokens = static_cast<std::size_t>(load.n_tokens);
  wire::encode_rows(type, load.x.data(), n, n_tokens, n, writer.extend(n_tokens * wire::row_bytes(type, n)));
  wire::encode_rows(wire::RowType::f32, share.w.data(), 1, share.w.size(), 1, writer.extend(share.w.size() * sizeof(float)));
  return body;
}

/// Rows of a combine frame's body.
inline std::vector<float> rows_of(const Bytes& body, wire::RowType type = wire::RowType::f32) {
  const auto combine = wire::decode_combine(body);
  EXPECT_TRUE(combine) << (combine ? "" : combine.error().message);
  if (!combine) return {};
  std::vector<float> rows(std::size_t{combine->n_rows} * combine->n);
  wire::decode_rows(type, combine->rows, combine->n, combine->n_rows, rows.data(), combine->n);
  return rows;
}

}  // namespace linkcpp::test
