// `linkcpp serve`: an OpenAI-compatible server over the swarm: llama-server with the plugin, supervised.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <fstream>

#include "cli/command.h"
#include "cli/wire_choice.h"
#include "engine/anatomy.h"
#include "engine/backbone_file.h"
#include "fetch/url.h"
#include "net/coroutine.h"
#include "net/endpoint.h"
#include "net/identity.h"
#include "net/token.h"
#include "serve/address.h"
#include "serve/admin.h"
#include "serve/holes.h"
#include "serve/http_client.h"
#include "serve/locate.h"
#include "serve/plugin_config.h"
#include "serve/progress.h"
#include "serve/slice_giver.h"
#include "serve/status.h"
#include "serve/supervisor.h"
#include "serve/temp_dir.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using serve::Json;

struct ServeOptions {
  std::vector<std::string> relays, announced;
  bool no_direct = false;
  std::string model;
  std::string http = "127.0.0.1:8080", listen = "0.0.0.0:7101", admin = "127.0.0.1:7102";
  std::string slices = "auto";
  std::vector<std::string> sources;
  std::vector<std::string> workers;
  std::string mode = "raw", wire = "f32", base = "CPU";
  bool no_overlap = false, no_repack = false;
  int deadline_ms = 10'000, resend_floor_ms = 250;
  std::string home, name = "backbone";
  std::string llama_server = "llama-server", plugin, log;
  bool verbose = false, json = false;
  std::vector<std::string> passed_on;
};

/// Options of llama-server that serve itself decides, and what to use instead.
Result<> check_passed_on(const std::vector<std::string>& arguments) {
  static const std::map<std::string, std::string, std::less<>> ours{
      {"-m", "--model"},  {"--model", "--model"}, {"--host", "--http HOST:PORT"}, {"--port", "--http HOST:PORT"},
      {"-dev", "--base"}, {"--device", "--base"}};
  for (const auto& argument : arguments) {
    if (const auto found = ours.find(argument.substr(0, argument.find('='))); found != ours.end()) {
      return fail(ErrorKind::invalid_input, "'{}' behind '--' is decided by linkcpp: use {} before the '--'", argument, found->second);
    }
  }
  return {};
}

/// Options of llama-server with which a backbone without experts would be read, locked, or computed on another device than the plugin's.
Result<> check_passed_on_without_experts(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const std::string_view name = std::string_view(argument).substr(0, argument.find('='));
    for (const std::string_view refused :
         {"-ngl", "--gpu-layers", "--n-gpu-layers", "-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "--mlock",
          "--no-mmap", "-dio", "--direct-io", "-lm", "--load-mode", "--check-tensors", "-sm", "--split-mode"}) {
      if (name == refused)
        return fail(
            ErrorKind::invalid_input,
            "'{}' behind '--' cannot be used with a backbone file: it has no experts, so it must be mapped, and every layer must be "
            "on the plugin's device; leave it out, or serve the whole model",
            argument);
    }
  }
  return {};
}

/// A base with memory of its own leaves the experts in the mapped file; without one they would be loaded, and computed here.
Result<> check_mapping(const ServeOptions& options) {
  if (options.base == "CPU") return {};
  const auto& given = options.passed_on;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const bool mode =
        (given[i] == "-lm" || given[i] == "--load-mode") && i + 1 < given.size() && given[i + 1] != "mmap" && given[i + 1] != "auto";
    if (given[i] == "--no-mmap" || mode) {
      return fail(
          ErrorKind::invalid_input,
          "'{}' behind '--' would load all experts into this machine's memory: with --base {} they stay in the mapped file; leave it out",
          mode ? given[i] + " " + given[i + 1] : given[i], options.base);
    }
  }
  return {};
}

