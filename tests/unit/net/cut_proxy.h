// A TCP proxy that a test can cut, freeze and shut: what networks do to connections.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "unit/net/harness.h"

namespace linkcpp::net {

/// Forwards connections to a port of this host, from a loop of its own.
class CutProxy {
  using Tcp = boost::asio::ip::tcp;

 public:
  explicit CutProxy(std::uint16_t to)
      : to_(boost::asio::ip::make_address("127.0.0.1"), to), acceptor_(loop_.context(), {boost::asio::ip::make_address("127.0.0.1"), 0}) {
    boost::asio::post(loop_.context(), [this] { accept(); });
  }
  ~CutProxy() {
    on_loop([this] {
      acceptor_.close();
      drop_all();
    });
  }
  [[nodiscard]] std::string address() const { return std::format("127.0.0.1:{}", acceptor_.local_endpoint().port()); }
  /// Resets what there is; new connections are taken.
  void cut() {
    on_loop([this] { drop_all(); });
  }
  /// What there is forwards nothing any more, and says nothing of it.
  void freeze() {
    on_loop([this] {
      for (auto& pair : pairs_) pair->frozen = true;
    });
  }
  /// New connections are reset while it is shut.
  void shut(bool yes) {
    on_loop([this, yes] { shut_ = yes; });
  }
  void to(std::uint16_t port) {
    on_loop([this, port] { to_.port(port); });
  }

 private:
  struct Pair {
    Tcp::socket near, far;
    bool frozen = false;
    explicit Pair(boost::asio::io_context& context) : near(context), far(context) {}
    void drop() {
      boost::system::error_code ignored;
      for (Tcp::socket* socket : {&near, &far}) {
        socket->set_option(boost::asio::socket_base::linger(true, 0), ignored);
        socket->close(ignored);
      }
    }
  };
  using PairPtr = std::shared_ptr<Pair>;

  void on_loop(const std::function<void()>& task) {
    std::promise<void> done;
    boost::asio::post(loop_.context(), [&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  void drop_all() {
    for (auto& pair : std::exchange(pairs_, {})) pair->drop();
  }
  void accept() {
    auto pair = std::make_shared<Pair>(loop_.context());
    acceptor_.async_accept(pair->near, [this, pair](const boost::system::error_code& error) {
      if (error) return;
      if (shut_) {
        pair->drop();
      } else {
        pairs_.push_back(pair);
        pair->far.async_connect(to_, [this, pair](const boost::system::error_code& failed) {
          if (failed) return pair->drop();
          pair->near.set_option(Tcp::no_delay(true));
          pair->far.set_option(Tcp::no_delay(true));
          pump(pair, pair->near, pair->far);
          pump(pair, pair->far, pair->near);
        });
      }
      accept();
    });
  }
  void pump(const PairPtr& pair, Tcp::socket& from, Tcp::socket& into) {
    auto buffer = std::make_shared<std::array<char, 16384>>();
    from.async_read_some(boost::asio::buffer(*buffer), [=, this, &from, &into](const boost::system::error_code& error, std::size_t n) {
      if (pair->frozen) return;
      if (error) return pair->drop();
      boost::asio::async_write(into, boost::asio::buffer(*buffer, n),
                               [=, this, &from, &into](const boost::system::error_code& failed, std::size_t) {
                                 if (failed) return pair->drop();
                                 pump(pair, from, into);
                               });
    });
  }

  Tcp::endpoint to_;
  std::list<PairPtr> pairs_;  // these four on the loop only
  bool shut_ = false;
  Loop loop_;
  Tcp::acceptor acceptor_;
};

}  // namespace linkcpp::net
