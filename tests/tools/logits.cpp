// logits: records what a model computes, and compares two recordings bit by bit and statistically.
//
//   logits record  --model F --device CPU --no-repack --text FILE --lengths 1,7,64,512 --out A
//   logits compare A B
//   logits eval    --model F --device CPU --text FILE --out REFERENCE      half of every chunk, as perplexity tools do
//   logits eval    --model F --device LINKCPP0 --text FILE --against REFERENCE
//
// Whatever is computed, standard output gets one JSON object with the time of every batch and, if there is something to compare
// with, the comparison.
#include <ggml-backend.h>
#include <llama.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <format>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::json;
using Row = std::span<const float>;
using FilePtr = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// The token that truly follows a row of logits, where that is known.
constexpr std::int32_t no_target = -1;

FilePtr open_file(const std::string& path, const char* mode) {
  FilePtr file(std::fopen(path.c_str(), mode), &std::fclose);
  if (!file) throw std::runtime_error(std::format("cannot open '{}': {}", path, std::strerror(errno)));
  return file;
}

// ---- recordings ------------------------------------------------------------------------------------------------------
//
// "LKLG", u32 version, u32 n_vocab, u32 length of a JSON text and the text (how it was made); then groups of rows:
// u32 length of a label and the label, u32 n_rows, then for each row i32 target and n_vocab floats. Little-endian hosts only.

constexpr std::uint32_t magic = 0x474C4B4C, version = 1;
constexpr std::uint32_t max_label = 4096, max_about = 1 << 20, max_vocab = 1 << 24;

/// Takes rows of logits as they are computed.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void group(const std::string& label, std::uint32_t n_rows) = 0;
  virtual void row(std::int32_t target, Row logits) = 0;
};

class Writer final : public Sink {
 public:
  Writer(const std::string& path, std::uint32_t n_vocab, const std::string& about) : file_(open_file(path, "wb")), path_(path) {
    number(magic);
    number(version);
    number(n_vocab);
    text(about);
  }
  void group(const std::string& label, std::uint32_t n_rows) override {
    text(label);
    number(n_rows);
  }
  void row(std::int32_t target, Row logits) override {
    bytes(&target, sizeof target);
    bytes(logits.data(), logits.size_bytes());
  }
  void finish() {
    if (std::fclose(file_.release()) != 0) throw std::runtime_error("cannot write " + path_);
  }

 private:
  void bytes(const void* data, std::size_t n) {
    if (std::fwrite(data, 1, n, file_.get()) != n) throw std::runtime_error(std::format("cannot write '{}': is the disk full?", path_));
  }
  void number(std::uint32_t value) { bytes(&value, sizeof value); }
  void text(const std::string& value) {
    number(static_cast<std::uint32_t>(value.size()));
    bytes(value.data(), value.size());
  }

  FilePtr file_;
  std::string path_;
};

class Reader {
 public:
  struct Group {
    std::string label;
    std::uint32_t n_rows = 0;
  };

  explicit Reader(const std::string& path) : file_(open_file(path, "rb")), path_(path) {
    if (number() != magic || number() != version) throw std::runtime_error(std::format("'{}' is not a recording of logits", path));
    n_vocab_ = number();
    if (n_vocab_ == 0 || n_vocab_ > max_vocab) throw std::runtime_error(std::format("'{}': implausible vocabulary of {}", path, n_vocab_));
    about_ = text(max_about);
    row_.resize(n_vocab_);
  }
  [[nodiscard]] std::uint32_t n_vocab() const { return n_vocab_; }
  [[nodiscard]] const std::string& about() const { return about_; }

  /// None at the end of the file.
  std::optional<Group> next_group() {
    const int c = std::fgetc(file_.get());
    if (c == EOF) return std::nullopt;
    std::ungetc(c, file_.get());
    Group group;
    group.label = text(max_label);
    group.n_rows = number();
    return group;
  }
  /// The row lives until the next call.
  Row next_row(std::int32_t& target) {
    bytes(&target, sizeof target);
    bytes(row_.data(), row_.size() * sizeof(float));
    return row_;
  }

