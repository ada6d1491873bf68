// `linkcpp worker`: holds experts of a model and computes them for backbones.
#include <malloc.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/command.h"
#include "dispatch/dispatcher.h"
#include "engine/anatomy.h"
#include "engine/expert_host.h"
#include "net/endpoint.h"
#include "serve/address.h"
#include "worker/server.h"

namespace linkcpp::cli {
namespace {

struct WorkerOptions {
  std::vector<std::string> listen;
  bool no_direct = false;
  std::string model, experts = "all", token, token_file, device = "CPU", name, home;
  std::vector<std::string> addresses;
  int threads = 0;
  std::uint64_t budget = 0;
  std::string store, share = "0.0.0.0:0";
  unsigned transfers = 4;
  bool repack = false, list_devices = false, verbose = false, quiet = false;
  int keep_warm_ms = 100, silence_ms = 5000, handshake_ms = 10'000, grace_ms = 2000;
  double delay_ms = 0;
};

int print_devices() {
  for (const auto& [name, description] : engine::list_devices()) std::printf("%-12s %s\n", name.c_str(), description.c_str());
  return 0;
}

Result<net::JoinToken> read_token(const WorkerOptions& options) {
  std::string text = options.token;
  if (text.empty() && !options.token_file.empty()) {
    std::ifstream in(options.token_file);
    if (!in || !(in >> text)) return fail(ErrorKind::not_found, "cannot read a join token from '{}'", options.token_file);
  }
  if (text.empty()) {
    return fail(ErrorKind::invalid_input,
                "a join token is needed: run `linkcpp token` on the backbone and give it here with --join TOKEN, --token-file FILE or "
                "LINKCPP_TOKEN");
  }
  return net::JoinToken::decode(text);
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "worker";
}

std::uint32_t experts_of(const engine::Anatomy& anatomy) {
  std::uint32_t n = 0;
  for (const engine::MoeLayer& layer : anatomy.layers) n = std::max(n, layer.n_expert);
  return n;
}

Result<std::unique_ptr<engine::ExpertHost>> open_host(const engine::Anatomy& anatomy, const WorkerOptions& options) {
  auto ranges = engine::parse_expert_ranges(options.experts, experts_of(anatomy));
  if (!ranges) return pass(ranges);
  return engine::ExpertHost::open(anatomy,
                                  {.device = options.device, .n_threads = options.threads, .repack = options.repack, .experts = *ranges});
}

/// $XDG_DATA_HOME/linkcpp/slices, else ~/.local/share/linkcpp/slices.
std::filesystem::path default_store() {
  const char* data = std::getenv("XDG_DATA_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      data != nullptr && *data != '\0' ? std::filesystem::path(data) : std::filesystem::path(home == nullptr ? "." : home) / ".local/share";
  return base / "linkcpp" / "slices";
}

worker::ProvisionOptions provision_options(const WorkerOptions& options, const worker::ServerOptions& server) {
  return {.budget = options.budget,
          .store = options.store.empty() ? default_store() : std::filesystem::path(options.store),
          .share = options.share == "none" ? "" : options.share,
          .model = options.model,
          .identity = server.identity,
          .secret = server.token.secret,
          .parallel = options.transfers};
}

Result<worker::ServerOptions> server_options(const WorkerOptions& options) {
  auto token = read_token(options);
  if (!token) return pass(token);
  auto identity = net::Identity::load_or_create(net::home_folder(options.home));
  if (!identity) return pass(identity);
  worker::ServerOptions server;
  server.identity = std::move(*identity);
  server.token = *token;
  server.name = options.name.empty() ? host_name() : options.name;
  server.listen = options.listen;
  server.session.find_direct = server.session.finder.map_port = !options.no_direct;
  server.dial = options.addresses.empty() ? token->addresses : options.addresses;
  if (!options.listen.empty() && options.addresses.empty()) server.dial.clear();
  for (const std::string& address : server.dial) {
    if (auto parsed = net::parse_address(address); !parsed) return pass(parsed);
  }
  if (server.dial.empty() && server.listen.empty()) {
    return fail(
        ErrorKind::invalid_input,
        "the token names no address: give the backbone's with --address HOST:PORT, or let the backbone dial with --listen HOST:PORT");
  }
  server.link.keep_warm = std::chrono::milliseconds(options.keep_warm_ms);
  server.link.silence_limit = std::chrono::milliseconds(options.silence_ms);
  server.link.handshake_deadline = std::chrono::milliseconds(options.handshake_ms);
  server.drain_grace = std::chrono::milliseconds(options.grace_ms);
  server.delay = std::chrono::microseconds(static_cast<std::int64_t>(options.delay_ms * 1000));
  return server;
}

/// A worker asks for the same megabytes with every prompt. By default glibc gives them back each time, and the page faults of the next
/// request cost more than the copying itself.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // its limit on 64 bits
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

/// Experts out of a file on this machine.
Result<std::unique_ptr<engine::ExpertHost>> host_of_model(const WorkerOptions& options, worker::ServerOptions& server) {
  if (options.model.empty()) {
    return fail(ErrorKind::invalid_input,
                "say how much this worker shall hold with --budget 8G (it gets its experts from the backbone), or name the model that the "
                "backbone serves with --model FILE.gguf");
  }
  auto anatomy = engine::read_anatomy(options.model);
  if (!anatomy) return pass(anatomy);
  if (anatomy->experts_absent) {
    return fail(ErrorKind::invalid_input,
                "{} is a backbone file: it has no experts to compute; name the whole model, or let the backbone assign experts with "
                "--budget 8G",
                options.model);
  }
  server.model = anatomy->digest;
  auto host = open_host(*anatomy, options);
  if (!host) return host;
  spdlog::info("{} holds {} of {} ({:.1f} MB) on {}, {} threads", server.name, dispatch::describe((*host)->holdings()),
               anatomy->name.empty() ? options.model : anatomy->name, static_cast<double>((*host)->held_bytes()) / 1e6,
               (*host)->device_description(), (*host)->n_threads());
  return host;
}

/// Experts that the backbone will assign.
Result<std::unique_ptr<engine::ExpertHost>> host_to_fill(const WorkerOptions& options, worker::ServerOptions& server) {
  server.provision = provision_options(options, server);
  auto host = engine::ExpertHost::open_empty({.device = options.device, .n_threads = options.threads, .repack = options.repack});
  if (!host) return host;
  spdlog::info("{} has room for {:.1f} MB of experts on {}, {} threads; slices are kept in {}", server.name,
               static_cast<double>(options.budget) / 1e6, (*host)->device_description(), (*host)->n_threads(),
               server.provision->store.string());
  return host;
}

int run(const WorkerOptions& options) {
  keep_freed_memory();
  if (options.list_devices) return print_devices();
  spdlog::set_default_logger(spdlog::stderr_color_mt("worker"));
  spdlog::set_pattern("%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(options.quiet ? spdlog::level::warn : options.verbose ? spdlog::level::debug : spdlog::level::info);
  auto server = server_options(options);
  if (!server) return report(server.error());
  auto host = options.budget == 0 ? host_of_model(options, *server) : host_to_fill(options, *server);
  if (!host) return report(host.error());
  for (const std::string& address : server->dial) spdlog::info("dialling the backbone at {}", address);
  auto opened = worker::Server::open(std::move(*host), std::move(*server));
  if (!opened) return report(opened.error());
  (*opened)->run();
  return 0;
}

}  // namespace

void setup_worker(CLI::App& root, Action& chosen) {
  auto options = std::make_shared<WorkerOptions>();
  CLI::App* app = root.add_subcommand("worker", "Hold experts of a model and compute them for a backbone");
  app->footer(
      "Examples:\n"
      "  linkcpp worker --join TOKEN --budget 8G                              hold what the backbone assigns, fetched and kept on disk\n"
      "  linkcpp worker --join TOKEN --model model.gguf                       hold every expert\n"
      "  linkcpp worker --join TOKEN --model model.gguf --experts 1/3         hold the first third of every layer's experts\n"
      "  linkcpp worker --join TOKEN --model model.gguf --experts 'L0-3:0-11;L4-7:all'\n"
      "  linkcpp worker --join TOKEN --model model.gguf --listen 0.0.0.0:7101  let the backbone dial (linkcpp serve --worker HOST:7101)\n\n"
      "The token comes from `linkcpp token` on the backbone. SIGTERM drains: what is on its way is answered, then the worker leaves.\n"
      "If the link breaks, the worker dials again by itself.");
  app->add_option("--join", options->token, "Join token of the backbone")->envname("LINKCPP_TOKEN");
  app->add_option("--token-file", options->token_file, "Read the join token from this file");
  app->add_option("-m,--model", options->model, "GGUF of the model (any part of a multi-file model); only the held slices are read")
      ->envname("LINKCPP_MODEL");
  app->add_option(
         "-b,--budget", options->budget,
         "Room for experts, for example 8G: the backbone assigns some, and they are fetched. Needs no --model; with one, slices are "
         "copied out of it")
      ->envname("LINKCPP_BUDGET")
      ->transform(CLI::AsSizeValue(false));
  app->add_option("--store", options->store, "Folder that keeps fetched slices (default: ~/.local/share/linkcpp/slices)")
      ->envname("LINKCPP_STORE");
  app->add_option("--share", options->share, "HOST:PORT where other nodes get slices from this one, port 0 picks one; or none")
      ->envname("LINKCPP_SHARE")
      ->capture_default_str();
  app->add_option("--transfers", options->transfers, "Slices fetched at a time")
      ->check(CLI::Range(1, 64))
      ->group("Tuning")
      ->capture_default_str();
  app->add_option("--experts", options->experts, "Which experts: all, 0-11, 0-3,8-11, 2/3 (second third), or by layers: L0-3:0-11;L4-7:all")
      ->envname("LINKCPP_EXPERTS")
      ->capture_default_str();
  app->add_option("--listen", options->listen,
                  "Accept backbones on HOST:PORT, or through a relay at relay://[KEY@]HOST:PORT, instead of dialling the token's "
                  "addresses; may be repeated");
  app->add_option(
      "--address", options->addresses,
      "Dial this instead of the token's addresses (repeatable, tried in order): HOST:PORT, by QUIC if it is far and UDP passes; or "
      "tcp://, quic://, ws://, wss://, relay://");
  app->add_flag("--no-direct", options->no_direct, "Stay on the relay: do not look for a direct path (hole punching)")
      ->envname("LINKCPP_NO_DIRECT");
  app->add_option("--device", options->device, "ggml device that computes (see --list-devices)")->capture_default_str();
  app->add_flag("--list-devices", options->list_devices, "Print the devices of this machine and end");
  app->add_option("-t,--threads", options->threads, "Threads that compute; 0: one for each core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app->add_flag("--repack", options->repack,
                "CPU: copy the slices into the engine's faster layout (needs memory for them; other rounding than without)");
  app->add_option("--name", options->name, "How this worker is shown (default: host name)")->envname("LINKCPP_NAME");
  app->add_option("--home", options->home, "Folder of this node's key (default: $LINKCPP_HOME, else ~/.config/linkcpp)");
  app->add_flag("-v,--verbose", options->verbose, "Say more");
  app->add_flag("-q,--quiet", options->quiet, "Say only warnings and errors");
  app->add_option("--keep-warm", options->keep_warm_ms, "Milliseconds without traffic after which the link is pinged")
      ->check(CLI::Range(10, 60'000))
      ->group("Tuning")
      ->capture_default_str();
  app->add_option("--silence", options->silence_ms, "Milliseconds without a sign of life after which the link counts as broken")
      ->check(CLI::Range(100, 600'000))
      ->group("Tuning")
      ->capture_default_str();
  app->add_option("--handshake", options->handshake_ms, "Milliseconds for connecting and authenticating")
      ->check(CLI::Range(100, 600'000))
      ->group("Tuning")
      ->capture_default_str();
  app->add_option("--grace", options->grace_ms, "Milliseconds for which a draining worker still answers")
      ->check(CLI::Range(0, 600'000))
      ->group("Tuning")
      ->capture_default_str();
  app->add_option("--delay-ms", options->delay_ms,
                  "Milliseconds added to every answer, half before and half after computing: imitates distance, for experiments")
      ->check(CLI::Range(0.0, 10'000.0))
      ->group("Tuning")
      ->capture_default_str();
  app->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace linkcpp::cli
