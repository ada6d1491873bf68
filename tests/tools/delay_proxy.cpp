// delay_proxy: a TCP relay that holds every byte back for a fixed time in each direction, and counts them.
//
// It models distance alone: no loss, no reordering, no limit on bandwidth. The TCP handshake itself is not delayed, and each half
// of a connection sees a nearby peer, so congestion windows open faster than on a real path: see docs/measurements.md.
#include <CLI/CLI.hpp>
#include <array>
#include <boost/asio.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using ErrorCode = boost::system::error_code;

/// Bytes held back for one direction before its source is no longer read: a gigabit path of half a second holds as much.
constexpr std::size_t max_held = 64u << 20;
constexpr std::size_t read_size = 64u << 10;

struct Counters {
  std::uint64_t connections = 0, bytes_out = 0, bytes_back = 0, chunks_out = 0, chunks_back = 0;
  [[nodiscard]] std::string json() const {
    return nlohmann::json{{"connections", connections},
                          {"bytes_out", bytes_out},
                          {"bytes_back", bytes_back},
                          {"chunks_out", chunks_out},
                          {"chunks_back", chunks_back}}
        .dump();
  }
};

/// One direction of a connection: reads, keeps each piece until its time has come, writes in order.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  Pump(std::shared_ptr<tcp::socket> from, std::shared_ptr<tcp::socket> to, Clock::duration delay, std::uint64_t& bytes,
       std::uint64_t& chunks)
      : from_(std::move(from)), to_(std::move(to)), timer_(from_->get_executor()), delay_(delay), bytes_(bytes), chunks_(chunks) {}

  void start() { read(); }

 private:
  struct Piece {
    Clock::time_point due;
    std::vector<std::byte> bytes;  ///< empty: the end of the stream
  };

  void read() {
    reading_ = true;
    from_->async_read_some(asio::buffer(buffer_),
                           [self = shared_from_this()](const ErrorCode& error, std::size_t n) { self->on_read(error, n); });
  }

  void on_read(const ErrorCode& error, std::size_t n) {
    reading_ = false;
    if (error && error != asio::error::eof) return fail();
    held_ += n;
    pieces_.push_back({Clock::now() + delay_, {buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(error ? 0 : n)}});
    if (!writing_) wait();
    if (!error && held_ < max_held) read();
    ended_ = ended_ || error;
  }

  void wait() {
    writing_ = true;
    timer_.expires_at(pieces_.front().due);
    timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
      if (!error) self->write();
    });
  }

  void write() {
    if (pieces_.front().bytes.empty()) {
      ErrorCode ignored;
      to_->shutdown(tcp::socket::shutdown_send, ignored);
      return;
    }
    asio::async_write(*to_, asio::buffer(pieces_.front().bytes), [self = shared_from_this()](const ErrorCode& error, std::size_t n) {
      if (error) return self->fail();
      self->on_written(n);
    });
  }

  void on_written(std::size_t n) {
    bytes_ += n;
    ++chunks_;
    held_ -= n;
    pieces_.pop_front();
    writing_ = false;
    if (!pieces_.empty()) wait();
    if (!reading_ && !ended_ && held_ < max_held) read();
  }

  /// A broken half breaks the whole connection, as a reset would.
  void fail() {
    ErrorCode ignored;
    from_->close(ignored);
    to_->close(ignored);
    timer_.cancel();
  }

  std::shared_ptr<tcp::socket> from_, to_;
  asio::steady_timer timer_;
  Clock::duration delay_;
  std::uint64_t& bytes_;
  std::uint64_t& chunks_;
  std::array<std::byte, read_size> buffer_{};
  std::deque<Piece> pieces_;
  std::size_t held_ = 0;
  bool reading_ = false, writing_ = false, ended_ = false;
};

class Proxy {
 public:
  Proxy(asio::io_context& context, const tcp::endpoint& listen, tcp::endpoint target, Clock::duration delay)
      : context_(context), acceptor_(context, listen), target_(std::move(target)), delay_(delay) {
    accept();
  }
  [[nodiscard]] tcp::endpoint address() const { return acceptor_.local_endpoint(); }
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  void accept() {
    acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (!error) connect(std::make_shared<tcp::socket>(std::move(socket)));
      accept();
    });
  }
  void connect(std::shared_ptr<tcp::socket> near) {
    auto far = std::make_shared<tcp::socket>(context_);
    far->async_connect(target_, [this, near, far](const ErrorCode& error) {
      if (error) return;  // both sockets close: the dialler sees its connection end
      ErrorCode ignored;
      near->set_option(tcp::no_delay(true), ignored);
      far->set_option(tcp::no_delay(true), ignored);
      ++counters_.connections;
      std::make_shared<Pump>(near, far, delay_, counters_.bytes_out, counters_.chunks_out)->start();
      std::make_shared<Pump>(far, near, delay_, counters_.bytes_back, counters_.chunks_back)->start();
    });
  }

  asio::io_context& context_;
  tcp::acceptor acceptor_;
  tcp::endpoint target_;
  Clock::duration delay_;
  Counters counters_;
};

tcp::endpoint resolve(asio::io_context& context, const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos) throw std::runtime_error("'" + address + "' is not HOST:PORT");
  return tcp::resolver(context).resolve(address.substr(0, colon), address.substr(colon + 1)).begin()->endpoint();
}

void write_stats(const std::string& path, const Counters& counters) {
  if (path.empty()) {
    std::printf("%s\n", counters.json().c_str());
    std::fflush(stdout);
  } else {
    std::ofstream(path) << counters.json() << '\n';
  }
}

/// SIGUSR1 shows the counters, SIGTERM and SIGINT show them and end.
void serve_signals(asio::signal_set& signals, asio::io_context& context, const Proxy& proxy, const std::string& stats) {
  signals.async_wait([&signals, &context, &proxy, stats](const ErrorCode& error, int signal) {
    if (error) return;
    write_stats(stats, proxy.counters());
    if (signal != SIGUSR1) return context.stop();
    serve_signals(signals, context, proxy, stats);
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::string listen, target, stats;
  double one_way_ms = 0;
  CLI::App app{"Relays TCP connections and delays every byte in each direction. Prints its address, and the bytes when it ends."};
  app.add_option("LISTEN", listen, "HOST:PORT to listen on; port 0 picks one")->required();
  app.add_option("TARGET", target, "HOST:PORT to relay to")->required();
  app.add_option("--one-way-ms", one_way_ms, "Delay in each direction; the round trip is twice that")->check(CLI::Range(0.0, 60000.0));
  app.add_option("--stats", stats, "File for the counters at the end (default: standard output)");
  CLI11_PARSE(app, argc, argv);
  try {
    asio::io_context context(1);
    const auto delay = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(one_way_ms));
    Proxy proxy(context, resolve(context, listen), resolve(context, target), delay);
    asio::signal_set signals(context, SIGTERM, SIGINT, SIGUSR1);
    serve_signals(signals, context, proxy, stats);
    std::printf("listening on 127.0.0.1:%u\n", proxy.address().port());
    std::fflush(stdout);
    context.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "delay_proxy: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