 private:
  void bytes(void* data, std::size_t n) {
    if (std::fread(data, 1, n, file_.get()) != n) throw std::runtime_error(std::format("'{}' is cut off", path_));
  }
  std::uint32_t number() {
    std::uint32_t value = 0;
    bytes(&value, sizeof value);
    return value;
  }
  std::string text(std::uint32_t limit) {
    const std::uint32_t n = number();
    if (n > limit) throw std::runtime_error(std::format("'{}' is damaged: a text of {} bytes", path_, n));
    std::string value(n, '\0');
    bytes(value.data(), n);
    return value;
  }

  FilePtr file_;
  std::string path_;
  std::uint32_t n_vocab_ = 0;
  std::string about_;
  std::vector<float> row_;
};

/// For measuring time alone.
class Discard final : public Sink {
 public:
  void group(const std::string&, std::uint32_t) override {}
  void row(std::int32_t, Row) override {}
};

// ---- statistics ------------------------------------------------------------------------------------------------------

/// log(sum(exp(x))), so that x - result are log-probabilities.
double log_sum_exp(Row x) {
  const double top = *std::ranges::max_element(x);
  double sum = 0;
  for (const float v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

std::size_t argmax(Row x) { return static_cast<std::size_t>(std::ranges::max_element(x) - x.begin()); }

/// What two series of rows have in common. `a` is the reference.
class Comparison {
 public:
  void add(const std::string& label, std::uint32_t index, Row a, Row b, std::int32_t target) {
    ++rows_;
    note_difference(label, index, a, b);
    note_likelihood(label, index, a, b, target);
    note_angle(label, index, a, b);
    if (argmax(a) == argmax(b)) ++same_argmax_;
  }

  [[nodiscard]] bool identical() const { return different_rows_ == 0; }

  [[nodiscard]] Json to_json() const {
    const auto n = static_cast<double>(rows_);
    Json json{{"rows", rows_}, {"identical", identical()}, {"different_rows", different_rows_}, {"max_abs_diff", max_diff_}};
    if (rows_ > 0) {
      json["mean_kld"] = kld_sum_ / n;
      json["max_kld"] = max_kld_;
      json["max_kld_at"] = max_kld_at_;
      json["mean_cosine"] = cosine_sum_ / n;
      json["worst_cosine"] = worst_cosine_;
      json["worst_cosine_at"] = worst_cosine_at_;
      json["argmax_agreement"] = static_cast<double>(same_argmax_) / n;
    }
    if (targets_ > 0) {
      const auto t = static_cast<double>(targets_);
      json["perplexity_a"] = std::exp(nll_a_ / t);
      json["perplexity_b"] = std::exp(nll_b_ / t);
      json["perplexity_ratio"] = std::exp((nll_b_ - nll_a_) / t);
    }
    if (!first_.is_null()) json["first_difference"] = first_;
    return json;
  }

 private:
  void note_difference(const std::string& label, std::uint32_t index, Row a, Row b) {
    // Bits, not values: a zero of the other sign, or another NaN, would be a difference.
    if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return;
    ++different_rows_;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double diff = std::fabs(static_cast<double>(a[i]) - b[i]);
      max_diff_ = std::isnan(diff) ? INFINITY : std::max(max_diff_, diff);
      if (first_.is_null() && std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
        first_ = {{"group", label}, {"row", index}, {"token", i}, {"a", a[i]}, {"b", b[i]}};
      }
    }
  }
  void note_likelihood(const std::string& label, std::uint32_t index, Row a, Row b, std::int32_t target) {
    const double za = log_sum_exp(a), zb = log_sum_exp(b);
    double kld = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double log_p = a[i] - za;
      kld += std::exp(log_p) * (log_p - (b[i] - zb));
    }
    kld_sum_ += kld;
    if (kld > max_kld_) {
      max_kld_ = kld;
      max_kld_at_ = std::format("{} row {}", label, index);
    }
    if (target < 0 || static_cast<std::size_t>(target) >= a.size()) return;
    ++targets_;
    nll_a_ -= a[static_cast<std::size_t>(target)] - za;
    nll_b_ -= b[static_cast<std::size_t>(target)] - zb;
  }
  void note_angle(const std::string& label, std::uint32_t index, Row a, Row b) {
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      ab += static_cast<double>(a[i]) * b[i];
      aa += static_cast<double>(a[i]) * a[i];
      bb += static_cast<double>(b[i]) * b[i];
    }
    const double cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : (aa == bb ? 1 : 0);
    cosine_sum_ += cosine;
    if (cosine < worst_cosine_) {
      worst_cosine_ = cosine;
      worst_cosine_at_ = std::format("{} row {}", label, index);
    }
  }

  std::uint64_t rows_ = 0, different_rows_ = 0, same_argmax_ = 0, targets_ = 0;
  double max_diff_ = 0, kld_sum_ = 0, max_kld_ = 0, cosine_sum_ = 0, worst_cosine_ = 1, nll_a_ = 0, nll_b_ = 0;
  std::string max_kld_at_, worst_cosine_at_;
  Json first_;
};

