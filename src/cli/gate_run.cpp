// `linkcpp gate-run`: one run of the gate over its text, in a process of its own, since the engine loads the plugin once for a process.
// Standard output gets JSON lines: {"chunk": 3, "of": 8} after each chunk; at the end {"figures": {...}} if there was a reference.
#include <cstdio>
#include <fstream>
#include <sstream>

#include "cli/command.h"
#include "gate/evaluation.h"

namespace linkcpp::cli {
namespace {

using Json = nlohmann::json;

struct GateRunOptions {
  llama::TextModelOptions model;
  gate::EvaluationOptions evaluation;
  std::string text, out, against;
};

void print_line(const Json& json) {
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

Result<> run(const GateRunOptions& options) {
  std::ifstream in(options.text, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.view().empty()) return fail(ErrorKind::io, "cannot read the text '{}', or it is empty", options.text);
  llama::TextModelOptions wide = options.model;
  wide.n_batch = wide.n_ctx = options.evaluation.n_chunk;
  auto model = llama::TextModel::load(wide);
  if (!model) return pass(model);
  const auto progress = [](std::size_t done, std::size_t all) { print_line({{"chunk", done}, {"of", all}}); };
  if (!options.out.empty()) {
    auto recorder = gate::Recorder::create(options.out, (*model)->n_vocab(), "{}");
    if (!recorder) return pass(recorder);
    return gate::evaluate(**model, text.str(), options.evaluation, **recorder, progress);
  }
  auto comparer = gate::Comparer::open(options.against, (*model)->n_vocab());
  if (!comparer) return pass(comparer);
  if (auto done = gate::evaluate(**model, text.str(), options.evaluation, **comparer, progress); !done) return done;
  print_line({{"figures", gate::to_json((*comparer)->comparison().figures())}});
  return {};
}

}  // namespace

void setup_gate_run(CLI::App& root, Action& chosen) {
  auto o = std::make_shared<GateRunOptions>();
  auto* command = root.add_subcommand("gate-run", "One run of `linkcpp gate`, for its own use")->group("");
  command->add_option("--model", o->model.path, "GGUF file")->required();
  command->add_option("--device", o->model.device, "CPU, or the plugin's device")->required();
  command->add_option("--threads", o->model.n_threads, "Threads of the engine")->required();
  command->add_option("--text", o->text, "Text to evaluate")->required();
  command->add_option("--chunk", o->evaluation.n_chunk, "Tokens a chunk")->required();
  command->add_option("--chunks", o->evaluation.max_chunks, "Most chunks")->required();
  command->add_flag("--plain-experts", o->model.plain_experts, "Keep the file's layout of experts and repack the rest");
  command->add_flag("!--no-repack", o->model.repack, "Keep the file's layout of all weights");
  auto* target = command->add_option_group("target");
  target->add_option("--out", o->out, "Recording to write");
  target->add_option("--against", o->against, "Recording to compare with");
  target->require_option(1);
  command->callback([o, &chosen] {
    chosen = [o] {
      const auto done = run(*o);
      return done ? 0 : report(done.error());
    };
  });
}

}  // namespace linkcpp::cli
