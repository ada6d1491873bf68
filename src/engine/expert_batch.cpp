#include "engine/expert_batch.h"

#include <algorithm>
#include <cstring>

namespace linkcpp::engine {
namespace {

bool is_host(const ggml_tensor* tensor) {
  const ggml_tensor* owner = tensor->view_src != nullptr ? tensor->view_src : tensor;
  return ggml_backend_buffer_is_host(owner->buffer);
}

/// A tensor's bytes for writing: its own where the host reaches them, else a staging area that is sent when this goes.
class Writer {
 public:
  Writer(ggml_tensor* tensor, std::vector<std::byte>& staging) : tensor_(tensor), staged_(!is_host(tensor)) {
    if (staged_) staging.resize(ggml_nbytes(tensor));
    at_ = staged_ ? staging.data() : static_cast<std::byte*>(tensor->data);
    begin_ = at_;
  }
  ~Writer() {
    if (staged_) ggml_backend_tensor_set(tensor_, begin_, 0, ggml_nbytes(tensor_));
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  void put(const void* from, std::size_t bytes) {
    std::memcpy(at_, from, bytes);
    at_ += bytes;
  }

 private:
  ggml_tensor* tensor_;
  bool staged_;
  std::byte *at_ = nullptr, *begin_ = nullptr;
};

/// Adds rows in pair order, the very additions that the engine's chain of ADD nodes makes.
void sum_rows(const float* rows, std::size_t n_rows, std::size_t n, float* to) {
  std::memcpy(to, rows, n * sizeof(float));
  for (std::size_t r = 1; r < n_rows; ++r) {
    rows += n;
    for (std::size_t i = 0; i < n; ++i) to[i] += rows[i];
  }
}

}  // namespace

Result<> check_request(const wire::Program& program, const ExpertLayer& layer, const HostRequest& request) {
  if (request.inputs.size() != program.inputs.size()) {
    return fail(ErrorKind::invalid_input, "the request brings {} inputs, its program takes {}", request.inputs.size(),
                program.inputs.size());
  }
  for (std::size_t k = 0; k < program.inputs.size(); ++k) {
    const bool token = program.inputs[k].kind == wire::Input::Kind::token;
    const std::size_t wanted = (token ? std::size_t{request.n_tokens} : request.pairs.size()) * program.inputs[k].n;
    if (request.inputs[k].size() != wanted) {
      return fail(ErrorKind::invalid_input, "input {} of the request has {} elements, its pairs and tokens need {}", k,
                  request.inputs[k].size(), wanted);
    }
  }
  const std::size_t n_rows = request.mode == wire::CombineMode::raw ? request.pairs.size() : request.n_tokens;
  if (request.output.size() != n_rows * program.n_out()) {
    return fail(ErrorKind::invalid_input, "the request has room for {} result elements, {} are needed", request.output.size(),
                n_rows * program.n_out());
  }
  std::uint32_t token = 0, n_of_token = 0;
  for (const wire::WirePair& pair : request.pairs) {
    if (pair.token >= request.n_tokens || pair.token < token)
      return fail(ErrorKind::invalid_input, "the request's pairs are not grouped by its {} tokens", request.n_tokens);
    n_of_token = pair.token == token ? n_of_token + 1 : 1;
    token = pair.token;
    if (n_of_token > wire::max_token_pairs) return fail(ErrorKind::invalid_input, "a token has more than {} pairs", wire::max_token_pairs);
    if (pair.expert >= layer.n_expert) {
      return fail(ErrorKind::invalid_input, "expert {} of layer {} does not exist, there are {}", pair.expert, layer.key, layer.n_expert);
    }
    if (!layer.holds(pair.expert))
      return fail(ErrorKind::not_found, "expert {} of layer {} is not held by this worker", pair.expert, layer.key);
  }
  return {};
}

void ExpertBatch::assign(const wire::Program& program, const ExpertLayer& layer, std::span<HostRequest> requests) {
  program_ = &program;
  layer_ = &layer;
  requests_ = requests;
  tokens_.clear();
  repeated_expert_ = false;
  seen_.assign(layer.n_expert, UINT32_MAX);
  for (std::uint32_t r = 0; r < requests.size(); ++r) {
    const HostRequest& request = requests[r];
    const bool sum = request.mode == wire::CombineMode::sum;
    std::uint32_t next_row = 0;  // first token whose sum was not decided on
    const auto zero_until = [&](std::uint32_t token) {
      if (!sum) return;
      const std::size_t n = program.n_out();
      for (; next_row < token; ++next_row) std::ranges::fill(request.output.subspan(next_row * n, n), 0.0f);
      next_row = token + 1;
    };
    for (std::uint32_t p = 0; p < request.pairs.size(); ++p) {
      const wire::WirePair pair = request.pairs[p];
      if (p == 0 || pair.token != request.pairs[p - 1].token) {
        zero_until(pair.token);
        tokens_.push_back({r, pair.token, p, 0});
      }
      ++tokens_.back().n_pairs;
      const auto serial = static_cast<std::uint32_t>(tokens_.size());
      repeated_expert_ |= seen_[pair.expert] == serial;
      seen_[pair.expert] = serial;
    }
    zero_until(request.n_tokens);
  }
}

PairForm ExpertBatch::piece(std::size_t first, std::size_t max_pairs, bool grid_allowed, std::size_t& n_tokens) const {
  std::size_t n = 0, n_pairs = 0;
  bool even = true;
  while (first + n < tokens_.size() && (n == 0 || n_pairs + tokens_[first + n].n_pairs <= max_pairs)) {
    even = even && tokens_[first + n].n_pairs == tokens_[first].n_pairs;
    n_pairs += tokens_[first + n++].n_pairs;
  }
  n_tokens = n;
  if (grid_allowed && even && !repeated_expert_ && tokens_[first].n_pairs > 1) {
    return {.grid = true, .per_token = tokens_[first].n_pairs, .n_tokens = static_cast<std::uint32_t>(n)};
  }
  return {.grid = false, .per_token = 1, .n_tokens = static_cast<std::uint32_t>(n_pairs)};
}

void ExpertBatch::fill(const ExpertGraph& graph, PairForm form, std::size_t first, std::size_t n_tokens) {
  const auto tokens = part(first, n_tokens);
  if (graph.global_ids() != nullptr) fill_ids(graph.global_ids(), false, tokens);
  if (graph.local_ids() != nullptr) fill_ids(graph.local_ids(), true, tokens);
  for (std::size_t k = 0; k < program_->inputs.size(); ++k) {
    if (graph.input(k) != nullptr) fill_rows(graph.input(k), k, form, tokens);
  }
}

void ExpertBatch::fill_ids(ggml_tensor* to, bool local, std::span<const BatchToken> tokens) {
  if (to->buffer == nullptr) return;  // no op of the graph reads it
  Writer writer(to, staging_);
  for (const BatchToken& token : tokens) {
    for (const wire::WirePair& pair : requests_[token.request].pairs.subspan(token.first_pair, token.n_pairs)) {
      const std::int32_t id = local ? layer_->local[pair.expert] : pair.expert;
      writer.put(&id, sizeof id);
    }
  }
}

void ExpertBatch::fill_rows(ggml_tensor* to, std::size_t k, PairForm form, std::span<const BatchToken> tokens) {
  if (to->buffer == nullptr) return;
  Writer writer(to, staging_);
  const std::size_t n = program_->inputs[k].n, bytes = n * sizeof(float);
  const bool by_token = program_->inputs[k].kind == wire::Input::Kind::token;
  for (const BatchToken& token : tokens) {
    const float* rows = requests_[token.request].inputs[k].data();
    if (!by_token) {
      writer.put(rows + token.first_pair * n, token.n_pairs * bytes);
      continue;
    }
    const std::size_t copies = form.grid ? 1 : token.n_pairs;
    for (std::size_t i = 0; i < copies; ++i) writer.put(rows + token.token * n, bytes);
  }
}

void ExpertBatch::collect(const ExpertGraph& graph, std::size_t first, std::size_t n_tokens) {
  const ggml_tensor* output = graph.output();
  const float* rows = static_cast<const float*>(output->data);
  if (!is_host(output)) {
    staging_.resize(ggml_nbytes(output));
    ggml_backend_tensor_get(output, staging_.data(), 0, staging_.size());
    rows = reinterpret_cast<const float*>(staging_.data());
  }
  const std::size_t n = program_->n_out();
  for (const BatchToken& token : part(first, n_tokens)) {
    const HostRequest& request = requests_[token.request];
    if (request.mode == wire::CombineMode::sum) {
      sum_rows(rows, token.n_pairs, n, request.output.data() + token.token * n);
    } else {
      std::memcpy(request.output.data() + token.first_pair * n, rows, token.n_pairs * n * sizeof(float));
    }
    rows += token.n_pairs * n;
  }
}

}  // namespace linkcpp::engine
