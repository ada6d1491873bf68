// The admin endpoint and the HTTP client, over real sockets.
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "serve/address.h"
#include "serve/admin.h"
#include "serve/http_client.h"
#include "serve/locate.h"

namespace linkcpp::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;

template <class T>
T await(asio::io_context& context, asio::awaitable<T> task) {
  std::optional<T> result;
  asio::co_spawn(context, std::move(task), [&](const std::exception_ptr& failed, T value) {
    if (!failed) result.emplace(std::move(value));
    context.stop();
  });
  context.restart();
  context.run_for(20s);
  EXPECT_TRUE(result) << "out of time";
  return result ? std::move(*result) : T(fail(ErrorKind::timeout, "out of time"));
}

/// Everything that comes back for raw bytes, until the other end closes.
std::string converse(asio::io_context& context, const HostPort& address, const std::string& bytes) {
  std::string answer;
  std::thread client([&] {
    asio::io_context own;
    tcp::socket socket(own);
    boost::system::error_code error;
    socket.connect({asio::ip::make_address(address.host), address.port}, error);
    if (!error) asio::write(socket, asio::buffer(bytes), error);
    socket.shutdown(tcp::socket::shutdown_send, error);
    std::array<char, 4096> chunk;
    for (error.clear(); !error;) answer.append(chunk.data(), socket.read_some(asio::buffer(chunk), error));
    asio::post(context, [&] { context.stop(); });
  });
  context.restart();
  context.run_for(20s);
  client.join();
  return answer;
}

struct Admin : testing::Test {
  void SetUp() override {
    AdminKnobs knobs;
    knobs.idle_limit = 300ms;
    knobs.max_connections = 4;
    auto opened = AdminServer::open(context, {"127.0.0.1", 0}, [this] { return nlohmann::json{{"asked", ++asked}}; }, knobs);
    ASSERT_TRUE(opened) << opened.error().message;
    server = std::move(*opened);
  }
  asio::io_context context{1};
  int asked = 0;
  std::unique_ptr<AdminServer> server;
};

TEST_F(Admin, AnswersWithTheSnapshot) {
  const auto json = await(context, http_json(server->address(), "/v1/swarm", "", 5s));
  ASSERT_TRUE(json) << json.error().message;
  EXPECT_EQ((*json)["asked"], 1);
  EXPECT_TRUE(await(context, http_json(server->address(), "/v1/swarm?x=1", "", 5s)));
}

TEST_F(Admin, RefusesOtherPathsAndMethods) {
  const auto missing = await(context, http_request(server->address(), "/v1/other", "", 5s));
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->status, 404u);
  const auto posted = await(context, http_request(server->address(), "/v1/swarm", "{}", 5s));
  ASSERT_TRUE(posted);
  EXPECT_EQ(posted->status, 405u);
  EXPECT_EQ(asked, 0);
  const auto error = await(context, http_json(server->address(), "/nothing", "", 5s));
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().kind, ErrorKind::not_found);
  EXPECT_NE(error.error().message.find("only /v1/swarm is here"), std::string::npos) << error.error().message;
}

TEST_F(Admin, HeadHasNoBody) {
  const auto answer = converse(context, server->address(), "HEAD /v1/swarm HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
}

TEST_F(Admin, BoundsWhatItReads) {
  for (const std::string& bytes :
       {std::string("\0\1\2garbage\r\n\r\n", 14), "GET /v1/swarm HTTP/1.1\r\nX: " + std::string(1u << 20, 'a') + "\r\n\r\n",
        std::string("POST /v1/swarm HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")}) {
    const auto answer = converse(context, server->address(), bytes);
    EXPECT_TRUE(answer.empty() || !answer.starts_with("HTTP/1.1 200")) << answer.substr(0, 100);
  }
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(await(context, http_json(server->address(), "/v1/swarm", "", 5s))) << "it lives on";
}

TEST_F(Admin, SilentConnectionsDoNotLockOthersOut) {
  asio::io_context own;
  std::vector<tcp::socket> silent;
  for (int i = 0; i < 8; ++i) {
    silent.emplace_back(own);
    silent.back().connect({asio::ip::make_address("127.0.0.1"), server->address().port});
  }
  // All places are taken now, until the idle limit frees them.
  bool served = false;
  for (int i = 0; i < 20 && !served; ++i) {
    served = await(context, http_json(server->address(), "/v1/swarm", "", 2s)).has_value();
    if (!served) std::this_thread::sleep_for(50ms);
  }
  EXPECT_TRUE(served);
}

TEST_F(Admin, PortInUseIsAClearError) {
  const auto second = AdminServer::open(context, server->address(), [] { return nlohmann::json(); });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::unavailable);
  EXPECT_NE(second.error().message.find("--admin"), std::string::npos);
}

TEST(HttpClient, NobodyListensAndNobodyAnswers) {
  asio::io_context context{1};
  const auto free = claim_port({"127.0.0.1", 0});
  ASSERT_TRUE(free);
  const auto refused = await(context, http_json(*free, "/", "", 5s));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::unavailable);

  tcp::acceptor silent(context, {asio::ip::make_address("127.0.0.1"), 0});
  const auto late = await(context, http_json({"127.0.0.1", silent.local_endpoint().port()}, "/", "", 200ms));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::timeout) << late.error().message;
}

