// `linkcpp demo`: the whole swarm on this machine, in processes of its own, compared with the same model run locally.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>

#include "cli/child.h"
#include "cli/command.h"
#include "engine/anatomy.h"
#include "net/coroutine.h"
#include "net/transport.h"
#include "serve/account_view.h"
#include "serve/address.h"
#include "serve/http_client.h"
#include "serve/lines.h"
#include "serve/locate.h"
#include "serve/progress.h"
#include "serve/status.h"
#include "serve/temp_dir.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::awaitable;
using serve::Json;
using namespace std::chrono_literals;

struct DemoOptions {
  std::string model;
  int workers = 3;
  std::string mode = "raw", wire = "f32";
  std::string prompt = "It was a truth which she could not deny, that Mr. ";
  int tokens = 48;
  int threads = 0;
  std::string llama_server = "llama-server", plugin, keep_logs;
  bool no_repack = true;
  bool json = false;
};

/// How long a part may take before the demo gives up, and between looks at it.
constexpr auto start_limit = 180s;
constexpr auto answer_limit = 300s;
constexpr auto poll_period = 50ms;

/// What a server answered to the prompt.
struct Answer {
  std::string text;
  Json logprobs;  ///< of every token: the finest difference that the API lets us see
  double tokens_per_s = 0, prompt_tokens_per_s = 0;
  double tokens = 0, prompt_tokens = 0;
};

class Demo {
 public:
  Demo(const DemoOptions& options, fs::path model, fs::path plugin, fs::path server, fs::path program, fs::path folder)
      : options_(options),
        model_(std::move(model)),
        plugin_(std::move(plugin)),
        server_(std::move(server)),
        program_(std::move(program)),
        folder_(std::move(folder)),
        progress_(false),
        signals_(context_, SIGINT, SIGTERM, SIGHUP) {}

  Result<Json> run() {
    Result<Json> result = fail(ErrorKind::unavailable, "the demo was interrupted; everything it started is stopped");
    signals_.async_wait([this](boost::system::error_code error, int) {
      if (!error) context_.stop();
    });
    asio::co_spawn(context_, all(), [&](const std::exception_ptr& failed, Result<Json> ended) {
      result = failed ? Result<Json>(fail(ErrorKind::internal, "the demo failed")) : std::move(ended);
      context_.stop();
    });
    context_.run();
    progress_.state("stopping everything");
    stop_all();
    progress_.clear();
    return result;
  }

 private:
  awaitable<Result<Json>> all() {
    if (auto swarm = co_await start_swarm(); !swarm) co_return pass(swarm);
    progress_.state("asking the swarm");
    const auto before = co_await settled_account();
    auto remote = co_await ask(http_);
    if (!remote) co_return explained(remote.error());
    const auto after = co_await settled_account();
    if (!after) co_return explained(after.error());
    progress_.line(std::format("the swarm answered: {:.0f} tokens at {:.1f} tokens/s", remote->tokens, remote->tokens_per_s));
    stop_all();
    auto local = co_await run_locally();
    if (!local) co_return pass(local);
    co_return report_json(*remote, *local, serve::account_difference(before ? (*before)["account"] : Json(), (*after)["account"]),
                          (*after)["workers"]);
  }

  // ---- starting ------------------------------------------------------------------------------------------------------

  [[nodiscard]] int threads() const { return shared_threads(options_.threads, options_.workers + 1); }

  [[nodiscard]] serve::Command command(std::vector<std::string> argv) const {
    serve::Command result = clean_command(std::move(argv));
    result.env["TMPDIR"] = folder_.string();
    return result;
  }

  awaitable<Result<>> start_swarm() {
    progress_.state("starting the backbone");
    if (auto backbone = start_backbone(); !backbone) co_return pass(backbone);
    if (auto listening = co_await wait_for("the backbone to listen", [this] { return !status_.listen_address().empty(); }); !listening) {
      co_return pass(listening);
    }
    if (auto joined = start_workers(); !joined) co_return pass(joined);
    co_return co_await wait_for("the swarm to be ready", [this] { return !http_.host.empty(); });
  }

