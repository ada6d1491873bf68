// `linkcpp gate`: whether a model may send fewer bytes. Runs it locally and over workers on the same text, compares, and signs the result.
#include <openssl/sha.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <set>
#include <sstream>

#include "cli/child.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "engine/anatomy.h"
#include "gate/record.h"
#include "net/token.h"
#include "serve/address.h"
#include "serve/lines.h"
#include "serve/locate.h"
#include "serve/plugin_config.h"
#include "serve/progress.h"
#include "serve/status.h"
#include "serve/temp_dir.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

namespace fs = std::filesystem;
using serve::Json;
using namespace std::chrono_literals;

struct GateOptions {
  std::string model, text, home, plugin, listen, device;
  std::vector<std::string> dial, modes{"raw", "sum"}, wires{"f32", "f16", "int8", "fp8"};
  int workers = 2, threads = 0;
  std::uint32_t chunk = 512, chunks = 8;
  int wait_s = 300, deadline_ms = 60'000;
  gate::Thresholds thresholds;
  bool repack = true, strict = false, dry = false, json = false;
};

constexpr auto look_period = 100ms;
constexpr std::size_t max_text = 64u << 20;
constexpr std::string_view default_text = "held-out-austen.txt";

/// What a run of one setting said.
struct RunOutcome {
  std::optional<gate::Figures> figures;  ///< none for the reference
  std::set<std::string> devices;         ///< of the workers that joined
};

/// Reads JSON lines from a child's descriptor without blocking.
class LineSource {
 public:
  explicit LineSource(serve::Fd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] int fd() const { return open_ ? fd_.get() : -1; }
  template <class OnLine>
  void drain(OnLine&& on_line) {
    std::array<char, 16384> buffer;
    while (open_ && ready()) {
      const ssize_t n = ::read(fd_.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        open_ = false;
        return;
      }
      cutter_.feed({buffer.data(), static_cast<std::size_t>(n)}, on_line);
    }
  }

 private:
  [[nodiscard]] bool ready() const {
    pollfd p{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&p, 1, 0) > 0;
  }
  serve::Fd fd_;
  serve::LineCutter cutter_{1u << 20};
  bool open_ = true;
};

class Gate {
 public:
  Gate(const GateOptions& options, std::vector<gate::Setting> settings, engine::Anatomy anatomy, fs::path text, fs::path plugin,
       fs::path program, net::Identity identity, fs::path home, fs::path folder)
      : options_(options),
        settings_(std::move(settings)),
        anatomy_(std::move(anatomy)),
        text_(std::move(text)),
        plugin_(std::move(plugin)),
        program_(std::move(program)),
        identity_(std::move(identity)),
        home_(std::move(home)),
        folder_(std::move(folder)),
        progress_(false) {}

