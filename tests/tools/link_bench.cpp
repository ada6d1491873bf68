// link_bench: times exchanges over links as the product makes them: a dispatch goes out, a combine comes back.
//
//   link_bench serve --home DIR (--listen ADDRESS | --dial ADDRESS...)     answers, as a worker
//   link_bench ask --home DIR (ADDRESS... | --listen ADDRESS --links N)    asks, as a backbone, and prints one JSON object
//
// Addresses go to net::Listener and net::Dialer as they are, whatever scheme they have. Both sides find the backbone's key and the secret
// in DIR, which the server makes (so start it first, and wait for "ready"). Several links are one star: an exchange has ended when all have
// answered. With --punch on both sides they look for a direct path once they are linked, and take it. The body of a dispatch begins with
// what is wanted; see support/bench_frames.h.
#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <cstdio>
#include <deque>
#include <format>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/driver.h"
#include "net/transport.h"
#include "support/bench_answering.h"
#include "support/bench_frames.h"
#include "support/bench_leg.h"
#include "support/bench_punch.h"
#include "support/bench_report.h"
#include "support/bench_resume.h"

namespace {

using namespace linkcpp;
using bench::Clock;
using bench::Leg;
using bench::Milliseconds;
using bench::Spoke;
using nlohmann::json;

struct Options {
  std::string home, listen, punch;
  std::vector<std::string> addresses, hedges;
  std::size_t out = 12'288, back = 12'288, links = 1;
  std::uint32_t compute_us = 0;
  int count = 100, warm_up = 10, redials = 0;
  double pause_ms = 0, rtt_ms = 0, deadline_s = 60, limit_s = 600, keep_warm_ms = 100, handshake_s = 10;
  std::string congestion_control = "cubic", quic_congestion_control = net::LinkKnobs().quic_congestion_control;
  net::EchoMode quic_echo = net::LinkKnobs().quic_echo;
  bool no_mask = false;
};

net::LinkKnobs knobs_of(const Options& options) {
  net::LinkKnobs knobs;
  knobs.congestion_control = options.congestion_control;
  knobs.quic_congestion_control = options.quic_congestion_control;
  knobs.quic_echo = options.quic_echo;
  knobs.websocket_mask = !options.no_mask;
  knobs.handshake_deadline = std::chrono::milliseconds(static_cast<std::int64_t>(options.handshake_s * 1000));
  // "Never" is longer than any run: the link still has to be able to tell that the peer is gone.
  const bool never = options.keep_warm_ms <= 0;
  knobs.keep_warm = never ? std::chrono::hours(1) : std::chrono::milliseconds(static_cast<std::int64_t>(options.keep_warm_ms));
  if (never) knobs.silence_limit = std::chrono::hours(2);
  return knobs;
}

int complain(const Error& error) {
  std::fprintf(stderr, "link_bench: error: %s\n", error.message.c_str());
  return 1;
}

void warn(const std::string& what) { std::fprintf(stderr, "link_bench: %s\n", what.c_str()); }

/// Answers the offers of one asker at a time.
Result<std::unique_ptr<bench::Punching>> be_punched(const Options& options, net::Driver& driver, const net::Credentials& worker,
                                                    bench::Answering& answering) {
  const auto asker = std::make_shared<std::weak_ptr<net::Link>>();
  auto punching = bench::Punching::open(driver.context(), worker, knobs_of(options), options.punch, false,
                                        {.send =
                                             [asker](Bytes frame) {
                                               if (const auto link = asker->lock()) link->send(std::move(frame));
                                             },
                                         .on_direct = [&answering](const net::LinkPtr& link) { answering.take(link); }});
  if (!punching) return punching;
  answering.on_other([asker, punching = punching->get()](const std::weak_ptr<net::Link>& link, const wire::FrameView& frame) {
    *asker = link;
    punching->received(frame);
  });
  return punching;
}

int serve(const Options& options) {
  auto backbone = net::backbone_credentials(options.home);
  if (!backbone) return complain(backbone.error());
  auto identity = net::Identity::generate();
  if (!identity) return complain(identity.error());
  const net::Credentials worker{
      .identity = *identity, .secret = backbone->secret, .expected_peer = backbone->identity.key(), .is_backbone = false};
  net::Driver driver;
  bench::Answering answering(driver.context());
  std::unique_ptr<bench::Punching> punching;
  if (!options.punch.empty()) {
    auto opened = be_punched(options, driver, worker, answering);
    if (!opened) return complain(opened.error());
    punching = std::move(*opened);
  }
  std::unique_ptr<net::Listener> listener;
  std::vector<std::unique_ptr<net::Dialer>> dialers;
  if (!options.listen.empty()) {
    auto opened = net::Listener::open(
        driver.context(), options.listen, worker, knobs_of(options), [&](net::LinkPtr link) { answering.take(link); },
        [](const std::string& endpoint, const Error& error) { warn(std::format("refused {}: {}", endpoint, error.message)); });
    if (!opened) return complain(opened.error());
    listener = std::move(*opened);
  }
  for (const std::string& address : options.addresses) {
    dialers.push_back(net::Dialer::start(
        driver.context(), {address}, worker, knobs_of(options), [&](net::LinkPtr link) { answering.take(link); },
        [](const Error& error) { warn(error.message); }));
  }
  bool stopped = false;
  boost::asio::signal_set signals(driver.context(), SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code& error, int) { stopped = !error; });
  std::printf("ready %s\n", listener ? listener->address().c_str() : "");
  std::fflush(stdout);
  driver.run_until([&] { return stopped; }, Clock::time_point::max());
  dialers.clear();
  listener.reset();
  driver.run_exclusive([&] {
    answering.drop();
    punching.reset();
  });
  return 0;
}

