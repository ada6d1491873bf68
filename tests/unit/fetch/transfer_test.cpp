// Server, sources and fetcher together, over real sockets.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "fetch/fetcher.h"
#include "fetch/http_source.h"
#include "fetch/range.h"
#include "fetch/server.h"
#include "fetch/url.h"
#include "store/content_hash.h"

namespace linkcpp::fetch {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using store::Wanted;

TEST(Range, Forms) {
  ByteRange range;
  EXPECT_EQ(parse_range("bytes=5-9", 100, range), RangeVerdict::part);
  EXPECT_EQ(range, (ByteRange{5, 5}));
  EXPECT_EQ(parse_range("bytes=95-", 100, range), RangeVerdict::part);
  EXPECT_EQ(range, (ByteRange{95, 5}));
  EXPECT_EQ(parse_range("bytes=-7", 100, range), RangeVerdict::part);
  EXPECT_EQ(range, (ByteRange{93, 7}));
  EXPECT_EQ(parse_range("bytes=0-18446744073709551615", 100, range), RangeVerdict::part);
  EXPECT_EQ(range, (ByteRange{0, 100}));
  EXPECT_EQ(parse_range("bytes=100-", 100, range), RangeVerdict::unsatisfiable);
  for (const char* text :
       {"", "bytes=", "bytes=9-5", "bytes=1-2,4-5", "bytes=a-b", "lines=1-2", "bytes=-", "bytes=99999999999999999999-"}) {
    EXPECT_EQ(parse_range(text, 100, range), RangeVerdict::whole) << text;
  }
}

TEST(Urls, PartsAndRedirects) {
  auto url = parse_url("https://example.org/a/b.gguf?x=1");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->port, 443);
  EXPECT_EQ(url->path(), "/a/b.gguf");
  EXPECT_EQ(resolve(*url, "/c")->text(), "https://example.org/c");
  EXPECT_EQ(resolve(*url, "c")->text(), "https://example.org/a/c");
  EXPECT_EQ(parse_url("lks://[::1]:70")->authority(), "[::1]:70");
  for (const char* text :
       {"", "example.org", "ftp://x/", "http://", "http://a b/", "http://u:p@h/", "lks://host", "http://h:99999/", "http://h/\r\nX: y"}) {
    EXPECT_FALSE(parse_url(text)) << text;
  }
}

