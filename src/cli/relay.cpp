// `linkcpp relay`: lets nodes meet that cannot reach each other.
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "net/endpoint.h"
#include "relay/admin.h"
#include "relay/server.h"
#include "serve/address.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

namespace asio = boost::asio;
using nlohmann::json;
using relay::Counters;
using relay::Event;

struct RelayOptions {
  std::string home, allow_file, admin;
  std::vector<std::string> allow;
  bool open = false, json = false, quiet = false;
  double status_s = 60;
  relay::ServerOptions server;
};

Result<> fill_access(RelayOptions& options) {
  for (const std::string& text : options.allow) {
    const auto key = net::parse_key(text);
    if (!key) return std::unexpected(Error{ErrorKind::invalid_input, std::format("--allow: {}", key.error().message)});
    options.server.access.allow(*key);
  }
  if (!options.allow_file.empty()) {
    if (auto read = options.server.access.allow_file(options.allow_file); !read) return read;
  }
  if (options.open) options.server.access.allow_all();
  if (!options.server.access.nobody()) return {};
  return fail(ErrorKind::invalid_input,
              "nobody could use this relay: name the backbones with --allow KEY or --allow-file FILE, or let everybody use it with --open "
              "(a backbone that is refused is told its key)");
}

/// Each link takes two sockets and four ends of pipes.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

const char* name_of(Event::What what) {
  switch (what) {
    case Event::What::node_came:
      return "node_came";
    case Event::What::node_left:
      return "node_left";
    case Event::What::refused:
      return "refused";
    case Event::What::link_began:
      return "link_began";
    case Event::What::link_ended:
      return "link_ended";
  }
  return "event";
}

const char* words_of(Event::What what) {
  switch (what) {
    case Event::What::node_came:
      return "came";
    case Event::What::node_left:
      return "left";
    case Event::What::refused:
      return "refused";
    case Event::What::link_began:
      return "linked";
    case Event::What::link_ended:
      return "link ended";
  }
  return "";
}

/// One line a happening: JSON on standard output, or words on standard error.
class Reporter {
 public:
  explicit Reporter(const RelayOptions& options) : options_(options) {}

  void event(const Event& event) const {
    if (options_.json)
      return print(json{{"event", name_of(event.what)}, {"endpoint", event.endpoint}, {"who", event.who}, {"why", event.why}});
    if (options_.quiet) return;
    std::string text = words_of(event.what);
    for (const std::string& part : {event.who, event.endpoint}) {
      if (!part.empty()) text += "  " + part;
    }
    if (!event.why.empty()) text += "  (" + event.why + ")";
    std::fprintf(stderr, "%s\n", serve::printable(text).c_str());
  }

  void counters(const Counters& counters) const {
    if (options_.json) {
      json line = json::parse(relay::json_text(counters));
      line["event"] = "counters";
      return print(line);
    }
    if (options_.quiet) return;
    std::fprintf(stderr, "%llu nodes of %llu swarms, %llu links, %s passed on\n", static_cast<unsigned long long>(counters.nodes_now),
                 static_cast<unsigned long long>(counters.swarms_now), static_cast<unsigned long long>(counters.links_now),
                 serve::human_bytes(static_cast<double>(counters.bytes)).c_str());
  }

  void ready(const relay::Server& server, const std::string& admin) const {
    const auto addresses = reached_at(server);
    if (options_.json) {
      return print(json{{"event", "ready"},
                        {"listen", server.address()},
                        {"key", net::key_text(server.key())},
                        {"addresses", addresses},
                        {"admin", admin}});
    }
    std::printf("relay ready on %s\n", server.address().c_str());
    std::fflush(stdout);
    if (options_.quiet) return;
    std::fprintf(stderr, "Nodes reach it at\n");
    for (const std::string& address : addresses) std::fprintf(stderr, "  %s\n", address.c_str());
    std::fprintf(stderr, "%s may use it.\n",
                 options_.server.access.open() ? "Every backbone" : std::format("{} backbones", options_.server.access.size()).c_str());
    if (!admin.empty()) std::fprintf(stderr, "Counters: http://%s/metrics\n", admin.c_str());
  }

 private:
  static std::vector<std::string> reached_at(const relay::Server& server) {
    const auto bound = net::parse_endpoint(server.address());
    std::vector<std::string> hosts{bound->host};
    if (bound->host == "0.0.0.0" || bound->host == "::") hosts = serve::local_addresses();
    std::vector<std::string> addresses;
    for (const std::string& host : hosts) {
      addresses.push_back(net::Address{.scheme = net::Scheme::relay, .endpoint = {host, bound->port}, .relay_key = server.key()}.text());
    }
    return addresses;
  }
  static void print(const json& line) {
    std::printf("%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }
  const RelayOptions& options_;
};

/// Calls `action` every `pause`, until it returns false.
class Ticker {
 public:
  Ticker(asio::io_context& context, std::chrono::milliseconds pause, std::function<bool()> action)
      : timer_(context), pause_(pause), action_(std::move(action)) {
    next();
  }

 private:
  void next() {
    timer_.expires_after(pause_);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error && action_()) next();
    });
  }
  asio::steady_timer timer_;
  std::chrono::milliseconds pause_;
  std::function<bool()> action_;
};