/// Compares rows with a recording while they are computed, so that only one row is in memory.
class Comparer final : public Sink {
 public:
  explicit Comparer(const std::string& path, std::uint32_t n_vocab) : reference_(path) {
    if (reference_.n_vocab() != n_vocab) throw std::runtime_error(std::format("'{}' was recorded with another vocabulary", path));
  }
  void group(const std::string& label, std::uint32_t n_rows) override {
    const auto expected = reference_.next_group();
    if (!expected || expected->label != label || expected->n_rows != n_rows) {
      throw std::runtime_error(std::format("the reference has no group '{}' of {} rows here: same model, text and lengths?", label, n_rows));
    }
    label_ = label;
    index_ = 0;
  }
  void row(std::int32_t target, Row logits) override {
    std::int32_t recorded = no_target;
    const Row reference = reference_.next_row(recorded);
    if (recorded != target) throw std::runtime_error(std::format("{} row {}: the text differs from the reference's", label_, index_));
    comparison.add(label_, index_++, reference, logits, target);
  }
  [[nodiscard]] bool at_end() { return !reference_.next_group(); }
  Comparison comparison;

 private:
  Reader reference_;
  std::string label_;
  std::uint32_t index_ = 0;
};

// ---- the model -------------------------------------------------------------------------------------------------------

struct ModelOptions {
  std::string model, device = "CPU";
  bool no_repack = false, plain_experts = false, verbose = false;
  std::int32_t threads = 1;
  std::uint32_t batch = 512;
};

