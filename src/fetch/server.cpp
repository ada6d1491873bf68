#include "fetch/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "fetch/proof.h"
#include "fetch/range.h"
#include "fetch/stream.h"
#include "net/endpoint.h"

namespace linkcpp::fetch {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using RequestParser = http::request_parser<http::empty_body>;

constexpr std::uint32_t max_request_head = 8u << 10;
constexpr std::size_t send_block = 256u << 10;
constexpr std::size_t max_counted_peers = 4096;

std::string_view plain(boost::beast::string_view text) { return {text.data(), text.size()}; }

/// One thread for each connection: they are few, long and busy, and reading files blocks anyway.
class ThreadedServer final : public SliceServer {
 public:
  ThreadedServer(SliceServerOptions options, std::shared_ptr<const net::TlsContext> context,
                 std::vector<std::shared_ptr<SliceProvider>> providers)
      : options_(std::move(options)), context_(std::move(context)), acceptor_(io_), providers_(std::move(providers)) {}

  ~ThreadedServer() override {
    stopping_ = true;
    const std::uint64_t one = 1;
    if (wake_ >= 0) (void)!::write(wake_, &one, sizeof one);
    if (thread_.joinable()) thread_.join();
    {
      const std::lock_guard lock(mutex_);
      for (auto& connection : connections_) connection.socket->shut();
    }
    for (auto& connection : connections_) connection.thread.join();  // only the accepting thread changed the list, and it has ended
    if (wake_ >= 0) ::close(wake_);
  }

  Result<> start() {
    auto endpoint = net::parse_endpoint(options_.listen);
    if (!endpoint) return pass(endpoint);
    boost::system::error_code error;
    const auto found =
        asio::ip::tcp::resolver(io_).resolve(endpoint->host, std::to_string(endpoint->port), asio::ip::tcp::resolver::passive, error);
    if (error || found.empty()) return fail(ErrorKind::invalid_input, "cannot listen on {}: {}", options_.listen, error.message());
    const asio::ip::tcp::endpoint address = *found.begin();
    acceptor_.open(address.protocol(), error);
    if (!error) acceptor_.set_option(asio::ip::tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(address, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) acceptor_.native_non_blocking(true, error);
    if (error) return fail(ErrorKind::io, "cannot listen on {}: {}", options_.listen, error.message());
    port_ = acceptor_.local_endpoint().port();
    address_ = net::Endpoint{endpoint->host, port_}.text();
    wake_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_ < 0) return fail(ErrorKind::io, "cannot make an event: {}", std::strerror(errno));
    thread_ = std::thread([this] { accept(); });
    return {};
  }

  [[nodiscard]] std::string address() const override { return address_; }
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  void add(std::shared_ptr<SliceProvider> provider) override {
    const std::lock_guard lock(mutex_);
    providers_.push_back(std::move(provider));
  }
  [[nodiscard]] Counters counters() const override {
    const std::lock_guard lock(mutex_);
    Counters result = counters_;
    result.connections = static_cast<std::uint64_t>(std::ranges::count_if(connections_, [](const Connection& c) { return !c.done; }));
    return result;
  }

 private:
  struct Connection {
    std::unique_ptr<Socket> socket;
    std::thread thread;
    std::optional<net::PeerKey> peer;  ///< that proved the secret
    std::atomic<bool> done{false};
  };

  void accept() {
    pollfd entries[2] = {{.fd = acceptor_.native_handle(), .events = POLLIN, .revents = 0}, {.fd = wake_, .events = POLLIN, .revents = 0}};
    while (!stopping_) {
      ::poll(entries, 2, 1000);  // wakes now and then to clear away what has ended
      reap();
      if (stopping_) return;
      const int fd = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        // Out of descriptors: the waiting connection would make this loop spin.
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      auto socket = std::make_unique<Socket>(fd);
      const std::lock_guard lock(mutex_);
      if (connections_.size() >= options_.max_connections) {
        ++counters_.refused;
        continue;
      }
      Connection& connection = connections_.emplace_back();
      connection.socket = std::move(socket);
      connection.thread = std::thread([this, &connection] {
        serve(connection);
        connection.socket->shut();
        connection.done = true;
      });
    }
  }