int run(RelayOptions options) {
  if (auto filled = fill_access(options); !filled) return report(filled.error());
  auto identity = net::Identity::load_or_create(net::home_folder(options.home));
  if (!identity) return report(identity.error());
  raise_file_limit();
  watch_interrupts();
  asio::io_context context(1);
  const Reporter reporter(options);
  auto server =
      relay::Server::open(context, std::move(*identity), options.server, [&reporter](const Event& event) { reporter.event(event); });
  if (!server) return report(server.error());
  std::unique_ptr<relay::Admin> admin;
  if (!options.admin.empty()) {
    auto opened = relay::Admin::open(context, options.admin, [&server](std::function<void(std::string)> then) {
      (*server)->ask_counters([then = std::move(then)](const Counters& counters) { then(relay::prometheus_text(counters)); });
    });
    if (!opened) return report(opened.error());
    admin = std::move(*opened);
  }
  reporter.ready(**server, admin ? admin->address() : "");
  const auto tell = [&] {
    if (*server) (*server)->ask_counters([&reporter](const Counters& counters) { reporter.counters(counters); });
  };
  const Ticker status(context, std::chrono::milliseconds(static_cast<std::int64_t>(options.status_s * 1000)), [&] {
    tell();
    return true;
  });
  const Ticker watch(context, std::chrono::milliseconds(100), [&] {
    if (interrupted()) context.stop();
    return !interrupted();
  });
  context.run();
  context.restart();
  tell();
  server->reset();  // tells nodes by closing
  admin.reset();
  context.run_for(std::chrono::milliseconds(200));
  return 0;
}

}  // namespace

void setup_relay(CLI::App& root, Action& chosen) {
  auto options = std::make_shared<RelayOptions>();
  auto* command = root.add_subcommand("relay", "Let nodes of a swarm meet that cannot reach each other");
  command->add_option("--listen", options->server.listen, "HOST:PORT for nodes (TCP), and for STUN (UDP)")
      ->envname("LINKCPP_RELAY_LISTEN")
      ->capture_default_str();
  command->add_option("--allow", options->allow, "Key of a backbone that may use this relay; may be repeated")
      ->envname("LINKCPP_RELAY_ALLOW");
  command->add_option("--allow-file", options->allow_file, "File of such keys, one a line; # begins a comment")
      ->envname("LINKCPP_RELAY_ALLOW_FILE");
  command->add_flag("--open", options->open, "Every backbone may use this relay");
  command->add_option("--rate-mbit", options->server.rate_mbit, "What one node may send through the relay, in Mbit/s; 0: unlimited")
      ->envname("LINKCPP_RELAY_RATE_MBIT")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--max-links", options->server.limits.max_links, "Links that are passed on at a time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--max-links-of-node", options->server.limits.max_links_of_peer, "... of one node")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--max-nodes", options->server.limits.max_controls, "Nodes that may be here at a time")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--admin", options->admin, "HOST:PORT for counters by HTTP (/metrics, /health); keep it on loopback")
      ->envname("LINKCPP_RELAY_ADMIN");
  command->add_option("--home", options->home, "Folder of the relay's key (default: ~/.config/linkcpp)")->envname("LINKCPP_HOME");
  command->add_option("--status", options->status_s, "Seconds between lines with counters")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object a line on standard output: ready, node_came, link_began, counters, ...");
  command->add_flag("-q,--quiet", options->quiet, "Only errors");
  command->footer(
      "Two nodes behind routers that let nobody in can still both connect to a third machine. This is that machine: it introduces nodes\n"
      "of one swarm to each other and passes their bytes on. It cannot read them: their own TLS goes through it.\n\n"
      "  linkcpp relay --allow KEY                        on a machine with a public address; prints relay://RELAYKEY@HOST:7103\n"
      "  linkcpp relay --open --rate-mbit 100             for everybody, with a limit for each\n\n"
      "Nodes use it by their addresses: who wants to be reached listens at relay://RELAYKEY@HOST:7103, and others dial\n"
      "relay://RELAYKEY@HOST:7103/KEY, where KEY is the node's key. Without RELAYKEY the first key that is seen is trusted. Behind a web\n"
      "proxy: relay+wss://HOST/PATH. Nodes also learn their public address here (STUN, UDP on the same port).\n"
      "docs/relay.md has the details.");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace linkcpp::cli