void log_to_stderr(ggml_log_level level, const char* text, void* verbose) {
  static ggml_log_level last = GGML_LOG_LEVEL_NONE;
  if (level != GGML_LOG_LEVEL_CONT) last = level;
  if (*static_cast<bool*>(verbose) || last >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
}

class Engine {
 public:
  Engine(const ModelOptions& options, std::uint32_t n_ctx, std::uint32_t n_seq) : options_(options) {
    llama_log_set(log_to_stderr, &options_.verbose);
    ggml_backend_load_all();
    load();
    llama_context_params params = llama_context_default_params();
    params.n_ctx = (n_ctx + 255) / 256 * 256 * n_seq;
    params.n_batch = params.n_ubatch = options.batch;
    params.n_seq_max = n_seq;
    params.n_threads = params.n_threads_batch = options.threads;
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) throw std::runtime_error("the engine could not make a context for " + options.model);
    batch_ = llama_batch_init(static_cast<std::int32_t>(options.batch), 0, 1);
  }
  ~Engine() { llama_batch_free(batch_); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] std::uint32_t n_vocab() const { return static_cast<std::uint32_t>(llama_vocab_n_tokens(vocab())); }
  [[nodiscard]] std::uint32_t max_batch() const { return options_.batch; }

  std::vector<llama_token> tokenize(const std::string& text) const {
    std::vector<llama_token> tokens(text.size() + 8);
    const int n = llama_tokenize(vocab(), text.data(), static_cast<std::int32_t>(text.size()), tokens.data(), static_cast<std::int32_t>(tokens.size()),
                                 true, false);
    if (n < 0) throw std::runtime_error("the text could not be tokenized");
    tokens.resize(static_cast<std::size_t>(n));
    return tokens;
  }

  void forget() { llama_memory_clear(llama_get_memory(context_.get()), true); }
  void clear_batch() { batch_.n_tokens = 0; }
  void add(llama_token token, std::int32_t position, std::int32_t sequence, bool output) {
    if (batch_.n_tokens >= static_cast<std::int32_t>(options_.batch)) throw std::runtime_error("more tokens than fit a batch");
    const std::int32_t i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = output ? 1 : 0;
  }
  void decode() {
    const auto start = std::chrono::steady_clock::now();
    if (const int status = llama_decode(context_.get(), batch_); status != 0) {
      throw std::runtime_error(std::format("the engine failed to decode a batch (status {})", status));
    }
    llama_synchronize(context_.get());
    times_.push_back({{"tokens", batch_.n_tokens},
                      {"us", std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count()}});
  }
  /// Tokens and time of every batch.
  [[nodiscard]] const Json& times() const { return times_; }
  /// Logits of the i-th token of the last batch.
  Row logits(std::int32_t i) { return {llama_get_logits_ith(context_.get(), i), n_vocab()}; }

 private:
  [[nodiscard]] const llama_vocab* vocab() const { return llama_model_get_vocab(model_.get()); }

  /// Host memory of a type that has no repacked variants. An override to the CPU's usual type would not do: the loader takes it as
  /// leave to repack.
  static ggml_backend_buffer_type_t plain_host_memory() {
    alignas(64) static std::array<std::byte, 64> bytes;
    const std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer_t)> mapped(ggml_backend_cpu_buffer_from_ptr(bytes.data(), bytes.size()),
                                                                                      ggml_backend_buffer_free);
    return ggml_backend_buffer_get_type(mapped.get());
  }

  void load() {
    llama_model_params params = llama_model_default_params();
    std::vector<ggml_backend_dev_t> devices;
    // An empty list means the CPU alone; no list would mean every graphics device, LINKCPP0 among them.
    if (options_.device != "CPU") {
      devices.push_back(ggml_backend_dev_by_name(options_.device.c_str()));
      if (devices[0] == nullptr) throw std::runtime_error(std::format("there is no device '{}' (is GGML_BACKEND_PATH set?)", options_.device));
      params.n_gpu_layers = 999;
    } else {
      params.n_gpu_layers = 0;
    }
    devices.push_back(nullptr);
    params.devices = devices.data();
    params.use_extra_bufts = !options_.no_repack;
    const std::array<llama_model_tensor_buft_override, 2> overrides{{{"exps", plain_host_memory()}, {nullptr, nullptr}}};
    if (options_.plain_experts) params.tensor_buft_overrides = overrides.data();
    model_.reset(llama_model_load_from_file(options_.model.c_str(), params));
    if (!model_) throw std::runtime_error(std::format("the engine could not load '{}'", options_.model));
  }

  ModelOptions options_;
  std::unique_ptr<llama_model, void (*)(llama_model*)> model_{nullptr, llama_model_free};
  std::unique_ptr<llama_context, void (*)(llama_context*)> context_{nullptr, llama_free};
  llama_batch batch_{};
  Json times_ = Json::array();
};

// ---- record ----------------------------------------------------------------------------------------------------------

/// Where rows go: one of the three.
struct Target {
  std::string out, against;
  bool discard = false;
};

struct RecordOptions {
  std::string text;
  Target target;
  std::vector<std::uint32_t> lengths{1, 7, 64, 512};
  std::uint32_t n_decode = 16, parallel = 4;
};

/// A prompt in one batch, all its rows; then greedy tokens one at a time.
void record_prompt(Engine& engine, std::span<const llama_token> prompt, std::uint32_t n_decode, Sink& sink) {
  const auto n = static_cast<std::uint32_t>(prompt.size());
  engine.forget();
  engine.clear_batch();
  for (std::uint32_t i = 0; i < n; ++i) engine.add(prompt[i], static_cast<std::int32_t>(i), 0, true);
  engine.decode();
  sink.group(std::format("prompt of {}", n), n);
  for (std::uint32_t i = 0; i < n; ++i) sink.row(i + 1 < n ? prompt[i + 1] : no_target, engine.logits(static_cast<std::int32_t>(i)));
  auto token = static_cast<llama_token>(argmax(engine.logits(static_cast<std::int32_t>(n - 1))));
  sink.group(std::format("decoding after {}", n), n_decode);
  for (std::uint32_t i = 0; i < n_decode; ++i) {
    engine.clear_batch();
    engine.add(token, static_cast<std::int32_t>(n + i), 0, true);
    engine.decode();
    sink.row(no_target, engine.logits(0));
    token = static_cast<llama_token>(argmax(engine.logits(0)));
  }
}

