// A text in chunks through a model: the rows by which a setting is judged.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gate/recording.h"
#include "llama/text_model.h"

namespace linkcpp::gate {

struct EvaluationOptions {
  std::uint32_t n_chunk = 512;   ///< tokens a chunk; the model's batch holds at least as many
  std::uint32_t max_chunks = 0;  ///< stop after so many; 0: the whole text
};

/// Computes the chunks one after the other, each from an empty cache, and hands rows of the second half of each to `sink`, as perplexity
/// tools do: those before have too little context to be typical. The sink is finished. `progress(done, all)` runs after each chunk.
Result<> evaluate(llama::TextModel& model, const std::string& text, const EvaluationOptions& options, Sink& sink,
                  const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace linkcpp::gate
