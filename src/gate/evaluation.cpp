#include "gate/evaluation.h"

#include <algorithm>
#include <format>
#include <span>

namespace linkcpp::gate {
namespace {

Result<> one_chunk(llama::TextModel& model, std::span<const llama::TextModel::Token> tokens, const std::string& label, Sink& sink) {
  const auto n = static_cast<std::uint32_t>(tokens.size());
  const std::uint32_t first = n / 2;
  model.forget();
  model.clear_batch();
  for (std::uint32_t i = 0; i < n; ++i) model.add(tokens[i], static_cast<std::int32_t>(i), 0, i >= first && i + 1 < n);
  if (auto computed = model.decode(); !computed) return computed;
  if (auto begun = sink.group(label, n - 1 - first); !begun) return begun;
  for (std::uint32_t i = first; i + 1 < n; ++i) {
    if (auto taken = sink.row(tokens[i + 1], model.logits(static_cast<std::int32_t>(i))); !taken) return taken;
  }
  return {};
}

}  // namespace

Result<> evaluate(llama::TextModel& model, const std::string& text, const EvaluationOptions& options, Sink& sink,
                  const std::function<void(std::size_t, std::size_t)>& progress) {
  auto tokens = model.tokenize(text);
  if (!tokens) return pass(tokens);
  std::size_t n_chunks = tokens->size() / options.n_chunk;
  if (options.max_chunks > 0) n_chunks = std::min<std::size_t>(n_chunks, options.max_chunks);
  if (n_chunks == 0) {
    return fail(ErrorKind::invalid_input, "the text has {} tokens, fewer than one chunk of {}: give a longer text, or shorter chunks",
                tokens->size(), options.n_chunk);
  }
  for (std::size_t chunk = 0; chunk < n_chunks; ++chunk) {
    const auto part = std::span(*tokens).subspan(chunk * options.n_chunk, options.n_chunk);
    if (auto done = one_chunk(model, part, std::format("chunk {}", chunk), sink); !done) return done;
    if (progress) progress(chunk + 1, n_chunks);
  }
  return sink.finish();
}

}  // namespace linkcpp::gate