  Result<> start_backbone() {
    auto channel = serve::Channel::open();
    if (!channel) return pass(channel);
    std::vector<std::string> argv{program_.string(),
                                  "serve",
                                  "--model",
                                  model_.string(),
                                  "--http",
                                  "127.0.0.1:0",
                                  "--listen",
                                  "127.0.0.1:0",
                                  "--admin",
                                  "127.0.0.1:0",
                                  "--mode",
                                  options_.mode,
                                  "--wire",
                                  options_.wire,
                                  "--home",
                                  home().string(),
                                  "--plugin",
                                  plugin_.string(),
                                  "--llama-server",
                                  server_.string(),
                                  "--json",
                                  "--log",
                                  (folder_ / "llama-server.log").string()};
    if (options_.no_repack) argv.emplace_back("--no-repack");
    argv.emplace_back("--");
    for (auto& argument : engine_arguments()) argv.push_back(std::move(argument));
    auto serving = command(std::move(argv));
    serving.out = channel->theirs.get();
    auto child = Child::start(std::move(serving), folder_ / "serve.log");
    if (!child) return pass(child);
    backbone_.emplace(std::move(*child));
    asio::co_spawn(context_, read_events(std::move(channel->ours)), asio::detached);
    return {};
  }

  /// The same for the swarm and for the local run, so that like is compared with like.
  [[nodiscard]] std::vector<std::string> engine_arguments() const {
    return {"--ctx-size", "1024", "--parallel", "1", "--threads", std::to_string(threads())};
  }

  awaitable<void> read_events(serve::Fd channel) {
    asio::posix::stream_descriptor stream(context_, channel.release());
    serve::LineCutter cutter(1u << 20);
    std::array<char, 16384> buffer;
    for (;;) {
      const auto [error, n] = co_await stream.async_read_some(asio::buffer(buffer), net::as_values);
      if (error) co_return;
      cutter.feed({buffer.data(), n}, [this](std::string_view line) {
        if (auto event = serve::parse_event(line)) on_event(*event);
      });
    }
  }

  void on_event(const Json& event) {
    status_.apply(event);
    const auto kind = serve::text_of(event, "event");
    if (kind == "worker_joined" || kind == "worker_left" || kind == "refused" || kind == "error" || kind == "crashed") {
      if (!stopping_) progress_.line(kind == "crashed" ? "llama-server " + serve::text_of(event, "how") : serve::describe_event(event));
    }
    if (kind == "serving") {
      if (auto admin = serve::parse_http_url(serve::text_of(event, "admin"))) admin_ = *admin;
      if (auto http = serve::parse_http_url(serve::text_of(event, "http"))) http_ = *http;
    }
  }

  [[nodiscard]] fs::path home() const { return folder_ / "backbone"; }

  Result<> start_workers() {
    auto backbone = net::backbone_credentials(home());
    if (!backbone) return pass(backbone);
    const auto token = net::JoinToken{backbone->identity.key(), backbone->secret, {status_.listen_address()}}.encode();
    auto started = cli::start_workers(
        {.program = program_,
         .model = model_,
         .folder = folder_,
         .prefix = "worker",
         .token = token,
         .count = options_.workers,
         .threads = threads(),
         .extra = options_.no_repack ? std::vector<std::string>{}
                                     : std::vector<std::string>{"--repack"}});  // as llama-server does with experts of its own
    if (!started) return pass(started);
    workers_ = std::move(*started);
    return {};
  }

  Result<> check_children() {
    if (backbone_) {
      if (auto alive = backbone_->check("the backbone (linkcpp serve)"); !alive) return alive;
    }
    return check_workers(workers_);
  }

  awaitable<void> pause(std::chrono::milliseconds duration) {
    asio::steady_timer timer(context_, duration);
    co_await timer.async_wait(net::as_values);
  }

