// A model in the engine that is run over given tokens: the only code of ours that calls libllama. (llama-server does in production.)
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

struct ggml_tensor;

namespace linkcpp::llama {

struct TextModelOptions {
  std::string path;
  std::string device = "CPU";  ///< or a device of a plugin, such as "LINKCPP0" (found through GGML_BACKEND_PATH)
  bool repack = true;          ///< let the CPU rearrange weights for speed
  bool plain_experts = false;  ///< with repack: all but the experts, as the plugin does
  bool embeddings = false;     ///< rows are the tokens' embeddings instead of logits, for models without an output matrix
  std::string lora;            ///< LoRA adapter to apply; empty: none
  bool verbose = false;        ///< the engine's log on standard error; warnings come in any case
  int n_threads = 1;
  std::uint32_t n_batch = 512;  ///< most tokens of one batch
  std::uint32_t n_ubatch = 0;   ///< most tokens that the engine computes at once; 0: a whole batch
  std::uint32_t n_ctx = 512;    ///< most tokens of a sequence
  std::uint32_t n_seq = 1;      ///< sequences side by side
  /// Sees nodes of the graph: asked with `ask` whether it wants one, and called again without when that is computed. Returning false then
  /// ends the computation. Empty: nothing is observed, which is faster.
  std::function<bool(ggml_tensor* node, bool ask)> observe;
};

/// Tokens and time of one batch.
struct BatchTime {
  std::int32_t n_tokens = 0;
  std::chrono::microseconds time{0};
};

/// Not thread-safe. One at a time in a process that sets `verbose`: the engine's log is global.
class TextModel {
 public:
  using Token = std::int32_t;

  static Result<std::unique_ptr<TextModel>> load(const TextModelOptions& options);
  ~TextModel();
  TextModel(const TextModel&) = delete;
  TextModel& operator=(const TextModel&) = delete;

  [[nodiscard]] std::uint32_t n_vocab() const;
  /// Elements of a row: of the vocabulary, or of an embedding.
  [[nodiscard]] std::uint32_t n_row() const;
  [[nodiscard]] Result<std::vector<Token>> tokenize(const std::string& text) const;

  /// Empties the KV cache.
  void forget();
  void clear_batch();
  /// Appends a token to the batch; the batch must have room.
  void add(Token token, std::int32_t position, std::int32_t sequence, bool output);
  /// Computes the batch.
  Result<> decode();
  /// Logits (or embedding) of the i-th token of the last batch, which must have been added with `output`; valid until the next decode().
  [[nodiscard]] std::span<const float> logits(std::int32_t i) const;
  [[nodiscard]] const std::vector<BatchTime>& times() const { return times_; }

 private:
  struct State;
  explicit TextModel(std::unique_ptr<State> state);
  static Result<> apply_lora(const TextModelOptions& options, State& state);
  std::unique_ptr<State> state_;
  std::vector<BatchTime> times_;
};

}  // namespace linkcpp::llama