/// Without slices from here, the index must be had elsewhere too.
Result<> check_sources(const ServeOptions& options) {
  for (const std::string& url : options.sources) {
    if (auto source = fetch::parse_url(url); !source) return pass(source);
    if (options.slices == "none" && !url.ends_with('/')) {
      return fail(ErrorKind::invalid_input,
                  "with --slices none workers get the slice index from --source too: '{}' must be a folder that `linkcpp slice` wrote, and "
                  "end in /",
                  url);
    }
  }
  return {};
}

/// Everything that was checked before anything is started.
struct Prepared {
  std::map<std::string, std::optional<std::string>> holes;  ///< environment for a backbone without experts
  std::filesystem::path model, plugin, llama_server;
  serve::HostPort http;
  std::optional<serve::HostPort> listen, admin;
  engine::Anatomy anatomy;
  std::string home;
  std::string summary;  ///< of the model, for people
  WireChoice wire;
};

Result<std::optional<serve::HostPort>> optional_address(const std::string& text) {
  if (text == "none") return std::optional<serve::HostPort>();
  auto parsed = serve::parse_host_port(text);
  if (!parsed) return pass(parsed);
  return std::optional(*parsed);
}

Result<Prepared> prepare_addresses(const ServeOptions& options, Prepared prepared) {
  auto http = serve::parse_host_port(options.http);
  if (!http) return pass(http);
  http = serve::claim_port(*http);
  if (!http) return pass(http);
  prepared.http = *http;
  auto listen = optional_address(options.listen);
  if (!listen) return pass(listen);
  prepared.listen = *listen;
  if (prepared.listen) {
    // A port that the system picks must stay the same when the engine is restarted, or no worker would find its way back.
    auto claimed = serve::claim_port(*prepared.listen);
    if (!claimed) return pass(claimed);
    prepared.listen = *claimed;
  } else if (options.workers.empty() && options.relays.empty()) {
    return fail(ErrorKind::invalid_input,
                "with --listen none no worker can join: name some with --worker HOST:PORT, a relay with --relay, or listen");
  }
  auto admin = optional_address(options.admin);
  if (!admin) return pass(admin);
  prepared.admin = *admin;
  for (const auto& worker : options.workers) {
    if (auto parsed = net::parse_address(worker); !parsed) return pass(parsed);
  }
  for (const auto& relay : options.relays) {
    auto parsed = net::parse_address(relay);
    if (!parsed) return pass(parsed);
    if (parsed->scheme != net::Scheme::relay || parsed->key)
      return fail(ErrorKind::invalid_input, "--relay {}: give the address of a relay, relay://[KEY@]HOST:PORT", relay);
  }
  return prepared;
}

Result<Prepared> prepare(const ServeOptions& options) {
  Prepared prepared;
  auto mode = wire::parse_combine_mode(options.mode);
  if (!mode) return pass(mode);
  if (auto fits = check_passed_on(options.passed_on); !fits) return pass(fits);
  if (auto mapped = check_mapping(options); !mapped) return pass(mapped);
  if (auto sources = check_sources(options); !sources) return pass(sources);
  auto model = serve::existing_file(options.model, "the model");
  if (!model) return pass(model);
  prepared.model = *model;
  if (auto restored = engine::restore_holes(*model); !restored) return pass(restored);
  auto anatomy = engine::read_anatomy(*model);
  if (!anatomy) return pass(anatomy);
  if (anatomy->layers.empty()) {
    return fail(ErrorKind::invalid_input, "'{}' has no routed experts: it is a dense model; serve it with llama-server itself",
                options.model);
  }
  if (anatomy->experts_absent) {
    if (auto fits = check_passed_on_without_experts(options.passed_on); !fits) return pass(fits);
    auto environment = serve::holes_environment(engine::hole_files(*anatomy));
    if (!environment) return pass(environment);
    prepared.holes = std::move(*environment);
  }
  prepared.summary =
      std::format("{}: {} MoE layers, {} experts, {} used a token, {} of experts", anatomy->architecture, anatomy->layers.size(),
                  anatomy->n_expert, anatomy->top_k, serve::human_bytes(static_cast<double>(anatomy->expert_bytes)));
  auto plugin = serve::find_plugin(options.plugin);
  if (!plugin) return pass(plugin);
  prepared.plugin = *plugin;
  auto server = serve::find_llama_server(options.llama_server);
  if (!server) return pass(server);
  prepared.llama_server = *server;
  prepared.home = net::home_folder(options.home).string();
  auto wire = choose_wire(options.wire, *mode, anatomy->digest, prepared.home);
  if (!wire) return pass(wire);
  prepared.wire = std::move(*wire);
  prepared.anatomy = std::move(*anatomy);
  return prepare_addresses(options, std::move(prepared));
}