  void reap() {
    std::list<Connection> ended;
    {
      const std::lock_guard lock(mutex_);
      for (auto at = connections_.begin(); at != connections_.end();) {
        const auto here = at++;
        if (here->done) ended.splice(ended.end(), connections_, here);
      }
    }
    for (auto& connection : ended) connection.thread.join();
  }

  void refuse() {
    const std::lock_guard lock(mutex_);
    ++counters_.refused;
  }

  void serve(Connection& connection) {
    const auto deadline = Clock::now() + options_.handshake_deadline;
    auto stream = NodeStream::handshake(*connection.socket, context_, net::TlsSide::server, options_.handshake_deadline);
    if (!stream) return refuse();
    Bytes buffer(max_request_head), block;
    std::size_t held = 0;
    for (bool first = true; !stopping_; first = false) {
      RequestParser parser;
      parser.header_limit(max_request_head);
      const auto until = first ? deadline : Clock::now() + options_.idle_limit;
      if (!receive(**stream, parser, buffer, held, until)) {
        if (first) refuse();
        break;
      }
      if (!answer(connection, **stream, parser, block)) break;
    }
    (*stream)->farewell();
  }

  /// A whole request head. False: there is none, or it is malformed.
  static bool receive(NodeStream& stream, RequestParser& parser, Bytes& buffer, std::size_t& held, Clock::time_point until) {
    boost::system::error_code error;
    while (!parser.is_done()) {
      if (held > 0) {
        const std::size_t n = parser.put(asio::buffer(buffer.data(), held), error);
        if (error && error != http::error::need_more) return false;
        std::memmove(buffer.data(), buffer.data() + n, held - n);
        held -= n;
        if (parser.is_done()) return true;
      }
      const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now());
      if (held == buffer.size() || left.count() <= 0) return false;
      auto got = stream.read(std::span(buffer).subspan(held), left);
      if (!got || *got == 0) return false;
      held += *got;
    }
    return true;
  }

  bool reply(NodeStream& stream, std::string_view status, std::string_view extra, std::string_view body, bool head) const {
    std::string text = std::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n{}\r\n", status, body.size(), extra);
    if (!head) text += body;
    return stream.write(std::as_bytes(std::span(text)), options_.stall_limit).has_value();
  }

  /// False: the connection ends.
  bool answer(Connection& connection, NodeStream& stream, const RequestParser& parser, Bytes& block) {
    const auto& request = parser.get();
    const bool head = request.method() == http::verb::head;
    if (!connection.peer && !admit(connection, stream, plain(request[http::field::authorization]))) {
      reply(stream, "401 Unauthorized", "WWW-Authenticate: Linkcpp\r\nConnection: close\r\n",
            "the join token's proof is missing or wrong\n", head);
      return false;
    }
    if (!head && request.method() != http::verb::get) {
      reply(stream, "405 Method Not Allowed", "Allow: GET, HEAD\r\nConnection: close\r\n", "only GET and HEAD\n", head);
      return false;
    }
    const std::string_view target = plain(request.target());
    for (const auto& [prefix, slices] : {std::pair<std::string_view, bool>{"/v1/slices/", true}, {"/v1/indexes/", false}}) {
      if (!target.starts_with(prefix)) continue;
      const auto digest = wire::digest_from_hex(target.substr(prefix.size()));
      if (!digest) break;
      return (slices ? send_slice(connection, stream, *digest, plain(request[http::field::range]), head, block)
                     : send_index(stream, *digest, head)) &&
             request.keep_alive();
    }
    return reply(stream, "404 Not Found", "", "there is nothing of that name\n", head) && request.keep_alive();
  }