class Asking {
 public:
  explicit Asking(const Options& options) : options_(options) {}

  Result<json> run() {
    auto backbone = net::backbone_credentials(options_.home);
    if (!backbone) return pass(backbone);
    credentials_ = std::move(*backbone);
    const auto& hedges = options_.hedges;
    for (std::size_t i = 0; i < options_.addresses.size(); ++i)
      spokes_.emplace_back(options_.addresses[i], hedges.empty() ? std::nullopt : std::optional(hedges[i % hedges.size()]));
    if (!options_.listen.empty()) {
      for (std::size_t i = 0; i < options_.links; ++i) spokes_.emplace_back("accepted", std::nullopt);
    }
    auto result = measure();
    listener_.reset();
    drop_all();
    driver_.run_exclusive([this] { punching_.reset(); });
    return result;
  }

 private:
  template <class Use>
  void each_leg(Use use) {
    for (Spoke& spoke : spokes_) spoke.each(use);
  }
  void drop_all() {
    driver_.run_exclusive([this] { each_leg([](Leg& leg) { leg.drop(); }); });
  }
  [[nodiscard]] Clock::duration deadline() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.deadline_s));
  }
  std::string why() {
    std::string text;
    each_leg([&](const Leg& leg) {
      if (!leg.failure().empty()) text += std::format("; {}: {}", leg.address(), leg.failure());
    });
    return text;
  }

  /// What all links together have used so far.
  struct Used {
    std::uint64_t sent = 0, received = 0, client_us = 0, servers_us = 0;
  };
  Used used() {
    Used sum{.client_us = bench::cpu_us()};
    driver_.run_exclusive([&] {
      each_leg([&](const Leg& leg) {
        sum.sent += leg.bytes_sent(), sum.received += leg.bytes_received(), sum.servers_us += leg.server_cpu_us();
      });
    });
    return sum;
  }

  Result<json> measure() {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.limit_s));
    auto cold = begin_links();
    if (!cold) return pass(cold);
    if (!options_.punch.empty()) {
      if (auto punched = punch(); !punched) return pass(punched);
    }
    for (int i = 0; i < options_.warm_up; ++i) {
      if (auto warm = exchange(false); !warm) return pass(warm);
    }
    driver_.run_exclusive([this] {
      for (Spoke& spoke : spokes_) spoke.reset();
    });
    const Used before = used();
    std::vector<double> times;
    while (static_cast<int>(times.size()) < options_.count && Clock::now() < end) {
      pause();
      auto took = exchange(true);
      if (!took) return pass(took);
      times.push_back(*took);
    }
    json result = figures(times, before, used());
    result["cold"] = *cold;
    driver_.run_exclusive([&] {
      if (punching_) result["punch"] = punching_->described();
    });
    if (options_.redials > 0) {
      auto again = redials();
      if (!again) return pass(again);
      result["redials"] = *again;
    }
    return result;
  }

  /// Moves the one link to a direct path; where none is found, it stays as it is.
  Result<> punch() {
    Leg& leg = spokes_.front().leg();
    auto opened = bench::Punching::open(driver_.context(), credentials_, knobs_of(options_), options_.punch, true,
                                        {.send = [&leg](Bytes frame) { leg.send(std::move(frame)); },
                                         .on_direct = [&leg](net::LinkPtr link) { leg.become(std::move(link)); }});
    if (!opened) return pass(opened);
    punching_ = std::move(*opened);
    driver_.run_exclusive([&] {
      leg.on_other([this](const wire::FrameView& frame) { punching_->received(frame); });
      punching_->start();
    });
    constexpr auto handshake = std::chrono::seconds(1);
    const auto patience = net::PathFinderKnobs().punch.deadline + handshake;
    driver_.run_until([this] { return punching_->found(); }, Clock::now() + patience);
    return {};
  }

  /// Times from the call that dials to the first answer: as a stranger each time, and with the tickets of an earlier connection.
  Result<json> redials() {
    json result{{"cold_ms", json::array()}, {"resumed_ms", json::array()}};
    const auto knobs = knobs_of(options_);
    for (int i = 0; i < options_.redials; ++i) {
      auto took = redial([&](Leg& leg) { leg.dial(driver_.context(), credentials_, knobs); });
      if (!took) return pass(took);
      result["cold_ms"].push_back(*took);
    }
    if (spokes_.size() != 1 || !options_.addresses.front().starts_with(bench::Resuming::scheme)) return result;
    auto resuming = bench::Resuming::open(driver_.context(), credentials_, knobs, options_.addresses.front());
    if (!resuming) return pass(resuming);
    for (int i = 0; i <= options_.redials; ++i) {
      auto took = redial([&](Leg& leg) { (*resuming)->dial(leg); });
      if (!took) return pass(took);
      if (i > 0) result["resumed_ms"].push_back(*took);  // the first only got a ticket
    }
    return result;
  }
  template <class Dial>
  Result<double> redial(Dial dial) {
    // Tickets come behind the first answer, and an end is on its way as long as anything else.
    const auto rest = std::max(Milliseconds(20), Milliseconds(3 * options_.rtt_ms));
    const auto wait = [&] { driver_.run_until([] { return false; }, Clock::now() + std::chrono::duration_cast<Clock::duration>(rest)); };
    drop_all();
    wait();
    auto took = exchange(false, [&] { each_leg(dial); });
    wait();
    return took;
  }

  json figures(const std::vector<double>& times, const Used& before, const Used& after) {
    json result{{"out", options_.out},
                {"back", options_.back},
                {"pause_ms", options_.pause_ms},
                {"asked_for", options_.count},
                {"complete", static_cast<int>(times.size()) == options_.count},
                {"ms", bench::summary(times)},
                {"bytes", {{"sent", after.sent - before.sent}, {"received", after.received - before.received}}},
                {"cpu_s",
                 {{"client", static_cast<double>(after.client_us - before.client_us) * 1e-6},
                  {"servers", static_cast<double>(after.servers_us - before.servers_us) * 1e-6}}},
                {"congestion_control", net::congestion_control_in_force(knobs_of(options_))},
                {"exchanges_ms", times}};
    if (options_.rtt_ms > 0) result["rtt_ms"] = options_.rtt_ms, result["in_rtt"] = bench::summary(times, options_.rtt_ms);
    driver_.run_exclusive([&] {
      for (const Spoke& spoke : spokes_) result["links"].push_back(spoke.described());
    });
    return result;
  }

  Result<> listen(const net::LinkKnobs& knobs) {
    auto opened = net::Listener::open(
        driver_.context(), options_.listen, credentials_, knobs, [this](net::LinkPtr link) { accept(std::move(link)); },
        [](const std::string& endpoint, const Error& error) { warn(std::format("refused {}: {}", endpoint, error.message)); });
    if (!opened) return pass(opened);
    listener_ = std::move(*opened);
    std::fprintf(stderr, "listening on %s\n", listener_->address().c_str());
    return {};
  }
  void accept(net::LinkPtr link) {
    for (Spoke& spoke : spokes_) {
      if (!spoke.leg().linked()) return spoke.leg().take(std::move(link));
    }
    link->close({ErrorKind::unavailable, "all links are there already"});
  }

  /// Makes all links, and one exchange. Times count from the first call that could dial.
  Result<json> begin_links() {
    const auto knobs = knobs_of(options_);
    const auto begin = Clock::now();
    if (options_.listen.empty()) {
      driver_.run_exclusive([&] { each_leg([&](Leg& leg) { leg.dial(driver_.context(), credentials_, knobs); }); });
    } else if (!listener_) {
      if (auto opened = listen(knobs); !opened) return pass(opened);
    }
    const auto linked = [&] {
      bool all = true;
      each_leg([&](const Leg& leg) { all = all && leg.linked(); });
      return all;
    };
    if (!driver_.run_until(linked, begin + deadline()))
      return fail(ErrorKind::timeout, "no link within {} s{}", options_.deadline_s, why());
    Clock::time_point last = begin;
    each_leg([&](const Leg& leg) { last = std::max(last, leg.linked_at()); });
    auto first = exchange(false);
    if (!first) return pass(first);
    return json{{"link_ms", Milliseconds(last - begin).count()},
                {"first_exchange_ms", *first},
                {"first_answer_ms", Milliseconds(Clock::now() - begin).count()}};
  }

  void pause() {
    if (options_.pause_ms <= 0) return;
    const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(Milliseconds(options_.pause_ms));
    driver_.run_until([] { return false; }, until);
  }

  /// Milliseconds until all have answered. `meanwhile` runs when all are asked, perhaps before there is a link.
  Result<double> exchange(bool may_hedge, const std::function<void()>& meanwhile = [] {}) {
    const std::uint64_t request = ++last_request_;
    const auto frame = std::make_shared<const Bytes>(bench::dispatch_frame(
        request, options_.out, {.back = static_cast<std::uint32_t>(options_.back), .compute_us = options_.compute_us}));
    const auto hopeless = Clock::now() + deadline();
    driver_.run_exclusive([&] {
      for (Spoke& spoke : spokes_) spoke.ask(request, frame, may_hedge);
      meanwhile();
    });
    while (!driver_.run_until([this] { return std::ranges::all_of(spokes_, &Spoke::answered); }, next_hedge(hopeless))) {
      const auto now = Clock::now();
      if (now >= hopeless) return fail(ErrorKind::timeout, "an exchange had no answer within {} s{}", options_.deadline_s, why());
      driver_.run_exclusive([&] {
        for (Spoke& spoke : spokes_) spoke.hedge_if_due(now);
      });
    }
    double longest = 0;
    driver_.run_exclusive([&] {
      for (Spoke& spoke : spokes_) longest = std::max(longest, spoke.finish());
    });
    return longest;
  }
  Clock::time_point next_hedge(Clock::time_point otherwise) {
    driver_.run_exclusive([&] {
      for (const Spoke& spoke : spokes_) otherwise = std::min(otherwise, spoke.hedge_at().value_or(otherwise));
    });
    return otherwise;
  }

  const Options& options_;
  net::Credentials credentials_;
  net::Driver driver_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<bench::Punching> punching_;
  std::deque<Spoke> spokes_;  ///< which callbacks point at
  std::uint64_t last_request_ = 0;
};