/// The command with which a worker joins, complete but for the file's path there.
std::string join_command(const ServeOptions& options, const Prepared& prepared, const net::Credentials& backbone) {
  net::JoinToken token{backbone.identity.key(), backbone.secret, {}};
  if (prepared.listen) {
    const bool any = prepared.listen->host == "0.0.0.0" || prepared.listen->host == "::";
    for (const auto& host : any ? serve::local_addresses() : std::vector{prepared.listen->host}) {
      token.addresses.push_back(serve::HostPort{host, prepared.listen->port}.text());
    }
    if (token.addresses.empty()) token.addresses.push_back(serve::HostPort{"127.0.0.1", prepared.listen->port}.text());
  }
  token.addresses.insert(token.addresses.end(), options.announced.begin(), options.announced.end());
  token.addresses.insert(token.addresses.end(), options.relays.begin(), options.relays.end());
  return "linkcpp worker --join " + token.encode();
}

constexpr std::uint16_t usual_slice_port = 7103;

/// Where slices are given: the address that was asked for; "auto" is the usual port beside the workers' address, or any if that is taken.
Result<std::unique_ptr<serve::SliceGiver>> open_slices(const ServeOptions& options, const Prepared& prepared,
                                                       const net::Credentials& backbone, const std::filesystem::path& index,
                                                       serve::SliceGiver::Said said) {
  serve::SliceGiverOptions giver{.listen = "", .credentials = backbone, .index = index};
  if (options.slices != "auto") {
    if (options.slices != "none") giver.listen = options.slices;
    return serve::SliceGiver::open(prepared.anatomy, std::move(giver), std::move(said));
  }
  const std::string host = prepared.listen ? prepared.listen->host : "0.0.0.0";
  giver.listen = serve::HostPort{host, usual_slice_port}.text();
  if (auto usual = serve::SliceGiver::open(prepared.anatomy, giver, said)) return usual;
  giver.listen = serve::HostPort{host, 0}.text();
  return serve::SliceGiver::open(prepared.anatomy, std::move(giver), std::move(said));
}

serve::Command server_command(const ServeOptions& options, const Prepared& prepared, const std::filesystem::path& config) {
  serve::Command command;
  command.argv = {
      prepared.llama_server.string(),    "--model", prepared.model.string(), "--device", "LINKCPP0", "--host", prepared.http.host, "--port",
      std::to_string(prepared.http.port)};
  // All layers go to the plugin's device. The engine's own fitting would count the experts, which are not computed here.
  const auto given = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::any_of(options.passed_on, [&](const auto& argument) { return std::ranges::find(names, argument) != names.end(); });
  };
  if (!given({"-ngl", "--gpu-layers", "--n-gpu-layers"})) command.argv.insert(command.argv.end(), {"-ngl", "all"});
  if (!given({"-fit", "--fit"})) command.argv.insert(command.argv.end(), {"--fit", "off"});
  if (options.no_repack) command.argv.emplace_back("--no-repack");
  command.argv.insert(command.argv.end(), options.passed_on.begin(), options.passed_on.end());
  command.env = {{"GGML_BACKEND_PATH", prepared.plugin.string()}, {"LINKCPP_CONFIG", config.string()}};
  command.env.insert(prepared.holes.begin(), prepared.holes.end());
  return command;
}