class TransferTest : public ::testing::Test {
 protected:
  TransferTest() {
    std::string pattern = (fs::temp_directory_path() / "linkcpp-fetch-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    theirs_ = *store::Store::open(folder_ / "theirs");
    ours_ = *store::Store::open(folder_ / "ours");
    secret_.fill(7);
  }
  ~TransferTest() override { fs::remove_all(folder_); }

  Wanted put(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    Bytes bytes(n);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    const Wanted wanted{{0, static_cast<std::uint16_t>(seed)}, store::content_hash(bytes), n};
    auto incoming = theirs_->receive(wanted.digest, n);
    EXPECT_TRUE((*incoming)->append(bytes));
    EXPECT_TRUE((*incoming)->commit());
    return wanted;
  }
  std::unique_ptr<SliceServer> serve() {
    auto server = SliceServer::open({.listen = "127.0.0.1:0", .credentials = {server_identity_, secret_, std::nullopt, true}},
                                    {provide_store(theirs_)});
    EXPECT_TRUE(server) << server.error().message;
    return std::move(*server);
  }
  net::Credentials client(std::uint8_t secret = 7) const {
    net::Secret text;
    text.fill(secret);
    return {client_identity_, text, server_identity_.key(), false};
  }
  Source node(const std::string& address, net::Credentials credentials, HttpKnobs knobs = {}) const {
    return {.name = "node", .tier = 1, .open = [=] { return http_source("lks://" + address, knobs, nullptr, credentials); }};
  }
  static Result<> read(store::SliceSource& source, const Wanted& wanted, std::uint64_t offset = 0) {
    return source.read(wanted, offset, [](ByteSpan) -> Result<> { return {}; });
  }

  fs::path folder_;
  std::shared_ptr<store::Store> theirs_, ours_;
  net::Identity server_identity_ = *net::Identity::generate(), client_identity_ = *net::Identity::generate();
  net::Secret secret_{};
};

TEST_F(TransferTest, NodeToNode) {
  std::vector<Wanted> wanted{put(9 << 20, 1)};
  for (unsigned i = 2; i < 40; ++i) wanted.push_back(put(1000 * i, i));
  std::uint64_t all = 0;
  for (const auto& one : wanted) all += one.bytes;
  auto server = serve();
  {  // a part is there already
    std::vector<std::byte> part(4'000'000);
    ASSERT_TRUE(theirs_->read(wanted[0].digest, 0, part));
    auto incoming = ours_->receive(wanted[0].digest, wanted[0].bytes);
    ASSERT_TRUE((*incoming)->append(part));
  }
  std::size_t told = 0;
  auto fetcher = Fetcher::start(ours_, {},
                                {.on_slice =
                                     [&](const Wanted& one) {
                                       ++told;
                                       EXPECT_TRUE(ours_->has(one.digest, one.bytes));
                                     },
                                 .on_problem = {}});
  fetcher->add(node(server->address(), client()));
  fetcher->want(wanted);
  ASSERT_TRUE(fetcher->wait(60s)) << fetcher->progress().last_problem;
  fetcher->stop();
  EXPECT_EQ(told, wanted.size());
  EXPECT_EQ(fetcher->progress().fetched(), all - 4'000'000);
  EXPECT_EQ(fetcher->progress().bytes_done, all);
  EXPECT_EQ(server->counters().bytes(), all - 4'000'000);
  for (const auto& one : wanted) EXPECT_TRUE(ours_->verify(one.digest, one.bytes));
  // A second start asks for nothing.
  auto again = Fetcher::start(ours_, {}, {});
  again->add(node(server->address(), client()));
  again->want(wanted);
  ASSERT_TRUE(again->wait(10s));
  EXPECT_EQ(again->progress().fetched(), 0u);
  EXPECT_EQ(server->counters().bytes(), all - 4'000'000);
}

TEST_F(TransferTest, StrangersGetNothing) {
  const Wanted wanted = put(1000, 1);
  auto server = serve();
  auto stranger = *http_source("lks://" + server->address(), {}, nullptr, client(8));
  const auto refused = read(*stranger, wanted);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::unauthorized) << refused.error().message;
  auto elsewhere = client();
  elsewhere.expected_peer = client_identity_.key();
  auto misled = *http_source("lks://" + server->address(), {}, nullptr, elsewhere);
  EXPECT_EQ(read(*misled, wanted).error().kind, ErrorKind::unauthorized);
  EXPECT_EQ(server->counters().bytes(), 0u);
  EXPECT_GE(server->counters().refused, 1u);
  auto friendly = *http_source("lks://" + server->address(), {}, nullptr, client());
  EXPECT_TRUE(read(*friendly, wanted));
  EXPECT_TRUE(read(*friendly, wanted, 999)) << "on the same connection";
  EXPECT_EQ(read(*friendly, {{}, store::content_hash({}), 5}).error().kind, ErrorKind::not_found);
  EXPECT_TRUE(read(*friendly, wanted));
}

TEST_F(TransferTest, IndexesComeFromANode) {
  ASSERT_TRUE(theirs_->put_index("the index"));
  auto server = serve();
  const std::string url = "lks://" + server->address() + "/v1/indexes/" + wire::to_hex(store::index_digest("the index"));
  EXPECT_EQ(http_get(url, 100, {}, client()).value_or("none"), "the index");
  EXPECT_EQ(http_get(url, 3, {}, client()).error().kind, ErrorKind::invalid_input);
}

TEST_F(TransferTest, CorruptSourceThenTheNext) {
  const Wanted wanted = put(2'000'000, 1);
  auto liars = std::shared_ptr<store::Store>(*store::Store::open(folder_ / "liars"));
  fs::create_directories(liars->path_of(wanted.digest).parent_path());
  std::ofstream(liars->path_of(wanted.digest)) << std::string(2'000'000, 'x');
  auto server = serve();
  std::vector<std::string> problems;
  auto fetcher = Fetcher::start(ours_, {}, {.on_slice = {}, .on_problem = [&](const std::string& text) { problems.push_back(text); }});
  fetcher->add(
      {.name = "the liar", .tier = 0, .open = [=] { return Result<std::unique_ptr<store::SliceSource>>(store::store_source(liars)); }});
  fetcher->add(node(server->address(), client()));
  fetcher->want({wanted});
  ASSERT_TRUE(fetcher->wait(20s));
  fetcher->stop();
  EXPECT_TRUE(ours_->verify(wanted.digest, wanted.bytes));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("the liar"), std::string::npos);
}