/// Several sequences of different lengths in one batch, then one token of each in every further batch.
void record_parallel(Engine& engine, std::span<const llama_token> tokens, const RecordOptions& options, std::uint32_t length, Sink& sink) {
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
  engine.decode();
  sink.group(std::format("{} sequences, {} tokens", options.parallel, total), total);
  for (std::uint32_t i = 0; i < total; ++i) sink.row(no_target, engine.logits(static_cast<std::int32_t>(i)));
  std::vector<llama_token> next;
  for (const std::uint32_t i : last) next.push_back(static_cast<llama_token>(argmax(engine.logits(static_cast<std::int32_t>(i)))));
  sink.group(std::format("decoding {} sequences after {}", options.parallel, total), options.n_decode * options.parallel);
  for (std::uint32_t step = 0; step < options.n_decode; ++step) {
    engine.clear_batch();
    for (std::uint32_t s = 0; s < options.parallel; ++s) {
      engine.add(next[s], static_cast<std::int32_t>(lengths[s] + step), static_cast<std::int32_t>(s), true);
    }
    engine.decode();
    for (std::uint32_t s = 0; s < options.parallel; ++s) {
      const Row row = engine.logits(static_cast<std::int32_t>(s));
      sink.row(no_target, row);
      next[s] = static_cast<llama_token>(argmax(row));
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

std::string describe(const ModelOptions& options, const char* what) {
  return Json{{"what", what}, {"model", options.model}, {"device", options.device}, {"repack", !options.no_repack}, {"threads", options.threads}}.dump();
}

/// Runs `work` into the target; returns the process's exit code: 0, or 3 if a comparison found a difference.
int with_sink(const Target& target, Engine& engine, const std::string& about, const auto& work) {
  Json report = Json::object();
  if (target.discard) {
    Discard discard;
    work(discard);
  } else if (!target.out.empty()) {
    Writer writer(target.out, engine.n_vocab(), about);
    work(writer);
    writer.finish();
  } else {
    Comparer comparer(target.against, engine.n_vocab());
    work(comparer);
    if (!comparer.at_end()) throw std::runtime_error("the reference holds more than was computed: same lengths?");
    report = comparer.comparison.to_json();
  }
  report["batches"] = engine.times();
  std::printf("%s\n", report.dump().c_str());
  return report.value("identical", true) ? 0 : 3;
}

int record(const ModelOptions& model, const RecordOptions& options) {
  if (options.lengths.empty() || std::ranges::min(options.lengths) == 0) throw std::runtime_error("--lengths must be positive");
  const std::uint32_t longest = std::ranges::max(options.lengths);
  ModelOptions wide = model;
  wide.batch = std::max(wide.batch, longest + options.parallel * options.parallel);
  Engine engine(wide, longest + options.n_decode + 64, std::max(1u, options.parallel));
  const std::vector<llama_token> tokens = engine.tokenize(read_text(options.text));
  if (tokens.size() < longest) throw std::runtime_error(std::format("the text has {} tokens, --lengths asks for {}", tokens.size(), longest));
  return with_sink(options.target, engine, describe(model, "record"), [&](Sink& sink) {
    for (const std::uint32_t length : options.lengths) {
      record_prompt(engine, std::span(tokens).first(length), options.n_decode, sink);
      if (options.parallel > 1) record_parallel(engine, tokens, options, length, sink);
    }
  });
}

// ---- eval ------------------------------------------------------------------------------------------------------------

struct EvalOptions {
  std::string text;
  Target target;
  std::uint32_t context = 512, max_chunks = 0;
};

int eval(const ModelOptions& model, const EvalOptions& options) {
  ModelOptions wide = model;
  wide.batch = std::max(wide.batch, options.context);
  Engine engine(wide, options.context, 1);
  const std::vector<llama_token> tokens = engine.tokenize(read_text(options.text));
  std::size_t n_chunks = tokens.size() / options.context;
  if (options.max_chunks > 0) n_chunks = std::min<std::size_t>(n_chunks, options.max_chunks);
  if (n_chunks == 0) throw std::runtime_error(std::format("the text has {} tokens, fewer than one chunk of {}", tokens.size(), options.context));
  // Only rows of the second half count: those before have too little context to be typical.
  const std::uint32_t first = options.context / 2, n_rows = options.context - 1 - first;
  return with_sink(options.target, engine, describe(model, "eval"), [&](Sink& sink) {
    for (std::size_t chunk = 0; chunk < n_chunks; ++chunk) {
      const auto part = std::span(tokens).subspan(chunk * options.context, options.context);
      engine.forget();
      engine.clear_batch();
      for (std::uint32_t i = 0; i < options.context; ++i) engine.add(part[i], static_cast<std::int32_t>(i), 0, i >= first && i + 1 < options.context);
      engine.decode();
      sink.group(std::format("chunk {}", chunk), n_rows);
      for (std::uint32_t i = first; i + 1 < options.context; ++i) sink.row(part[i + 1], engine.logits(static_cast<std::int32_t>(i)));
      if (model.verbose) std::fprintf(stderr, "chunk %zu of %zu\n", chunk + 1, n_chunks);
    }
  });
}

// ---- compare ---------------------------------------------------------------------------------------------------------

int compare(const std::string& path_a, const std::string& path_b) {
  Reader a(path_a), b(path_b);
  if (a.n_vocab() != b.n_vocab()) throw std::runtime_error("the recordings have different vocabularies");
  Comparison comparison;
  while (const auto group_a = a.next_group()) {
    const auto group_b = b.next_group();
    if (!group_b || group_b->label != group_a->label || group_b->n_rows != group_a->n_rows) {
      throw std::runtime_error(std::format("'{}' has no group '{}' of {} rows where '{}' has", path_b, group_a->label, group_a->n_rows, path_a));
    }
    for (std::uint32_t i = 0; i < group_a->n_rows; ++i) {
      std::int32_t target_a = no_target, target_b = no_target;
      const Row row_a = a.next_row(target_a), row_b = b.next_row(target_b);
      if (target_a != target_b) throw std::runtime_error("the recordings are of different texts");
      comparison.add(group_a->label, i, row_a, row_b, target_a);
    }
  }
  if (b.next_group()) throw std::runtime_error(std::format("'{}' holds more than '{}'", path_b, path_a));
  std::printf("%s\n", comparison.to_json().dump().c_str());
  return comparison.identical() ? 0 : 3;
}

void add_model_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--model", options.model, "GGUF file")->required()->check(CLI::ExistingFile);
  command.add_option("--device", options.device, "CPU, or a device of a plugin such as LINKCPP0")->capture_default_str();
  command.add_option("--threads", options.threads, "Threads of the engine")->check(CLI::Range(1, 1024))->capture_default_str();
  command.add_flag("--no-repack", options.no_repack, "Keep the file's layout of weights");
  command.add_flag("--plain-experts", options.plain_experts, "Keep the file's layout of experts and repack the rest, as the plugin does");
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
  ModelOptions model;
  RecordOptions recording;
  EvalOptions evaluation;
  std::string a, b;
  auto* record_command = app.add_subcommand("record", "Prompts of several lengths, greedy decoding, several sequences in a batch");
  add_model_options(*record_command, model);
  record_command->add_option("--text", recording.text, "Text whose beginning is the prompt")->required();
  record_command->add_option("--lengths", recording.lengths, "Prompt lengths in tokens")->delimiter(',')->capture_default_str();
  record_command->add_option("--n-decode", recording.n_decode, "Tokens to decode after each prompt")->capture_default_str();
  record_command->add_option("--parallel", recording.parallel, "Sequences in one batch; 1: none")->check(CLI::Range(1, 64))->capture_default_str();
  add_target_options(*record_command, recording.target);
  auto* eval_command = app.add_subcommand("eval", "A whole text in chunks; the second half of each counts");
  add_model_options(*eval_command, model);
  eval_command->add_option("--text", evaluation.text, "Text to evaluate")->required();
  eval_command->add_option("--context", evaluation.context, "Tokens a chunk")->check(CLI::Range(4, 1 << 20))->capture_default_str();
  eval_command->add_option("--chunks", evaluation.max_chunks, "Stop after this many chunks; 0: all")->capture_default_str();
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