/// One run of serve, on one thread.
class Serving {
 public:
  Serving(const ServeOptions& options, Prepared prepared, net::Credentials backbone)
      : options_(options),
        prepared_(std::move(prepared)),
        backbone_(std::move(backbone)),
        join_(join_command(options_, prepared_, backbone_)),
        progress_(options.json),
        signals_(context_, SIGINT, SIGTERM, SIGHUP) {}

  Result<> run() {
    auto folder = serve::TempDir::make("linkcpp-serve");
    if (!folder) return pass(folder);
    const auto config = folder->path() / "plugin.json";
    if (options_.slices != "none" || !options_.sources.empty()) {
      index_ = folder->path() / "index.json";
      auto slices = open_slices(options_, prepared_, backbone_, index_, [this](const std::string& sentence) {
        asio::post(context_, [this, sentence] { progress_.line(sentence); });
      });
      if (!slices) return pass(slices);
      slices_ = std::move(*slices);
    }
    if (auto written = serve::write_private_file(config, serve::to_json(plugin_config()).dump(2)); !written) return written;
    if (!options_.log.empty()) log_.open(options_.log, std::ios::app);
    if (!options_.log.empty() && !log_) return fail(ErrorKind::io, "cannot write the log file '{}'", options_.log);
    if (prepared_.admin) {
      auto admin = serve::AdminServer::open(context_, *prepared_.admin, [this] { return snapshot(); });
      if (!admin) return pass(admin);
      admin_ = std::move(*admin);
    }
    introduce();
    supervisor_.emplace(context_, server_command(options_, prepared_, config), serve::SupervisionKnobs{}, handlers());
    Result<> result;
    asio::co_spawn(context_, supervisor_->run(), [&](std::exception_ptr failed, Result<> ended) {
      result = failed ? Result<>(fail(ErrorKind::internal, "supervision failed")) : std::move(ended);
      context_.stop();
    });
    asio::co_spawn(context_, watch_signals(), asio::detached);
    asio::co_spawn(context_, tick(), asio::detached);
    context_.run();
    progress_.clear();
    emit({{"event", "stopped"}});
    if (result && !options_.json) progress_.line("stopped");
    return result;
  }

 private:
  [[nodiscard]] serve::PluginConfig plugin_config() const {
    serve::PluginConfig config;
    config.model = prepared_.model;
    config.home = prepared_.home;
    config.name = options_.name;
    if (prepared_.listen) config.listen = {prepared_.listen->text()};
    config.listen.insert(config.listen.end(), options_.relays.begin(), options_.relays.end());
    config.find_direct = !options_.no_direct;
    config.workers = options_.workers;
    config.mode = options_.mode;
    config.wire = wire::to_string(prepared_.wire.type);
    config.base = options_.base;
    config.overlap = !options_.no_overlap;
    config.repack = !options_.no_repack;
    config.deadline_ms = options_.deadline_ms;
    config.resend_floor_ms = options_.resend_floor_ms;
    config.index = index_;
    config.slice_port = slices_ ? slices_->port() : std::uint16_t{0};
    config.sources = options_.sources;
    config.status_fd = serve::Command::extra_fd;
    return config;
  }

  Json snapshot() const {
    Json json = status_.to_json();
    json["model"] = prepared_.model.string();
    json["mode"] = options_.mode;
    json["wire"] = wire::to_string(prepared_.wire.type);
    json["http"] = url();
    json["ready"] = ready_;
    json["restarts"] = restarts_;
    if (slices_) json["slices"] = {{"port", slices_->port()}, {"bytes_given", slices_->bytes()}};
    return json;
  }

  [[nodiscard]] std::string url() const { return serve::client_url(prepared_.http); }