  bool admit(Connection& connection, NodeStream& stream, std::string_view value) {
    const net::PeerKey peer = stream.session().peer();
    const bool proved = authorized(value, stream.session(), options_.credentials.secret, peer);
    const std::lock_guard lock(mutex_);
    const auto others =
        static_cast<std::size_t>(std::ranges::count_if(connections_, [&](const Connection& c) { return !c.done && c.peer == peer; }));
    if (!proved || others >= options_.max_connections_per_peer) {
      ++counters_.refused;
      return false;
    }
    connection.peer = peer;
    return true;
  }

  [[nodiscard]] std::vector<std::shared_ptr<SliceProvider>> providers() const {
    const std::lock_guard lock(mutex_);
    return providers_;
  }

  void count(const net::PeerKey& peer, std::uint64_t requests, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (counters_.peers.size() >= max_counted_peers && !counters_.peers.contains(peer)) return;
    auto& entry = counters_.peers[peer];
    entry.requests += requests;
    entry.bytes += bytes;
  }

  bool send_slice(const Connection& connection, NodeStream& stream, const store::Digest& digest, std::string_view header, bool head,
                  Bytes& block) {
    count(*connection.peer, 1, 0);
    for (const auto& provider : providers()) {
      const auto size = provider->bytes_of(digest);
      if (!size) continue;
      ByteRange range;
      const RangeVerdict verdict = parse_range(header, *size, range);
      if (verdict == RangeVerdict::unsatisfiable) {
        return reply(stream, "416 Range Not Satisfiable", std::format("Content-Range: bytes */{}\r\n", *size), "", head);
      }
      std::string text =
          std::format("HTTP/1.1 {}\r\nContent-Type: application/octet-stream\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n",
                      verdict == RangeVerdict::part ? "206 Partial Content" : "200 OK", range.bytes);
      if (verdict == RangeVerdict::part)
        text += std::format("Content-Range: bytes {}-{}/{}\r\n", range.offset, range.offset + range.bytes - 1, *size);
      text += "\r\n";
      if (!stream.write(std::as_bytes(std::span(text)), options_.stall_limit)) return false;
      return head || send_bytes(*connection.peer, stream, *provider, digest, range, block);
    }
    return reply(stream, "404 Not Found", "", "this slice is not here\n", head);
  }

  /// A file that cannot be read ends the connection: the client sees that bytes are missing.
  bool send_bytes(const net::PeerKey& peer, NodeStream& stream, const SliceProvider& provider, const store::Digest& digest, ByteRange range,
                  Bytes& block) {
    block.resize(static_cast<std::size_t>(std::max<std::uint64_t>(block.size(), std::min<std::uint64_t>(range.bytes, send_block))));
    while (range.bytes > 0) {
      const auto part = std::span(block).first(static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), range.bytes)));
      if (stopping_ || !provider.read(digest, range.offset, part) || !stream.write(part, options_.stall_limit)) return false;
      count(peer, 0, part.size());
      range.offset += part.size();
      range.bytes -= part.size();
    }
    return true;
  }

  bool send_index(NodeStream& stream, const store::Digest& digest, bool head) const {
    for (const auto& provider : providers()) {
      if (auto text = provider->index(digest)) return reply(stream, "200 OK", "Content-Type: application/json\r\n", *text, head);
    }
    return reply(stream, "404 Not Found", "", "this index is not here\n", head);
  }

  const SliceServerOptions options_;
  std::shared_ptr<const net::TlsContext> context_;
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  std::string address_;
  std::uint16_t port_ = 0;
  int wake_ = -1;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<SliceProvider>> providers_;
  std::list<Connection> connections_;
  Counters counters_;
  std::thread thread_;
};

}  // namespace

std::uint64_t SliceServer::Counters::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [key, peer] : peers) sum += peer.bytes;
  return sum;
}

Result<std::unique_ptr<SliceServer>> SliceServer::open(SliceServerOptions options, std::vector<std::shared_ptr<SliceProvider>> providers) {
  auto context = net::TlsContext::create(options.credentials.identity, std::nullopt);
  if (!context) return pass(context);
  auto server = std::make_unique<ThreadedServer>(std::move(options), std::move(*context), std::move(providers));
  if (auto started = server->start(); !started) return pass(started);
  return server;
}

}  // namespace linkcpp::fetch