  awaitable<Result<>> wait_for(std::string what, std::function<bool()> reached) {
    const auto begin = std::chrono::steady_clock::now();
    while (!reached()) {
      if (auto alive = check_children(); !alive) co_return alive;
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited > start_limit) {
        co_return fail(ErrorKind::timeout, "waited {} s for {}{}", start_limit.count(), what,
                       status_.missing().empty() ? "" : "; missing: " + status_.missing());
      }
      progress_.state(std::format("waiting for {} ({} of {} workers, {} s)", what, status_.live_workers(), options_.workers,
                                  std::chrono::duration_cast<std::chrono::seconds>(waited).count()),
                      waited >= 1s);
      co_await pause(poll_period);
    }
    co_return Result<>{};
  }

  void stop_all() {
    stopping_ = true;
    if (backbone_) backbone_->ask_to_stop();
    if (local_) local_->ask_to_stop();
    backbone_.reset();
    for (auto& worker : workers_) worker.ask_to_stop();
    workers_.clear();
    local_.reset();
  }

  // ---- asking --------------------------------------------------------------------------------------------------------

  /// The swarm's state once its account has not changed for longer than the time between two reports of it.
  awaitable<Result<Json>> settled_account() {
    Result<Json> last = co_await serve::http_json(admin_, "/v1/swarm", "", 10s);
    for (int quiet = 0; last && quiet < 14;) {
      co_await pause(100ms);
      auto next = co_await serve::http_json(admin_, "/v1/swarm", "", 10s);
      if (!next) co_return next;
      quiet = (*next)["account"] == (*last)["account"] ? quiet + 1 : 0;
      last = std::move(next);
    }
    co_return last;
  }

  awaitable<Result<Answer>> ask(serve::HostPort server) {
    const Json body{{"prompt", options_.prompt}, {"max_tokens", options_.tokens},
                    {"temperature", 0},          {"seed", 1},
                    {"cache_prompt", false},     {"logprobs", 5}};
    auto json = co_await serve::http_json(server, "/v1/completions", body.dump(), answer_limit);
    if (!json) co_return pass(json);
    const auto& choice = (*json)["choices"][0];
    const Json timings = json->value("timings", Json::object()), usage = json->value("usage", Json::object());
    Answer answer{.text = serve::text_of(choice, "text"), .logprobs = choice.value("logprobs", Json())};
    answer.tokens_per_s = serve::number_of(timings, "predicted_per_second");
    answer.prompt_tokens_per_s = serve::number_of(timings, "prompt_per_second");
    answer.tokens = serve::number_of(usage, "completion_tokens");
    answer.prompt_tokens = serve::number_of(usage, "prompt_tokens");
    co_return answer;
  }

  /// An error of the swarm together with what the plugin said last.
  std::unexpected<Error> explained(Error error) {
    if (auto alive = check_children(); !alive) return pass(alive);
    if (!status_.last_error().empty()) error.message += "; the plugin says: " + serve::printable(status_.last_error());
    return std::unexpected(std::move(error));
  }

  awaitable<Result<Answer>> run_locally() {
    progress_.state("running the same model on plain llama-server");
    auto address = serve::claim_port({"127.0.0.1", 0});
    if (!address) co_return pass(address);
    std::vector<std::string> argv{
        server_.string(), "--model", model_.string(), "--host", address->host, "--port", std::to_string(address->port),
        "--device",       "none",    "--fit",         "off"};
    for (auto& argument : engine_arguments()) argv.push_back(std::move(argument));
    if (options_.no_repack) argv.emplace_back("--no-repack");
    auto child = Child::start(command(std::move(argv)), folder_ / "local.log");
    if (!child) co_return pass(child);
    local_.emplace(std::move(*child));
    if (auto healthy = co_await wait_for_health(*address); !healthy) co_return pass(healthy);
    auto answer = co_await ask(*address);
    if (answer)
      progress_.line(std::format("plain llama-server answered: {:.0f} tokens at {:.1f} tokens/s", answer->tokens, answer->tokens_per_s));
    co_return answer;
  }

  awaitable<Result<>> wait_for_health(serve::HostPort server) {
    const auto end = std::chrono::steady_clock::now() + start_limit;
    while (std::chrono::steady_clock::now() < end) {
      if (auto alive = local_->check("plain llama-server"); !alive) co_return alive;
      auto answer = co_await serve::http_request(server, "/health", "", 2s);
      if (answer && answer->status == 200) co_return Result<>{};
      co_await pause(poll_period);
    }
    co_return fail(ErrorKind::timeout, "plain llama-server was not ready within {} s", start_limit.count());
  }

  // ---- reporting -----------------------------------------------------------------------------------------------------

  Json report_json(const Answer& remote, const Answer& local, const Json& account, const Json& joined) const {
    const auto summary = serve::summarize_account(account);
    Json bytes{{"layers", Json::object()}, {"workers", Json::object()}};
    double out = 0, back = 0;
    for (const auto& layer : summary["layers"]) {
      bytes["layers"][serve::text_of(layer, "layer")] = {{"out_per_token", layer["bytes_out_per_token"]},
                                                         {"back_per_token", layer["bytes_back_per_token"]}};
      out += serve::number_of(layer, "bytes_out_per_token");
      back += serve::number_of(layer, "bytes_back_per_token");
    }
    bytes["out_per_token"] = out;
    bytes["back_per_token"] = back;
    for (const auto& worker : summary["workers"]) {
      bytes["workers"][serve::text_of(worker, "name")] = {{"out", worker["bytes_out"]},
                                                          {"back", worker["bytes_back"]},
                                                          {"out_per_token", worker["bytes_out_per_token"]},
                                                          {"back_per_token", worker["bytes_back_per_token"]}};
    }
    Json workers = summary["workers"];
    for (auto& worker : workers) {
      for (const auto& known : joined) {
        if (known["name"] == worker["name"]) worker.update({{"experts", known["experts"]}, {"device", known["device"]}});
      }
    }
    return {{"text", remote.text},
            {"identical", remote.text == local.text && remote.logprobs == local.logprobs},
            {"text_local", local.text},
            {"model", model_.string()},
            {"mode", options_.mode},
            {"wire", options_.wire},
            {"prompt_tokens", remote.prompt_tokens},
            {"tokens", remote.tokens},
            {"tokens_per_s", remote.tokens_per_s},
            {"tokens_per_s_local", local.tokens_per_s},
            {"threads", threads()},
            {"layers", summary["layers"]},
            {"bytes", bytes},
            {"workers", workers},
            {"total", summary["total"]}};
  }

  const DemoOptions& options_;
  fs::path model_, plugin_, server_, program_, folder_;
  serve::Progress progress_;
  asio::io_context context_{1};
  asio::signal_set signals_;
  serve::SwarmStatus status_;
  serve::HostPort http_, admin_;
  std::optional<Child> backbone_, local_;
  std::vector<Child> workers_;
  bool stopping_ = false;
};

