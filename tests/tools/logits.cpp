// logits: records what a model computes, and compares two recordings bit by bit and statistically.
//
//   logits record  --model F --device CPU --no-repack --text FILE --lengths 1,7,64,512 --out A
//   logits compare A B
//   logits eval    --model F --device CPU --text FILE --out REFERENCE      half of every chunk, as perplexity tools do
//   logits eval    --model F --device LINKCPP0 --text FILE --against REFERENCE
//
// Whatever is computed, standard output gets one JSON object with the time of every batch and, if there is something to compare
// with, the comparison.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <format>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gate/evaluation.h"
#include "support/value.h"

namespace {

using linkcpp::Result;
using linkcpp::gate::argmax;
using linkcpp::gate::Comparer;
using linkcpp::gate::no_target;
using linkcpp::gate::Recorder;
using linkcpp::gate::Recording;
using linkcpp::gate::Row;
using linkcpp::gate::Sink;
using linkcpp::llama::TextModel;
using linkcpp::llama::TextModelOptions;
using linkcpp::test::value;
using Json = nlohmann::json;
using Token = TextModel::Token;

/// For measuring time alone.
class Discard final : public Sink {
 public:
  Result<> group(const std::string&, std::uint32_t) override { return {}; }
  Result<> row(std::int32_t, Row) override { return {}; }
};

Json times_of(const TextModel& model) {
  Json times = Json::array();
  for (const auto& batch : model.times()) times.push_back({{"tokens", batch.n_tokens}, {"us", batch.time.count()}});
  return times;
}

// ---- record ----------------------------------------------------------------------------------------------------------

/// Where rows go: one of the three.
struct Target {
  std::string out, against;
  bool discard = false;
};

struct RecordOptions {
  std::string text;
  std::optional<std::uint32_t> random_tokens;  ///< seed; for models without a vocabulary
  Target target;
  std::vector<std::uint32_t> lengths{1, 7, 64, 512};
  std::uint32_t n_decode = 16, parallel = 4;
};

/// The token that follows: the most likely one; a row of embeddings names none, but stands for some token all the same.
Token next_token(const TextModel& engine, std::int32_t i) { return static_cast<Token>(argmax(engine.logits(i)) % engine.n_vocab()); }

/// A prompt in one batch, all its rows; then greedy tokens one at a time.
void record_prompt(TextModel& engine, std::span<const Token> prompt, std::uint32_t n_decode, Sink& sink) {
  const auto n = static_cast<std::uint32_t>(prompt.size());
  engine.forget();
  engine.clear_batch();
  for (std::uint32_t i = 0; i < n; ++i) engine.add(prompt[i], static_cast<std::int32_t>(i), 0, true);
  value(engine.decode());
  value(sink.group(std::format("prompt of {}", n), n));
  for (std::uint32_t i = 0; i < n; ++i) value(sink.row(i + 1 < n ? prompt[i + 1] : no_target, engine.logits(static_cast<std::int32_t>(i))));
  Token token = next_token(engine, static_cast<std::int32_t>(n - 1));
  value(sink.group(std::format("decoding after {}", n), n_decode));
  for (std::uint32_t i = 0; i < n_decode; ++i) {
    engine.clear_batch();
    engine.add(token, static_cast<std::int32_t>(n + i), 0, true);
    value(engine.decode());
    value(sink.row(no_target, engine.logits(0)));
    token = next_token(engine, 0);
  }
}

/// Several sequences of different lengths in one batch, then one token of each in every further batch.
void record_parallel(TextModel& engine, std::span<const Token> tokens, const RecordOptions& options, std::uint32_t length, Sink& sink) {
  engine.forget();
  engine.clear_batch();
  std::vector<std::uint32_t> lengths, last;
  std::uint32_t total = 0;
  for (std::uint32_t s = 0; s < options.parallel; ++s) {
    lengths.push_back(std::max(1u, length / options.parallel + s) - (length >= 4 * options.parallel ? options.parallel : 0));
    for (std::uint32_t i = 0; i < lengths[s]; ++i) {
      engine.add(tokens[(s * 101 + i) % tokens.size()], static_cast<std::int32_t>(i), static_cast<std::int32_t>(s), true);
    }
    total += lengths[s];
    last.push_back(total - 1);
  }
  value(engine.decode());
  value(sink.group(std::format("{} sequences, {} tokens", options.parallel, total), total));
  for (std::uint32_t i = 0; i < total; ++i) value(sink.row(no_target, engine.logits(static_cast<std::int32_t>(i))));
  std::vector<Token> next;
  for (const std::uint32_t i : last) next.push_back(next_token(engine, static_cast<std::int32_t>(i)));
  value(sink.group(std::format("decoding {} sequences after {}", options.parallel, total), options.n_decode * options.parallel));
  for (std::uint32_t step = 0; step < options.n_decode; ++step) {
    engine.clear_batch();
    for (std::uint32_t s = 0; s < options.parallel; ++s) {
      engine.add(next[s], static_cast<std::int32_t>(lengths[s] + step), static_cast<std::int32_t>(s), true);
    }
    value(engine.decode());
    for (std::uint32_t s = 0; s < options.parallel; ++s) {
      value(sink.row(no_target, engine.logits(static_cast<std::int32_t>(s))));
      next[s] = next_token(engine, static_cast<std::int32_t>(s));
    }
  }
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(std::format("cannot read the text '{}'", path));
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::vector<Token> random_tokens(std::uint32_t seed, std::uint32_t n, std::uint32_t n_vocab) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(n);
  for (Token& token : tokens) token = static_cast<Token>(random() % n_vocab);
  return tokens;
}

std::string describe(const TextModelOptions& options, const char* what) {
  return Json{
      {"what", what}, {"model", options.path}, {"device", options.device}, {"repack", options.repack}, {"threads", options.n_threads}}
      .dump();
}

/// Runs `work` into the target, which it also finishes; returns the process's exit code: 0, or 3 if a comparison found a difference.
int with_sink(const Target& target, const TextModel& engine, const std::string& about, const auto& work) {
  Json report = Json::object();
  if (target.discard) {
    Discard discard;
    work(discard);
  } else if (!target.out.empty()) {
    work(*value(Recorder::create(target.out, engine.n_row(), about)));
  } else {
    const auto comparer = value(Comparer::open(target.against, engine.n_row()));
    work(*comparer);
    report = comparer->comparison().to_json();
  }
  report["batches"] = times_of(engine);
  std::printf("%s\n", report.dump().c_str());
  return report.value("identical", true) ? 0 : 3;
}

int record(const TextModelOptions& model, const RecordOptions& options) {
  if (options.lengths.empty() || std::ranges::min(options.lengths) == 0) throw std::runtime_error("--lengths must be positive");
  const std::uint32_t longest = std::ranges::max(options.lengths);
  TextModelOptions wide = model;
  wide.n_batch = std::max(wide.n_batch, longest + options.parallel * options.parallel);
  wide.n_ctx = longest + options.n_decode + 64;
  wide.n_seq = std::max(1u, options.parallel);
  const auto engine = value(TextModel::load(wide));
  const std::vector<Token> tokens = options.random_tokens ? random_tokens(*options.random_tokens, longest, engine->n_vocab())
                                                          : value(engine->tokenize(read_text(options.text)));
  if (tokens.size() < longest)
    throw std::runtime_error(std::format("the text has {} tokens, --lengths asks for {}", tokens.size(), longest));
  return with_sink(options.target, *engine, describe(model, "record"), [&](Sink& sink) {
    for (const std::uint32_t length : options.lengths) {
      record_prompt(*engine, std::span(tokens).first(length), options.n_decode, sink);
      if (options.parallel > 1) record_parallel(*engine, tokens, options, length, sink);
    }
    value(sink.finish());
  });
}

// ---- eval ------------------------------------------------------------------------------------------------------------

struct EvalOptions {
  std::string text;
  Target target;
  linkcpp::gate::EvaluationOptions evaluation;
};

int eval(const TextModelOptions& model, const EvalOptions& options) {
  TextModelOptions wide = model;
  wide.n_batch = std::max(wide.n_batch, options.evaluation.n_chunk);
  wide.n_ctx = options.evaluation.n_chunk;
  const auto engine = value(TextModel::load(wide));
  return with_sink(options.target, *engine, describe(model, "eval"), [&](Sink& sink) {
    value(linkcpp::gate::evaluate(*engine, read_text(options.text), options.evaluation, sink, [&](std::size_t done, std::size_t all) {
      if (model.verbose) std::fprintf(stderr, "chunk %zu of %zu\n", done, all);
    }));
  });
}

// ---- compare ---------------------------------------------------------------------------------------------------------

int compare(const std::string& path_a, const std::string& path_b) {
  const auto b = value(Recording::open(path_b));
  const auto comparer = value(Comparer::open(path_a, b->n_vocab()));
  while (const auto group = value(b->next_group())) {
    value(comparer->group(group->label, group->n_rows));
    for (std::uint32_t i = 0; i < group->n_rows; ++i) {
      const auto row = value(b->next_row());
      value(comparer->row(row.target, row.logits));
    }
  }
  value(comparer->finish());
  std::printf("%s\n", comparer->comparison().to_json().dump().c_str());
  return comparer->comparison().figures().identical() ? 0 : 3;
}

void add_model_options(CLI::App& command, TextModelOptions& options) {
  command.add_option("--model", options.path, "GGUF file")->required()->check(CLI::ExistingFile);
  command.add_option("--device", options.device, "CPU, or a device of a plugin such as LINKCPP0")->capture_default_str();
  command.add_option("--threads", options.n_threads, "Threads of the engine")->check(CLI::Range(1, 1024))->capture_default_str();
  command.add_option("--ubatch", options.n_ubatch, "Tokens that the engine computes at once; 0: a whole batch")
      ->check(CLI::Range(0, 1 << 20));
  command.add_flag("!--no-repack", options.repack, "Keep the file's layout of weights");
  command.add_flag("--plain-experts", options.plain_experts, "Keep the file's layout of experts and repack the rest, as the plugin does");
  command.add_flag("--embeddings", options.embeddings, "Rows of embeddings instead of logits");
  command.add_option("--lora", options.lora, "LoRA adapter to apply")->check(CLI::ExistingFile);
  command.add_flag("-v,--verbose", options.verbose, "Show the engine's log and progress");
}

void add_target_options(CLI::App& command, Target& target) {
  auto* group = command.add_option_group("target", "Where the logits go");
  group->add_option("--out", target.out, "Recording to write");
  group->add_option("--against", target.against, "Recording to compare with; prints the comparison, exit code 3 if a bit differs");
  group->add_flag("--discard", target.discard, "Nowhere: only the times count");
  group->require_option(1);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Records a model's logits and compares recordings bit by bit and statistically."};
  app.require_subcommand(1);
  TextModelOptions model;
  RecordOptions recording;
  EvalOptions evaluation;
  std::string a, b;
  auto* record_command = app.add_subcommand("record", "Prompts of several lengths, greedy decoding, several sequences in a batch");
  add_model_options(*record_command, model);
  auto* prompt = record_command->add_option_group("prompt", "Where tokens come from");
  prompt->add_option("--text", recording.text, "Text whose beginning is the prompt");
  prompt->add_option("--random-tokens", recording.random_tokens, "Seed of random tokens, for models without a vocabulary");
  prompt->require_option(1);
  record_command->add_option("--lengths", recording.lengths, "Prompt lengths in tokens")->delimiter(',')->capture_default_str();
  record_command->add_option("--n-decode", recording.n_decode, "Tokens to decode after each prompt")->capture_default_str();
  record_command->add_option("--parallel", recording.parallel, "Sequences in one batch; 1: none")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_target_options(*record_command, recording.target);
  auto* eval_command = app.add_subcommand("eval", "A whole text in chunks; the second half of each counts");
  add_model_options(*eval_command, model);
  eval_command->add_option("--text", evaluation.text, "Text to evaluate")->required();
  eval_command->add_option("--context", evaluation.evaluation.n_chunk, "Tokens a chunk")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  eval_command->add_option("--chunks", evaluation.evaluation.max_chunks, "Stop after this many chunks; 0: all")->capture_default_str();
  add_target_options(*eval_command, evaluation.target);
  auto* compare_command = app.add_subcommand("compare", "Two recordings; exit code 3 if a bit differs");
  compare_command->add_option("A", a, "Reference")->required();
  compare_command->add_option("B", b, "Recording to judge")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    if (*record_command) return record(model, recording);
    return *eval_command ? eval(model, evaluation) : compare(a, b);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "logits: error: %s\n", error.what());
    return 1;
  }
}