  Result<gate::Record> run() {
    gate::Record record{
        .model = anatomy_.digest, .model_name = anatomy_.name, .engine = engine::engine_version(), .thresholds = options_.thresholds};
    record.date = std::format("{:%FT%TZ}", std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
    auto digest = digest_of_text();
    if (!digest) return pass(digest);
    record.text_sha256 = std::move(*digest);
    if (auto room = check_room(); !room) return pass(room);
    if (auto reference = one_run("plain llama.cpp", reference_command()); !reference) return pass(reference);
    if (auto started = start_workers(); !started) return pass(started);
    std::set<std::string> devices;
    for (const auto& setting : settings_) {
      auto command = setting_command(setting);
      if (!command) return pass(command);
      auto outcome = one_run(to_string(setting), std::move(*command));
      if (!outcome) return pass(outcome);
      if (!outcome->figures) return fail(ErrorKind::internal, "the run of {} ended without figures", to_string(setting));
      devices.merge(outcome->devices);
      const std::string misses = gate::misses(*outcome->figures, options_.thresholds);
      record.rows.push_back({setting, *outcome->figures, misses.empty(), misses});
    }
    record.devices.assign(devices.begin(), devices.end());
    progress_.clear();
    return record;
  }

 private:
  Result<std::string> digest_of_text() const {
    std::ifstream in(text_, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    if (!in) return fail(ErrorKind::io, "cannot read the text '{}'", text_.string());
    wire::Digest digest{};
    SHA256(reinterpret_cast<const unsigned char*>(text.view().data()), text.view().size(), digest.data());
    return wire::to_hex(digest);
  }

  /// The reference's logits go to a file: a full disk should be seen before an hour of work.
  Result<> check_room() const {
    std::error_code error;
    const auto room = fs::space(folder_, error);
    const std::uint64_t chunks = options_.chunks;
    const std::uint64_t needed = chunks * (options_.chunk / 2) * sizeof(float) * anatomy_vocab();
    if (!error && room.available < needed) {
      return fail(ErrorKind::io, "the reference needs about {} in '{}', {} are free: set TMPDIR to a larger folder, or lower --chunks",
                  serve::human_bytes(static_cast<double>(needed)), folder_.string(),
                  serve::human_bytes(static_cast<double>(room.available)));
    }
    return {};
  }
  /// An upper guess: the vocabulary is not part of the anatomy.
  [[nodiscard]] std::uint64_t anatomy_vocab() const { return anatomy_.n_embd < 1024 ? 32'768 : 262'144; }

  [[nodiscard]] int threads() const { return shared_threads(options_.threads, options_.workers + 1); }

  [[nodiscard]] serve::Command run_command(const std::string& device) const {
    serve::Command command =
        clean_command({program_.string(), "gate-run", "--model", options_.model, "--device", device, "--threads", std::to_string(threads()),
                       "--text", text_.string(), "--chunk", std::to_string(options_.chunk), "--chunks", std::to_string(options_.chunks)});
    if (!options_.repack) command.argv.emplace_back("--no-repack");
    return command;
  }
  [[nodiscard]] fs::path reference_file() const { return folder_ / "reference.logits"; }

  [[nodiscard]] serve::Command reference_command() const {
    auto command = run_command("CPU");
    if (options_.repack) command.argv.emplace_back("--plain-experts");  // the layouts that the plugin and workers use
    command.argv.insert(command.argv.end(), {"--out", reference_file().string()});
    return command;
  }

  Result<serve::Command> setting_command(const gate::Setting& setting) {
    serve::PluginConfig config;
    config.model = options_.model;
    config.home = home_.string();
    config.name = "gate";
    if (!listen_.empty()) config.listen = {listen_};
    config.workers = options_.dial;
    config.mode = wire::to_string(setting.mode);
    config.wire = wire::to_string(setting.type);
    config.repack = options_.repack;
    config.deadline_ms = options_.deadline_ms;
    config.status_fd = serve::Command::extra_fd;
    const fs::path file = folder_ / std::format("plugin-{}-{}.json", wire::to_string(setting.mode), wire::to_string(setting.type));
    if (auto written = serve::write_private_file(file, serve::to_json(config).dump(2)); !written) return pass(written);
    auto command = run_command("LINKCPP0");
    command.argv.insert(command.argv.end(), {"--against", reference_file().string()});
    command.env["GGML_BACKEND_PATH"] = plugin_.string();
    command.env["LINKCPP_CONFIG"] = file.string();
    return command;
  }

  Result<> start_workers() {
    if (options_.listen != "none") {
      auto address = serve::parse_host_port(options_.listen);
      if (!address) return pass(address);
      address = serve::claim_port(*address);  // the same for all settings, so that workers find their way back
      if (!address) return pass(address);
      listen_ = address->text();
    }
    if (options_.workers == 0) return {};
    auto secret = net::load_or_create_secret(home_);
    if (!secret) return pass(secret);
    const auto token = net::JoinToken{identity_.key(), *secret, {listen_}}.encode();
    auto started = cli::start_workers(
        {.program = program_,
         .model = options_.model,
         .folder = folder_,
         .prefix = "gate-worker",
         .token = token,
         .count = options_.workers,
         .threads = threads(),
         .extra = options_.device.empty() ? std::vector<std::string>{} : std::vector<std::string>{"--device", options_.device}});
    if (!started) return pass(started);
    workers_ = std::move(*started);
    return {};
  }

  /// Runs a child to its end, showing how far it is.
  Result<RunOutcome> one_run(const std::string& what, serve::Command command) {
    auto lines = serve::Channel::open(), events = serve::Channel::open();
    if (!lines) return pass(lines);
    if (!events) return pass(events);
    command.out = lines->theirs.get();
    command.extra = events->theirs.get();
    auto child = Child::start(std::move(command), folder_ / "runs.log");
    if (!child) return pass(child);
    lines->theirs.reset();
    events->theirs.reset();
    LineSource out(std::move(lines->ours)), status(std::move(events->ours));
    RunOutcome outcome;
    serve::SwarmStatus swarm;
    std::optional<Error> damaged;
    std::string state = "loading";
    bool begun = false;
    const auto start = std::chrono::steady_clock::now();
    const auto look = [&] {
      status.drain([&](std::string_view line) { note_event(line, swarm, outcome, begun); });
      out.drain([&](std::string_view line) { note_line(line, outcome, state, damaged), begun = begun || state != "loading"; });
    };
    for (;;) {
      look();
      if (damaged) return std::unexpected(std::move(*damaged));
      if (const auto ended = child->ended()) {
        look();
        if (ended->success()) return outcome;
        auto failed = child->failure(std::format("the run of {}", what), *ended);
        if (!swarm.last_error().empty()) failed.error().message += "the plugin says: " + serve::printable(swarm.last_error());
        return failed;
      }
      if (auto alive = check_workers(workers_); !alive) return pass(alive);
      if (interrupted())
        return fail(ErrorKind::unavailable, "the gate was interrupted; everything it started is stopped, no record was written");
      const auto waited = std::chrono::steady_clock::now() - start;
      const std::string missing = swarm.missing();
      if (!begun && !missing.empty() && waited > std::chrono::seconds(options_.wait_s)) {
        return fail(ErrorKind::timeout, "waited {} s for workers; missing: {}. Start workers that hold them, or raise --wait",
                    options_.wait_s, missing);
      }
      progress_.state(std::format("{}: {}", what, !begun && !missing.empty() ? "waiting for experts: " + missing : state));
      std::array<pollfd, 2> polled{pollfd{out.fd(), POLLIN, 0}, pollfd{status.fd(), POLLIN, 0}};
      ::poll(polled.data(), polled.size(), static_cast<int>(look_period.count()));
    }
  }

  void note_event(std::string_view line, serve::SwarmStatus& swarm, RunOutcome& outcome, bool begun) {
    auto event = serve::parse_event(line);
    if (!event) return;
    swarm.apply(*event);
    const auto kind = serve::text_of(*event, "event");
    if (kind == "worker_joined") outcome.devices.insert(gate::device_kind(serve::text_of(*event, "device")));
    if (kind == "refused" || kind == "error" || (kind == "worker_left" && !begun)) progress_.line(serve::describe_event(*event));
  }

  static void note_line(std::string_view line, RunOutcome& outcome, std::string& state, std::optional<Error>& damaged) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return;
    if (json.contains("chunk"))
      state = std::format("chunk {:.0f} of {:.0f}", serve::number_of(json, "chunk"), serve::number_of(json, "of"));
    if (!json.contains("figures")) return;
    auto figures = gate::figures_from_json(json["figures"]);
    if (figures) {
      outcome.figures = *figures;
    } else {
      damaged = figures.error();
    }
  }

  const GateOptions& options_;
  std::vector<gate::Setting> settings_;
  engine::Anatomy anatomy_;
  fs::path text_, plugin_, program_;
  net::Identity identity_;
  fs::path home_, folder_;
  serve::Progress progress_;
  std::string listen_;
  std::vector<Child> workers_;
};

/// All combinations of the modes and wire types that were asked for.
Result<std::vector<gate::Setting>> parse_settings(const GateOptions& options) {
  std::vector<gate::Setting> settings;
  for (const auto& mode_name : options.modes) {
    auto mode = wire::parse_combine_mode(mode_name);
    if (!mode) return pass(mode);
    for (const auto& type_name : options.wires) {
      auto type = wire::parse_row_type(type_name);
      if (!type) return pass(type);
      settings.push_back({*mode, *type});
    }
  }
  return settings;
}

Result<> check_workers_can_come(const GateOptions& options) {
  if (options.workers == 0 && options.listen == "127.0.0.1:0" && options.dial.empty()) {
    return fail(ErrorKind::invalid_input,
                "with --workers 0 name where other workers can join (--listen 0.0.0.0:7101), or whom to dial (--worker HOST:PORT)");
  }
  if (options.workers > 0 && options.listen == "none")
    return fail(ErrorKind::invalid_input, "workers of this machine need --listen, on loopback at least");
  return {};
}

Result<fs::path> find_text(const std::string& given) {
  auto path = given.empty() ? serve::find_bundled_model(std::string(default_text)) : serve::existing_file(given, "the text");
  if (!path) return path;
  std::error_code error;
  if (const auto size = fs::file_size(*path, error); error || size == 0 || size > max_text) {
    return fail(ErrorKind::invalid_input, "the text '{}' has {} bytes; 1 to {} can be used", path->string(), error ? 0 : size, max_text);
  }
  return path;
}

void print_table(const gate::Record& record) {
  std::vector<std::vector<std::string>> rows{
      {"setting", "rows", "same top token", "mean cosine", "worst cosine", "mean KLD", "perplexity ratio", "verdict"}};
  for (const auto& row : record.rows) {
    const auto& f = row.figures;
    rows.push_back({to_string(row.setting), std::to_string(f.rows), std::format("{:.3f} %", 100 * f.argmax_agreement),
                    std::format("{:.7f}", f.mean_cosine), std::format("{:.6f}", f.worst_cosine), std::format("{:.2e}", f.mean_kld),
                    std::format("{:.6f}", f.perplexity_ratio),
                    !row.passed     ? "fails"
                    : f.identical() ? "passes, every bit equal"
                                    : "passes"});
  }
  std::printf("%s", serve::table(rows).c_str());
  for (const auto& row : record.rows) {
    if (!row.passed) std::printf("%s fails: %s\n", to_string(row.setting).c_str(), row.misses.c_str());
  }
}

Json to_json(const gate::Record& record, const std::string& file) {
  Json rows = Json::array();
  for (const auto& row : record.rows) {
    rows.push_back(gate::to_json(row));
    rows.back()["identical"] = row.figures.identical();
  }
  return {{"model", wire::to_hex(record.model)},
          {"engine", record.engine},
          {"devices", record.devices},
          {"thresholds", gate::to_json(record.thresholds)},
          {"rows", std::move(rows)},
          {"record", file.empty() ? Json() : Json(file)}};
}

Result<int> run_gate(const GateOptions& given) {
  GateOptions options = given;
  auto settings = parse_settings(options);
  if (!settings) return pass(settings);
  if (auto reachable = check_workers_can_come(options); !reachable) return pass(reachable);
  auto model = serve::existing_file(options.model, "the model");
  if (!model) return pass(model);
  options.model = model->string();
  auto anatomy = engine::read_anatomy(options.model);
  if (!anatomy) return pass(anatomy);
  if (anatomy->layers.empty())
    return fail(ErrorKind::invalid_input, "'{}' has no routed experts: there is nothing to dispatch", options.model);
  if (anatomy->experts_absent)
    return fail(ErrorKind::invalid_input, "'{}' is a backbone file: the gate compares with the whole model run locally; name that",
                options.model);
  auto text = find_text(options.text);
  if (!text) return pass(text);
  auto plugin = serve::find_plugin(options.plugin);
  if (!plugin) return pass(plugin);
  auto program = serve::own_program();
  if (!program) return pass(program);
  const auto home = net::home_folder(options.home);
  auto identity = net::Identity::load_or_create(home);
  if (!identity) return pass(identity);
  auto folder = serve::TempDir::make("linkcpp-gate");
  if (!folder) return pass(folder);
  auto record = Gate(options, std::move(*settings), std::move(*anatomy), *text, *plugin, *program, *identity, home, folder->path()).run();
  if (!record) return pass(record);
  std::string file;
  if (!options.dry) {
    if (auto saved = gate::save(gate::records_folder(home), *record, *identity); !saved) return pass(saved);
    file = (gate::records_folder(home) / gate::record_name(*record)).string();
  }
  if (options.json) {
    std::printf("%s\n", to_json(*record, file).dump(2).c_str());
  } else {
    print_table(*record);
    if (!file.empty()) std::printf("\nsigned record: %s\n`linkcpp serve --wire auto` uses it.\n", file.c_str());
  }
  const bool all = std::ranges::all_of(record->rows, &gate::Record::Row::passed);
  return options.strict && !all ? exit_code(ErrorKind::incompatible) : 0;
}

int run(const GateOptions& options) {
  watch_interrupts();
  const auto code = run_gate(options);
  return code ? *code : report(code.error());
}

void add_threshold_options(CLI::App& command, gate::Thresholds& t) {
  command.add_option("--min-argmax", t.argmax_agreement, "Least share of positions with the same most likely token")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--min-cosine", t.mean_cosine, "Least mean cosine of the logits")->check(CLI::Range(-1.0, 1.0))->capture_default_str();
  command.add_option("--max-kld", t.mean_kld, "Largest mean KL divergence, in nats")->check(CLI::NonNegativeNumber)->capture_default_str();
  command.add_option("--max-ppl-ratio", t.perplexity_ratio, "Largest ratio of perplexities")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

}  // namespace

void setup_gate(CLI::App& root, Action& chosen) {
  auto o = std::make_shared<GateOptions>();
  o->listen = "127.0.0.1:0";
  auto* command =
      root.add_subcommand("gate", "Compare a model over workers with the same model run locally; record which wire types it may use");
  command->add_option("model", o->model, "GGUF of a Mixture-of-Experts model")->required();
  command->add_option("--text", o->text,
                      "Text to evaluate; should resemble what the model is used for (default: a held-out novel that comes along)");
  command->add_option("--chunk", o->chunk, "Tokens a chunk; the second half of each counts")
      ->check(CLI::Range(16, 65536))
      ->capture_default_str();
  command->add_option("--chunks", o->chunks, "Most chunks")->check(CLI::Range(1, 100000))->capture_default_str();
  command->add_option("--mode", o->modes, "Combine modes to try: raw, sum")->delimiter(',')->capture_default_str();
  command->add_option("--wire", o->wires, "Wire types to try: f32, f16, int8, fp8")->delimiter(',')->capture_default_str();
  command->add_option("--workers", o->workers, "Worker processes to start on this machine; 0: others join or are dialled")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  command->add_option("--device", o->device, "Device of those workers (`linkcpp worker --list-devices`; default: the CPU)");
  command->add_option("--listen", o->listen, "HOST:PORT where workers join with the token of `linkcpp token`, or none")
      ->capture_default_str();
  command->add_option("--worker", o->dial, "HOST:PORT of a worker that listens (repeat for more)");
  command->add_option("--threads", o->threads, "Threads of each process (default: the cores shared out, at least 1)")
      ->check(CLI::Range(0, 1024));
  command->add_flag(
      "--no-repack,!--repack", [o](std::int64_t count) { o->repack = count <= 0; }, "Keep the file's layout of all weights, on both sides");
  command->add_option("--wait", o->wait_s, "Seconds to wait for workers that hold all experts")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command->add_option("--deadline", o->deadline_ms, "Milliseconds for one layer of a chunk")
      ->check(CLI::Range(100, 3'600'000))
      ->capture_default_str();
  add_threshold_options(*command, o->thresholds);
  command->add_option("--home", o->home, "Folder of the backbone's identity and records")->envname("LINKCPP_HOME");
  command->add_option("--plugin", o->plugin, "libggml-linkcpp.so (default: the one that belongs to this program)")
      ->envname("LINKCPP_PLUGIN");
  command->add_flag("--dry-run", o->dry, "Write no record");
  command->add_flag("--strict", o->strict, "Exit code 5 if any setting fails");
  command->add_flag("--json", o->json,
                    "Print a JSON object: model, engine, devices, thresholds, rows (mode, wire, figures, passed, misses), record");
  command->footer(
      "Examples:\n"
      "  linkcpp gate model.gguf                                      all modes and wire types, two workers on this machine\n"
      "  linkcpp gate model.gguf --text mail.txt --chunks 64           on text like that of your users\n"
      "  linkcpp gate model.gguf --workers 0 --listen 0.0.0.0:7101     with the workers that will serve it, whatever their devices\n\n"
      "The record is signed with this backbone's key and holds for this model, engine version and the kinds of devices that computed.\n"
      "`linkcpp serve --wire auto` picks the smallest wire type that passed. docs/accuracy.md argues the limits.");
  command->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace linkcpp::cli