void print(const DemoOptions& options, const Json& result) {
  const bool exact = options.mode == "raw" && options.wire == "f32";
  std::printf("\nprompt: %s\n", serve::printable(options.prompt).c_str());
  std::printf("text:   %s\n\n", serve::text_of(result, "text").c_str());
  const bool identical = result["identical"].get<bool>();
  std::printf("identical: %s (text and log-probabilities of %.0f tokens, against the same model on plain llama-server%s)\n\n",
              identical ? "yes" : "no", serve::number_of(result, "tokens"), exact ? "" : "; this mode or wire type rounds differently");
  std::printf("%s\n", serve::account_tables({{"layers", result["layers"]}, {"workers", result["workers"]}}).c_str());
  const auto& bytes = result["bytes"];
  std::printf("all layers: %s out and %s back a token (%.1f %% of it activations)\n",
              serve::human_bytes(serve::number_of(bytes, "out_per_token")).c_str(),
              serve::human_bytes(serve::number_of(bytes, "back_per_token")).c_str(),
              100 * serve::number_of(result["total"], "payload_share"));
  std::printf("generation: %.1f tokens/s with %d workers, %.1f tokens/s locally; %d thread(s) a process, all on this one machine\n",
              serve::number_of(result, "tokens_per_s"), options.workers, serve::number_of(result, "tokens_per_s_local"),
              result["threads"].get<int>());
}