  void emit(const Json& event) const {
    if (!options_.json) return;
    std::printf("%s\n", event.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }

  void introduce() {
    const std::string admin = admin_ ? serve::client_url(admin_->address()) : "";
    emit({{"event", "starting"},
          {"model", prepared_.model.string()},
          {"http", url()},
          {"admin", admin},
          {"mode", options_.mode},
          {"wire", wire::to_string(prepared_.wire.type)},
          {"notes", prepared_.wire.notes}});
    progress_.line(std::format("{} ({})", prepared_.model.filename().string(), prepared_.summary));
    for (const auto& note : prepared_.wire.notes) progress_.line(note);
    progress_.state("starting llama-server with the plugin");
  }

  serve::Supervisor::Handlers handlers() {
    return {.on_start = [this] { on_start(); },
            .on_event = [this](const Json& event) { on_event(event); },
            .on_log = [this](std::string_view line) { on_log(line); },
            .on_crash = [this](const serve::ExitStatus& ended, std::chrono::milliseconds pause) { on_crash(ended, pause); }};
  }

  void on_start() {
    emit({{"event", "started"}, {"pid", supervisor_->pid()}});
    asio::co_spawn(context_, announce_when_healthy(++generation_), asio::detached);
  }

  void on_event(const Json& event) {
    status_.apply(event);
    emit(event);
    if (const auto text = serve::describe_event(event); !text.empty()) progress_.line(text);
    const auto kind = serve::text_of(event, "event");
    if (kind == "coverage") show_coverage();
    if (kind == "worker_offers" && slices_) slices_->prepare();
    if (kind != "worker_joined") return;
    if (const auto doubt = prepared_.wire.doubt(serve::text_of(event, "name"), serve::text_of(event, "device")); !doubt.empty())
      progress_.line(doubt);
  }

  void show_coverage() {
    if (status_.complete()) {
      if (incomplete_) progress_.line("every expert is held by a live worker");
      incomplete_ = false;
      return;
    }
    incomplete_ = true;
    if (!join_shown_)
      progress_.line("start a worker with:\n\n  " + join_ + (index_.empty() ? " --model FILE.gguf --experts 1/2" : " --budget 8G") +
                     (index_.empty()
                          ? "\n\n(--experts 1/2 and 2/2 for two workers; --experts all for one)"
                          : "\n\n(it gets its experts from here; with --model FILE.gguf --experts 1/2 it takes them from its own file)"));
    join_shown_ = true;
    progress_.state(std::format("waiting for experts: {} missing", serve::printable(status_.missing())));
  }

  void on_log(std::string_view line) {
    if (log_.is_open()) log_ << line << '\n' << std::flush;  // who reads it, reads it now
    if (options_.verbose) progress_.line("| " + serve::printable(line));
  }

  void on_crash(const serve::ExitStatus& ended, std::chrono::milliseconds pause) {
    ready_ = false;
    ++restarts_;
    status_.restarted();
    emit({{"event", "crashed"}, {"how", ended.describe()}, {"restart_in_ms", pause.count()}});
    progress_.line(std::format("llama-server {}; it is started again in {} ms", ended.describe(), pause.count()));
  }

  /// Polls the engine's health until it serves, as long as it is the one that was started.
  awaitable<void> announce_when_healthy(int generation) {
    asio::steady_timer timer(context_);
    const auto server = serve::parse_http_url(url());
    while (generation == generation_ && !supervisor_->stopping()) {
      auto answer = co_await serve::http_request(*server, "/health", "", std::chrono::seconds(2));
      if (generation != generation_ || supervisor_->stopping()) co_return;
      if (answer && answer->status == 200) {
        ready_ = true;
        supervisor_->served();
        progress_.line(std::format("ready: {}/v1 (OpenAI API){}", url(),
                                   admin_ ? ", account: " + serve::client_url(admin_->address()) + "/v1/swarm" : ""));
        emit({{"event", "serving"}, {"http", url()}, {"admin", admin_ ? serve::client_url(admin_->address()) : ""}});
        co_return;
      }
      timer.expires_after(std::chrono::milliseconds(100));
      co_await timer.async_wait(net::as_values);
    }
  }

  /// The first signal stops gracefully, a later one at once. One Ctrl-C may arrive twice, from the terminal and from a launcher.
  awaitable<void> watch_signals() {
    std::optional<std::chrono::steady_clock::time_point> last;
    for (;;) {
      const auto [error, number] = co_await signals_.async_wait(net::as_values);
      if (error) co_return;
      const auto now = std::chrono::steady_clock::now();
      if (now - std::exchange(last, now).value_or(now - std::chrono::hours(1)) < std::chrono::milliseconds(500)) continue;
      progress_.line(supervisor_->stopping() ? "stopping at once" : "stopping llama-server (again to stop at once)");
      supervisor_->stop();
    }
  }

  /// Keeps the line on a terminal alive while people wait.
  awaitable<void> tick() {
    asio::steady_timer timer(context_);
    for (int second = 0;; ++second) {
      timer.expires_after(std::chrono::seconds(1));
      co_await timer.async_wait(net::as_values);
      if (supervisor_->stopping() || ready_) continue;
      if (incomplete_)
        progress_.state(std::format("waiting for experts ({} s, {} workers): {} missing", second, status_.live_workers(),
                                    serve::printable(status_.missing())),
                        true);
      if (!incomplete_) progress_.state(std::format("llama-server is loading the model ({} s)", second), true);
    }
  }

  const ServeOptions& options_;
  Prepared prepared_;
  net::Credentials backbone_;
  std::string join_;
  std::filesystem::path index_;  ///< of slices; empty: workers bring the model themselves
  serve::Progress progress_;
  asio::io_context context_{1};
  asio::signal_set signals_;
  serve::SwarmStatus status_;
  std::unique_ptr<serve::AdminServer> admin_;
  std::unique_ptr<serve::SliceGiver> slices_;
  std::optional<serve::Supervisor> supervisor_;
  std::ofstream log_;
  int generation_ = 0;
  int restarts_ = 0;
  bool ready_ = false, incomplete_ = false, join_shown_ = false;
};

int run(const ServeOptions& options) {
  auto prepared = prepare(options);
  if (!prepared) return report(prepared.error());
  auto backbone = net::backbone_credentials(prepared->home);
  if (!backbone) return report(backbone.error());
  if (auto served = Serving(options, std::move(*prepared), std::move(*backbone)).run(); !served) return report(served.error());
  return 0;
}

void add_swarm_options(CLI::App& command, ServeOptions& o) {
  command.add_option("--listen", o.listen, "Address for workers that dial in, or 'none'")->envname("LINKCPP_LISTEN")->capture_default_str();
  command.add_option("--worker", o.workers, "A worker that listens, HOST:PORT or tcp://, quic://, ws://, wss://; may be repeated")
      ->envname("LINKCPP_WORKER");
  command
      .add_option(
          "--relay", o.relays,
          "Be reachable through this relay too, relay://[KEY@]HOST:PORT (see `linkcpp relay`); workers that cannot connect here use it, "
          "and move to a direct path where one is found; may be repeated")
      ->envname("LINKCPP_RELAY");
  command
      .add_option("--announce", o.announced,
                  "A further address of this machine for the join token, HOST:PORT: a forwarded port, a DNS name; may be repeated")
      ->envname("LINKCPP_ANNOUNCE");
  command.add_flag("--no-direct", o.no_direct, "Stay on the relay: do not look for direct paths (hole punching)")
      ->envname("LINKCPP_NO_DIRECT");
  command
      .add_option("--slices", o.slices,
                  "HOST:PORT where workers that join with --budget get their slices; auto: port 7103, or a free one; none: they do not")
      ->envname("LINKCPP_SLICES")
      ->capture_default_str();
  command
      .add_option(
          "--source", o.sources,
          "URL of a web server where workers find slices too: a folder that `linkcpp slice` wrote (ends in /), or the model's .gguf; "
          "may be repeated")
      ->envname("LINKCPP_SOURCE");
  command.add_option("--mode", o.mode, "raw: bit-identical to local; sum: up to top-k times fewer bytes back")
      ->envname("LINKCPP_MODE")
      ->capture_default_str();
  command
      .add_option("--wire", o.wire,
                  "Type of activations on the wire: f32 (exact), f16 (half the bytes), int8 or fp8 (a quarter), or auto: the smallest that "
                  "passed `linkcpp gate`")
      ->envname("LINKCPP_WIRE")
      ->capture_default_str();
  const CLI::AsNumberWithUnit duration(std::map<std::string, int>{{"ms", 1}, {"s", 1000}, {"min", 60'000}});
  const CLI::Range sensible(1, 86'400'000);
  command.add_option("--deadline", o.deadline_ms, "Time after which a layer's step fails: milliseconds, or with a unit (2s)")
      ->envname("LINKCPP_DEADLINE")
      ->transform(duration)
      ->check(sensible)
      ->capture_default_str()
      ->option_text("TIME [10000] (Env:LINKCPP_DEADLINE)");
  command.add_option("--resend-floor", o.resend_floor_ms, "Never send late pairs to a replica sooner than this")
      ->envname("LINKCPP_RESEND_FLOOR")
      ->transform(duration)
      ->check(sensible)
      ->capture_default_str()
      ->option_text("TIME [250] (Env:LINKCPP_RESEND_FLOOR)");
  command.add_option("--home", o.home, "Folder of this node's key and secret (default: ~/.config/linkcpp)")->envname("LINKCPP_HOME");
  command.add_option("--name", o.name, "What workers see this backbone as")->envname("LINKCPP_NAME")->capture_default_str();
}

void add_engine_options(CLI::App& command, ServeOptions& o) {
  command.add_option("--base", o.base, "ggml device that computes everything but the experts")
      ->envname("LINKCPP_BASE")
      ->capture_default_str();
  command.add_flag("--no-overlap", o.no_overlap, "Do not compute other nodes while experts are in flight")->envname("LINKCPP_NO_OVERLAP");
  command.add_flag("--no-repack", o.no_repack, "Do not let the CPU rearrange weights for speed")->envname("LINKCPP_NO_REPACK");
  command.add_option("--llama-server", o.llama_server, "The engine's server: a path, or a name in PATH")
      ->envname("LINKCPP_LLAMA_SERVER")
      ->capture_default_str();
  command.add_option("--plugin", o.plugin, "libggml-linkcpp.so (default: the one that belongs to this program)")->envname("LINKCPP_PLUGIN");
}

}  // namespace

void setup_serve(CLI::App& root, Action& chosen, const std::vector<std::string>& passed_on) {
  auto o = std::make_shared<ServeOptions>();
  auto* command = root.add_subcommand("serve", "Serve a model over the OpenAI API, with its experts on workers");
  command->add_option("--model,-m", o->model, "GGUF of a Mixture-of-Experts model (any part of a multi-file one)")
      ->envname("LINKCPP_MODEL")
      ->required();
  command->add_option("--http", o->http, "Address of the OpenAI API; port 0 picks a free one")
      ->envname("LINKCPP_HTTP")
      ->capture_default_str();
  command->add_option("--admin", o->admin, "Address of the swarm's state (GET /v1/swarm), or 'none'")
      ->envname("LINKCPP_ADMIN")
      ->capture_default_str();
  add_swarm_options(*command, *o);
  add_engine_options(*command, *o);
  command->add_option("--log", o->log, "Append llama-server's log to this file")->envname("LINKCPP_LOG");
  command->add_flag("--verbose,-v", o->verbose, "Show llama-server's log")->envname("LINKCPP_VERBOSE");
  command->add_flag("--json", o->json, "Print events as JSON lines on standard output");
  command->footer(
      "Arguments behind '--' go to llama-server:  linkcpp serve -m model.gguf -- --ctx-size 8192 --parallel 4\n"
      "The API listens on this machine only unless --http says otherwise; add  -- --api-key KEY  before opening it to others.");
  command->callback([o, &chosen, &passed_on] {
    chosen = [o, &passed_on] {
      o->passed_on = passed_on;
      return run(*o);
    };
  });
}

}  // namespace linkcpp::cli
