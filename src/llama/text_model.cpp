#include "llama/text_model.h"

#include <ggml-backend.h>
#include <llama.h>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdio>

namespace linkcpp::llama {
namespace {

void log_to_stderr(ggml_log_level level, const char* text, void* verbose) {
  static ggml_log_level last = GGML_LOG_LEVEL_NONE;  // continuation lines belong to the line before
  if (level != GGML_LOG_LEVEL_CONT) last = level;
  if (verbose != nullptr || last >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
}

/// Host memory of a type that has no repacked variants. An override to the CPU's usual type would not do: the loader takes it as
/// leave to repack.
ggml_backend_buffer_type_t plain_host_memory() {
  alignas(64) static std::array<std::byte, 64> bytes;
  const std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer_t)> mapped(
      ggml_backend_cpu_buffer_from_ptr(bytes.data(), bytes.size()), ggml_backend_buffer_free);
  return ggml_backend_buffer_get_type(mapped.get());
}

using ModelPtr = std::unique_ptr<llama_model, void (*)(llama_model*)>;
using AdapterPtr = std::unique_ptr<llama_adapter_lora, void (*)(llama_adapter_lora*)>;
using ContextPtr = std::unique_ptr<llama_context, void (*)(llama_context*)>;

Result<ModelPtr> load_model(const TextModelOptions& options) {
  llama_model_params params = llama_model_default_params();
  std::vector<ggml_backend_dev_t> devices;
  // An empty list means the CPU alone; no list would mean every graphics device, LINKCPP0 among them.
  params.n_gpu_layers = 0;
  if (options.device != "CPU") {
    devices.push_back(ggml_backend_dev_by_name(options.device.c_str()));
    if (devices[0] == nullptr) {
      return fail(ErrorKind::not_found, "there is no device '{}' (a plugin's device appears if GGML_BACKEND_PATH names the plugin)",
                  options.device);
    }
    params.n_gpu_layers = 999;
  }
  devices.push_back(nullptr);
  params.devices = devices.data();
  params.use_extra_bufts = options.repack;
  const std::array<llama_model_tensor_buft_override, 2> overrides{{{"exps", plain_host_memory()}, {nullptr, nullptr}}};
  if (options.plain_experts) params.tensor_buft_overrides = overrides.data();
  ModelPtr model(llama_model_load_from_file(options.path.c_str(), params), llama_model_free);
  if (!model) return fail(ErrorKind::invalid_input, "the engine could not load '{}'", options.path);
  return model;
}

}  // namespace

struct TextModel::State {
  ModelPtr model{nullptr, llama_model_free};
  AdapterPtr adapter{nullptr, [](llama_adapter_lora*) {}};  // the model frees it
  bool embeddings = false;
  std::function<bool(ggml_tensor*, bool)> observe;
  ContextPtr context{nullptr, llama_free};
  llama_batch batch{};
  std::int32_t n_batch = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { llama_batch_free(batch); }
  [[nodiscard]] const llama_vocab* vocab() const { return llama_model_get_vocab(model.get()); }
};

TextModel::TextModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
TextModel::~TextModel() = default;

Result<std::unique_ptr<TextModel>> TextModel::load(const TextModelOptions& options) {
  static int on = 0;
  llama_log_set(log_to_stderr, options.verbose ? &on : nullptr);
  ggml_backend_load_all();
  auto model = load_model(options);
  if (!model) return pass(model);
  auto state = std::make_unique<State>();
  state->model = std::move(*model);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = (options.n_ctx + 255) / 256 * 256 * options.n_seq;
  params.n_batch = options.n_batch;
  params.n_ubatch = options.n_ubatch == 0 ? options.n_batch : options.n_ubatch;
  params.n_seq_max = options.n_seq;
  params.n_threads = params.n_threads_batch = options.n_threads;
  state->embeddings = params.embeddings = options.embeddings;
  if (options.embeddings) params.pooling_type = LLAMA_POOLING_TYPE_NONE;
  if (options.observe) {
    state->observe = options.observe;
    params.cb_eval = [](ggml_tensor* node, bool ask, void* self) { return static_cast<State*>(self)->observe(node, ask); };
    params.cb_eval_user_data = state.get();
  }
  state->context.reset(llama_init_from_model(state->model.get(), params));
  if (!state->context)
    return fail(ErrorKind::unavailable, "the engine could not make a context of {} tokens for '{}'", params.n_ctx, options.path);
  if (auto applied = apply_lora(options, *state); !applied) return pass(applied);
  state->n_batch = static_cast<std::int32_t>(options.n_batch);
  state->batch = llama_batch_init(state->n_batch, 0, 1);
  return std::unique_ptr<TextModel>(new TextModel(std::move(state)));
}

Result<> TextModel::apply_lora(const TextModelOptions& options, State& state) {
  if (options.lora.empty()) return {};
  state.adapter.reset(llama_adapter_lora_init(state.model.get(), options.lora.c_str()));
  if (!state.adapter) return fail(ErrorKind::invalid_input, "the engine could not load the adapter '{}'", options.lora);
  llama_adapter_lora* adapter = state.adapter.get();
  float scale = 1;
  if (llama_set_adapters_lora(state.context.get(), &adapter, 1, &scale) != 0)
    return fail(ErrorKind::invalid_input, "the engine could not apply the adapter '{}'", options.lora);
  return {};
}

std::uint32_t TextModel::n_row() const {
  return state_->embeddings ? static_cast<std::uint32_t>(llama_model_n_embd(state_->model.get())) : n_vocab();
}

std::uint32_t TextModel::n_vocab() const { return static_cast<std::uint32_t>(llama_vocab_n_tokens(state_->vocab())); }

Result<std::vector<TextModel::Token>> TextModel::tokenize(const std::string& text) const {
  std::vector<Token> tokens(text.size() + 8);
  const int n = llama_tokenize(state_->vocab(), text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                               static_cast<std::int32_t>(tokens.size()), true, false);
  if (n < 0) return fail(ErrorKind::invalid_input, "the text of {} bytes could not be tokenized", text.size());
  tokens.resize(static_cast<std::size_t>(n));
  return tokens;
}

void TextModel::forget() { llama_memory_clear(llama_get_memory(state_->context.get()), true); }

void TextModel::clear_batch() { state_->batch.n_tokens = 0; }

void TextModel::add(Token token, std::int32_t position, std::int32_t sequence, bool output) {
  llama_batch& batch = state_->batch;
  assert(batch.n_tokens < state_->n_batch);
  const std::int32_t i = batch.n_tokens++;
  batch.token[i] = token;
  batch.pos[i] = position;
  batch.n_seq_id[i] = 1;
  batch.seq_id[i][0] = sequence;
  batch.logits[i] = output ? 1 : 0;
}

Result<> TextModel::decode() {
  const auto start = std::chrono::steady_clock::now();
  if (const int status = llama_decode(state_->context.get(), state_->batch); status != 0) {
    return fail(ErrorKind::unavailable, "the engine failed to compute a batch of {} tokens (status {})", state_->batch.n_tokens, status);
  }
  llama_synchronize(state_->context.get());
  times_.push_back(
      {state_->batch.n_tokens, std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start)});
  return {};
}

std::span<const float> TextModel::logits(std::int32_t i) const {
  llama_context* context = state_->context.get();
  return {state_->embeddings ? llama_get_embeddings_ith(context, i) : llama_get_logits_ith(context, i), n_row()};
}

}  // namespace linkcpp::llama
