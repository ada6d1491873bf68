// Two nodes with a QUIC link between them, and a box in the middle that loses, records and repeats datagrams.
#pragma once

#include <arpa/inet.h>
#include <poll.h>

#include <boost/asio/dispatch.hpp>
#include <functional>
#include <future>
#include <map>
#include <memory>

#include "net/quic_hub.h"
#include "unit/net/harness.h"

namespace linkcpp::net {

/// A UDP endpoint of one node, with mailboxes for what happens there.
struct QuicNode {
  std::shared_ptr<QuicEndpoint> endpoint;
  Mailbox<LinkPtr> links;
  Mailbox<Refusal> refusals;
  Mailbox<Error> failures;

  QuicNode(boost::asio::io_context& context, const Credentials& credentials, const LinkKnobs& knobs) {
    auto opened =
        QuicEndpoint::open(boost::asio::make_strand(context), {boost::asio::ip::make_address("127.0.0.1"), 0}, credentials, knobs);
    if (!opened) throw std::runtime_error(opened.error().message);
    endpoint = std::move(*opened);
  }
  template <class Task>
  void on_strand(Task task) {
    std::promise<void> done;
    boost::asio::post(endpoint->hub()->strand(), [&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  void accept() {
    on_strand([this] {
      endpoint->hub()->accept([this](std::shared_ptr<Connection> c) { links.put(make_link(std::move(c))); },
                              [this](const std::string& from, const Error& error) { refusals.put({from, error}); });
    });
  }
  /// `early`: runs on the strand with the new link, before anything else can happen.
  void dial(const Udp::endpoint& to, std::function<void(const LinkPtr&)> early = {}) {
    on_strand([&] {
      endpoint->hub()->dial(to, to_text(to), [this, early](Result<std::shared_ptr<Connection>> ready) {
        if (!ready) return failures.put(ready.error());
        auto link = make_link(std::move(*ready));
        if (early) early(link);
        links.put(std::move(link));
      });
    });
  }
  ~QuicNode() {
    on_strand([this] { endpoint->hub()->stop_accepting(); });
  }
};

/// Passes datagrams between clients and one server; `fate` says how often each is passed on (0 loses it).
class UdpBox {
 public:
  using Fate = std::function<int(bool to_server, ByteSpan datagram, std::size_t index)>;

  UdpBox(const Udp::endpoint& server, Fate fate) : fate_(std::move(fate)) {
    outside_ = open_socket();
    lead_to(server);
    thread_ = std::thread([this] { run(); });
  }
  ~UdpBox() {
    stopping_ = true;
    thread_.join();
    ::close(outside_);
    for (const auto& [port, fd] : inside_) ::close(fd);
  }
  [[nodiscard]] Udp::endpoint address() const {
    sockaddr_in own{};
    socklen_t length = sizeof own;
    ::getsockname(outside_, reinterpret_cast<sockaddr*>(&own), &length);
    return {boost::asio::ip::make_address("127.0.0.1"), ntohs(own.sin_port)};
  }
  /// Everything that went to the server so far.
  std::vector<Bytes> recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  void lead_to(const Udp::endpoint& server) {
    const std::lock_guard lock(mutex_);
    server_.sin_family = AF_INET;
    server_.sin_port = htons(server.port());
    server_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  void forget_recorded() {
    const std::lock_guard lock(mutex_);
    recorded_.clear();
  }
  std::atomic<std::size_t> bytes_to_server{0}, bytes_to_client{0};

 private:
  static int open_socket() {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int size = 4 << 20;
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) throw std::runtime_error("cannot bind");
    return fd;
  }
  void run() {
    std::array<std::byte, 65536> buffer;
    while (!stopping_) {
      std::vector<pollfd> all{{outside_, POLLIN, 0}};
      for (const auto& [port, fd] : inside_) all.push_back({fd, POLLIN, 0});
      if (::poll(all.data(), all.size(), 20) <= 0) continue;
      for (const pollfd& one : all) {
        if ((one.revents & POLLIN) == 0) continue;
        sockaddr_in from{};
        socklen_t length = sizeof from;
        const ssize_t n = ::recvfrom(one.fd, buffer.data(), buffer.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &length);
        if (n <= 0) continue;
        const ByteSpan datagram(buffer.data(), static_cast<std::size_t>(n));
        const bool to_server = one.fd == outside_;
        if (to_server) {
          if (!inside_.contains(from.sin_port)) {
            inside_[from.sin_port] = open_socket();
            clients_[from.sin_port] = from;
          }
          const std::lock_guard lock(mutex_);
          recorded_.emplace_back(datagram.begin(), datagram.end());
        }
        (to_server ? bytes_to_server : bytes_to_client) += datagram.size();
        for (int copies = fate_(to_server, datagram, index_++); copies > 0; --copies) pass(one.fd, from, datagram);
      }
    }
  }
  void pass(int fd, const sockaddr_in& from, ByteSpan datagram) {
    if (fd == outside_) {
      const std::lock_guard lock(mutex_);
      ::sendto(inside_[from.sin_port], datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&server_), sizeof server_);
      return;
    }
    for (const auto& [port, inner] : inside_) {
      if (inner != fd) continue;
      ::sendto(outside_, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr*>(&clients_[port]), sizeof(sockaddr_in));
    }
  }

  Fate fate_;
  int outside_ = -1;
  sockaddr_in server_{};
  std::map<in_port_t, int> inside_;
  std::map<in_port_t, sockaddr_in> clients_;
  std::size_t index_ = 0;
  std::mutex mutex_;
  std::vector<Bytes> recorded_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

/// A worker that dialled a backbone. `box`: what lies between.
struct QuicLinked {
  Nodes nodes;
  Loop backbone_loop, worker_loop;
  std::unique_ptr<QuicNode> host, guest;
  std::unique_ptr<UdpBox> box;
  LinkPtr backbone, worker;
  Recorder at_backbone, at_worker;

  explicit QuicLinked(UdpBox::Fate fate = {}, Nodes n = {}, int n_threads = 1)
      : nodes(std::move(n)), backbone_loop(n_threads), worker_loop(n_threads) {
    host = std::make_unique<QuicNode>(backbone_loop.context(), nodes.backbone_credentials(), nodes.knobs);
    guest = std::make_unique<QuicNode>(worker_loop.context(), nodes.worker_credentials(), nodes.knobs);
    host->accept();
    if (fate) box = std::make_unique<UdpBox>(host->endpoint->local(), std::move(fate));
    link();
  }
  [[nodiscard]] Udp::endpoint address() const { return box ? box->address() : host->endpoint->local(); }
  void link(std::function<void(const LinkPtr&)> early = {}) {
    guest->dial(address(), std::move(early));
    worker = guest->links.take().value_or(nullptr);
    if (!worker) throw std::runtime_error("the worker got no link");
    at_worker = {};
    worker->start(at_worker.handlers());
    backbone = host->links.take().value_or(nullptr);
    if (!backbone) throw std::runtime_error("the backbone got no link");
    at_backbone = {};
    backbone->start(at_backbone.handlers());
  }
};

}  // namespace linkcpp::net