/// Accepts one connection, reads the request's head, answers with fixed bytes.
HostPort one_answer(asio::io_context& context, std::string bytes, std::jthread& thread) {
  auto acceptor = std::make_shared<tcp::acceptor>(context, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0));
  const HostPort address{"127.0.0.1", acceptor->local_endpoint().port()};
  thread = std::jthread([acceptor, bytes = std::move(bytes)] {
    boost::system::error_code error;
    auto socket = acceptor->accept(error);
    std::string head;
    asio::read_until(socket, asio::dynamic_buffer(head), "\r\n\r\n", error);
    asio::write(socket, asio::buffer(bytes), error);
  });
  return address;
}

TEST(HttpClient, StreamsEvents) {
  asio::io_context context{1}, server{1};
  std::jthread thread;
  const auto address = one_answer(server,
                                  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  "11\r\ndata: {\"a\":1}\n\nda\r\n1b\r\nta: {\"a\":2}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n",
                                  thread);
  std::vector<std::string> got;
  const auto streamed =
      await(context, http_event_stream(address, "/v1/completions", "{}", 5s, [&](std::string_view data) { got.emplace_back(data); }));
  ASSERT_TRUE(streamed) << streamed.error().message;
  EXPECT_EQ(got, (std::vector<std::string>{"{\"a\":1}", "{\"a\":2}"}));
}

TEST(HttpClient, AnErrorInTheStreamIsAnError) {
  asio::io_context context{1}, server{1};
  std::jthread thread;
  const std::string body = "data: {\"error\":{\"code\":500,\"message\":\"Compute error.\"}}\n\n";
  const auto address = one_answer(server, "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body, thread);
  const auto streamed = await(context, http_event_stream(address, "/", "{}", 5s, [](std::string_view) {}));
  ASSERT_FALSE(streamed);
  EXPECT_NE(streamed.error().message.find("Compute error."), std::string::npos) << streamed.error().message;
}

TEST(HttpClient, QuotesTheServersMessage) {
  asio::io_context context{1}, server{1};
  std::jthread thread;
  const std::string body = R"({"error":{"code":401,"message":"Invalid API Key"}})";
  const auto address =
      one_answer(server, "HTTP/1.1 401 Unauthorized\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body, thread);
  const auto json = await(context, http_json(address, "/", "", 5s));
  ASSERT_FALSE(json);
  EXPECT_EQ(json.error().kind, ErrorKind::unauthorized);
  EXPECT_NE(json.error().message.find("Invalid API Key"), std::string::npos);
}

TEST(HttpClient, ATruncatedStreamIsAnError) {
  asio::io_context context{1}, server{1};
  std::jthread thread;
  const auto address = one_answer(server, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:", thread);
  EXPECT_FALSE(await(context, http_event_stream(address, "/", "{}", 5s, [](std::string_view) {})));
}

TEST(Address, ParsesAndPrints) {
  for (const char* text : {"127.0.0.1:80", "[::1]:7101", "host.example:1", "0.0.0.0:0"}) {
    const auto parsed = parse_host_port(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->text(), text);
  }
  for (const char* text : {"", ":80", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80", "[]:80", "host:80x"}) {
    EXPECT_FALSE(parse_host_port(text)) << text;
  }
  EXPECT_EQ(client_url({"0.0.0.0", 8080}), "http://127.0.0.1:8080");
  EXPECT_EQ(client_url({"::", 8080}), "http://[::1]:8080");
  EXPECT_EQ(parse_http_url("http://h:1/")->text(), "h:1");
  EXPECT_EQ(parse_http_url("h")->port, 80);
  EXPECT_FALSE(parse_http_url("https://h:1"));
  EXPECT_FALSE(parse_http_url("http://h:1/v1"));
}

TEST(Address, ClaimedPortsAreFreeAndBusyOnesSaySo) {
  const auto claimed = claim_port({"127.0.0.1", 0});
  ASSERT_TRUE(claimed);
  EXPECT_NE(claimed->port, 0);
  asio::io_context context;
  tcp::acceptor taken(context, {asio::ip::make_address("127.0.0.1"), claimed->port});
  const auto busy = claim_port(*claimed);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().kind, ErrorKind::unavailable);
  EXPECT_NE(busy.error().message.find("another program has it"), std::string::npos) << busy.error().message;
  EXPECT_FALSE(claim_port({"192.0.2.1", 0})) << "not an address of this machine";
}

TEST(Locate, VersionsOfTheEngine) {
  EXPECT_EQ(parse_llama_version("version: 0.7.0 (build 11669, commit Debian)\nbuilt with"), "0.7.0");
  EXPECT_EQ(parse_llama_version("llama-server: unknown"), "");
  EXPECT_TRUE(same_engine("0.7.0", "0.7.3"));
  EXPECT_FALSE(same_engine("0.7.0", "0.8.0"));
  EXPECT_FALSE(same_engine("0.7.0", "1.7.0"));
  EXPECT_FALSE(same_engine("0.7.0", "4567"));
  EXPECT_FALSE(same_engine("", ""));
}

TEST(Locate, MissingPartsAreNamed) {
  const auto server = find_llama_server("no-such-llama-server");
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().kind, ErrorKind::not_found);
  EXPECT_NE(server.error().message.find("install llama.cpp"), std::string::npos);
  const auto foreign = find_llama_server("/bin/true");
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().kind, ErrorKind::incompatible);
  EXPECT_FALSE(find_plugin("/no/such/plugin.so"));
  EXPECT_FALSE(existing_file("/", "the model"));
}

TEST(Locate, TheInstalledEngineIsTheOneThatWasBuiltFor) {
  const auto server = find_llama_server("llama-server");
  ASSERT_TRUE(server) << server.error().message;
}

}  // namespace
}  // namespace linkcpp::serve