int ask(const Options& options) {
  if (options.addresses.empty() == options.listen.empty())
    return complain({ErrorKind::invalid_input, "give addresses to dial, or --listen ADDRESS"});
  if (options.addresses.size() != 1 && (!options.punch.empty() || options.redials > 0))
    return complain({ErrorKind::invalid_input, "--punch and --redials are for one address to dial"});
  auto result = Asking(options).run();
  if (!result) return complain(result.error());
  std::printf("%s\n", result->dump().c_str());
  return 0;
}

void add_link_options(CLI::App& command, Options& options) {
  command.add_option("--home", options.home, "Folder of the backbone's key and secret; the same for both sides")->required();
  command.add_option("--keep-warm-ms", options.keep_warm_ms, "Pause after which a link pings; 0: never")->capture_default_str();
  command.add_option("--congestion-control", options.congestion_control, "Of TCP, best effort")->capture_default_str();
  command.add_option("--quic-congestion-control", options.quic_congestion_control, "cubic, bbr or reno")->capture_default_str();
  command.add_option("--quic-echo", options.quic_echo, "Whether small flights are sent twice: off, adaptive (after losses) or always")
      ->transform(CLI::CheckedTransformer(std::map<std::string, net::EchoMode>{
          {"off", net::EchoMode::off}, {"adaptive", net::EchoMode::adaptive}, {"always", net::EchoMode::always}}));
  command.add_flag("--no-websocket-mask", options.no_mask, "Masks with a key of zeros");
  command.add_option("--punch", options.punch, "Look for a direct path, first of all; HOST:PORT answers STUN (a relay)");
  command.add_option("--handshake-s", options.handshake_s, "Deadline of one attempt to link")->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Times exchanges over links."};
  app.require_subcommand(1);
  auto* server = app.add_subcommand("serve", "Answers, as a worker; prints \"ready ADDRESS\" and ends with a signal");
  add_link_options(*server, options);
  server->add_option("--listen", options.listen, "Address to listen on");
  server->add_option("--dial", options.addresses, "Addresses to dial instead");
  auto* client = app.add_subcommand("ask", "Asks, as a backbone, and prints what it took as JSON");
  add_link_options(*client, options);
  client->add_option("ADDRESS", options.addresses, "Whom to dial; several are asked at once and awaited together");
  client->add_option("--listen", options.listen, "Be dialled instead, at this address");
  client->add_option("--links", options.links, "With --listen: how many links to wait for")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  client->add_option("--hedge", options.hedges, "A second address for each ADDRESS, asked after the 95th percentile of what was seen");
  const auto sizes = CLI::Range(std::size_t{8}, std::size_t{wire::max_frame_body});
  client->add_option("--out", options.out, "Bytes of a dispatch's body")->check(sizes)->capture_default_str();
  client->add_option("--back", options.back, "Bytes of the answer's body")->check(sizes)->capture_default_str();
  client->add_option("--compute-us", options.compute_us, "How long the server waits before it answers")->capture_default_str();
  client->add_option("--count", options.count, "Exchanges")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  client->add_option("--warm-up", options.warm_up, "Exchanges before those that count")->capture_default_str();
  client->add_option("--pause-ms", options.pause_ms, "Before each exchange")->capture_default_str();
  client
      ->add_option("--redials", options.redials,
                   "Links made anew at the end, each with one exchange; with quic:// as many again that resume")
      ->capture_default_str();
  client->add_option("--rtt-ms", options.rtt_ms, "The path's round trip, to give times in it");
  client->add_option("--deadline-s", options.deadline_s, "For links, and for each exchange")->capture_default_str();
  client->add_option("--limit-s", options.limit_s, "Stops after this with what it has")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return client->parsed() ? ask(options) : serve(options);
}