Result<Json> demonstrate(const DemoOptions& options) {
  if (auto mode = wire::parse_combine_mode(options.mode); !mode) return pass(mode);
  if (auto type = wire::parse_row_type(options.wire); !type) return pass(type);
  auto model =
      options.model.empty() ? serve::find_bundled_model("tinymoe-a-q4_k_s.gguf") : serve::existing_file(options.model, "the model");
  if (!model) return pass(model);
  auto anatomy = engine::read_anatomy(*model);
  if (!anatomy) return pass(anatomy);
  auto plugin = serve::find_plugin(options.plugin);
  if (!plugin) return pass(plugin);
  auto server = serve::find_llama_server(options.llama_server);
  if (!server) return pass(server);
  auto program = serve::own_program();
  if (!program) return pass(program);
  auto folder = serve::TempDir::make("linkcpp-demo");
  if (!folder) return pass(folder);
  auto result = Demo(options, *model, *plugin, *server, *program, folder->path()).run();
  if (!options.keep_logs.empty()) {
    std::error_code error;
    fs::create_directories(options.keep_logs, error);
    for (const auto& entry : fs::directory_iterator(folder->path(), error)) {
      if (entry.path().extension() == ".log")
        fs::copy(entry.path(), fs::path(options.keep_logs) / entry.path().filename(), fs::copy_options::overwrite_existing, error);
    }
    if (error) std::fprintf(stderr, "linkcpp: the logs could not be kept in %s: %s\n", options.keep_logs.c_str(), error.message().c_str());
  }
  return result;
}

int run(const DemoOptions& options) {
  auto result = demonstrate(options);
  if (!result) return report(result.error());
  if (options.json) {
    std::printf("%s\n", result->dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    print(options, *result);
  }
  const bool must_be_identical = options.mode == "raw" && options.wire == "f32";
  if (!must_be_identical || (*result)["identical"].get<bool>()) return 0;
  return report({ErrorKind::internal,
                 "the swarm's answer differs from the local one, although raw F32 must not; is a BLAS backend of ggml installed? "
                 "It takes matrices of the local run only (Debian: libggml0-backend-blas)"});
}

}  // namespace

void setup_demo(CLI::App& root, Action& chosen) {
  auto o = std::make_shared<DemoOptions>();
  auto* command = root.add_subcommand("demo", "Run a whole swarm on this machine and compare it with the model run locally");
  command->add_option("--model,-m", o->model, "GGUF of a Mixture-of-Experts model (default: the one that comes along)")
      ->envname("LINKCPP_DEMO_MODEL");
  command->add_option("--workers", o->workers, "Worker processes, each with its share of the experts")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--mode", o->mode, "raw (bit-identical) or sum (fewer bytes back)")->capture_default_str();
  command->add_option("--wire", o->wire, "Type of activations on the wire: f32, f16, int8 or fp8")->capture_default_str();
  command->add_option("--prompt", o->prompt, "What to continue")->capture_default_str();
  command->add_option("--tokens", o->tokens, "Tokens to generate")->check(CLI::Range(1, 900))->capture_default_str();
  command->add_option("--threads", o->threads, "Threads of each process (default: the cores shared out, at least 1)")
      ->check(CLI::Range(0, 1024));
  command->add_flag("--no-repack,!--repack", o->no_repack,
                    "Whether the CPU may rearrange weights for speed, in the swarm and locally alike (default: it may not)");
  command->add_option("--llama-server", o->llama_server, "The engine's server: a path, or a name in PATH")
      ->envname("LINKCPP_LLAMA_SERVER")
      ->capture_default_str();
  command->add_option("--plugin", o->plugin, "libggml-linkcpp.so (default: the one that belongs to this program)")
      ->envname("LINKCPP_PLUGIN");
  command->add_option("--keep-logs", o->keep_logs, "Copy the logs of all processes to this folder");
  command->add_flag("--json", o->json,
                    "Print a JSON object: text, identical, tokens_per_s, tokens_per_s_local, layers, bytes, workers, ...");
  command->footer(
      "Every part is a real process: a backbone (linkcpp serve, with llama-server and the plugin), the workers, TLS between them.\n"
      "Exit code 1 if raw F32 is not identical to the local run.");
  command->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace linkcpp::cli