TEST_F(TransferTest, GivesUpWhatNobodyHasAndStopsQuickly) {
  auto server = serve();
  auto fetcher = Fetcher::start(ours_, {.plan = {.backoff_min = 10ms, .give_up_rounds = 2}}, {});
  fetcher->add(node(server->address(), client()));
  fetcher->want({{{}, store::content_hash({}), 77}});
  ASSERT_TRUE(fetcher->wait(10s));
  EXPECT_EQ(fetcher->progress().slices_failed, 1u);
}

/// A server of raw bytes: whatever it is told to say, it says to each connection.
class RawServer {
 public:
  explicit RawServer(std::string answer, bool hold_open = false) : answer_(std::move(answer)), hold_(hold_open) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    socklen_t length = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (;;) {
        const int peer = ::accept(fd_, nullptr, nullptr);
        if (peer < 0) return;
        char request[4096];
        (void)!::read(peer, request, sizeof request);
        (void)!::send(peer, answer_.data(), answer_.size(), MSG_NOSIGNAL);
        if (hold_)
          held_.push_back(peer);
        else
          ::close(peer);
      }
    });
  }
  ~RawServer() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    for (const int peer : held_) ::close(peer);
    ::close(fd_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/x"; }

 private:
  std::string answer_;
  bool hold_;
  int fd_ = -1;
  std::uint16_t port_ = 0;
  std::vector<int> held_;
  std::thread thread_;
};

TEST_F(TransferTest, HostileServersAreBounded) {
  const Wanted wanted{{}, store::content_hash({}), 10};
  const auto kind_at = [&](const std::string& answer, std::uint64_t offset = 0) {
    RawServer server(answer);
    auto source = *http_source(server.url());
    const auto got = read(*source, wanted, offset);
    return got ? std::string("fine") : std::to_string(static_cast<int>(got.error().kind));
  };
  const auto kind = [](ErrorKind k) { return std::to_string(static_cast<int>(k)); };
  EXPECT_EQ(kind_at("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"), "fine");
  EXPECT_EQ(
      kind_at("HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/10\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"),
      "fine");
  EXPECT_EQ(kind_at("HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/10\r\n\r\n0123456789"), "fine") << "until the connection ends";
  EXPECT_EQ(kind_at("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789", 4), kind(ErrorKind::incompatible)) << "ignores Range";
  EXPECT_EQ(kind_at("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"), kind(ErrorKind::incompatible));
  EXPECT_EQ(kind_at("HTTP/1.1 206 P\r\nContent-Range: bytes 1-9/10\r\nContent-Length: 9\r\n\r\n123456789"), kind(ErrorKind::invalid_input));
  EXPECT_EQ(kind_at("HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/10\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + std::string(255, 'x') +
                    "\r\n0\r\n\r\n"),
            kind(ErrorKind::invalid_input));
  EXPECT_EQ(kind_at("HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n01234"), kind(ErrorKind::unavailable))
      << "cut off";
  EXPECT_EQ(kind_at("HTTP/1.1 404 N\r\nContent-Length: 0\r\n\r\n"), kind(ErrorKind::not_found));
  EXPECT_EQ(kind_at("HTTP/1.1 503 N\r\nContent-Length: 0\r\n\r\n"), kind(ErrorKind::unavailable));
  EXPECT_EQ(kind_at("HTTP/1.1 302 F\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"), kind(ErrorKind::invalid_input)) << "in circles";
  EXPECT_EQ(kind_at("HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x')), kind(ErrorKind::invalid_input));
  EXPECT_EQ(kind_at("SSH-2.0-OpenSSH\r\n"), kind(ErrorKind::invalid_input));
  EXPECT_EQ(kind_at(""), kind(ErrorKind::unavailable));
}

TEST_F(TransferTest, StalledSourceIsGivenUpAndStopDoesNotWait) {
  const Wanted wanted{{}, store::content_hash({}), 10};
  RawServer server("HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n01234", true);
  auto source = *http_source(server.url(), {.stall_limit = 200ms});
  EXPECT_EQ(read(*source, wanted).error().kind, ErrorKind::timeout);
  auto fetcher = Fetcher::start(ours_, {}, {});
  fetcher->add({.name = "stalled", .tier = 0, .open = [&] { return http_source(server.url()); }});
  fetcher->want({wanted});
  while (fetcher->progress().fetched() < 5) std::this_thread::sleep_for(5ms);
  const auto begin = std::chrono::steady_clock::now();
  fetcher->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_EQ(ours_->usage().partial_bytes, 5u) << "kept";
}

}  // namespace
}  // namespace linkcpp::fetch
