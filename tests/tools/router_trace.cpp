// router_trace: records which experts a model's router selects for every token of some texts, one text after the other.
//
//   router_trace --model F --text austen.txt,csqlite.txt --out TRACE
//
// The engine is asked for the expert numbers of every layer's last expert product while it computes. Routing of a token does not
// depend on how many are computed at once (rounding apart), so that the texts run in batches.
#include "support/router_trace.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/anatomy.h"
#include "llama/text_model.h"
#include "support/value.h"

namespace {

using linkcpp::engine::LayerKey;
using linkcpp::llama::TextModel;
using linkcpp::test::RouterTrace;
using linkcpp::test::value;

struct Options {
  std::string model, out;
  std::vector<std::string> texts;
  std::uint32_t n_context = 256, max_tokens = 0;
  int n_threads = 1;
};

/// Expert numbers of the batch in progress, by layer.
struct Observer {
  std::map<LayerKey, std::vector<std::int32_t>> selected;
  std::uint32_t top_k = 0;

  static bool wanted(const ggml_tensor* node, LayerKey& layer) {
    if (node->op != GGML_OP_MUL_MAT_ID) return false;
    const auto name = linkcpp::engine::parse_expert_name(node->src[0]->name);
    if (!name || name->role != "ffn_down_exps.weight") return false;
    layer = name->layer;
    return true;
  }

  void take(const ggml_tensor* ids, LayerKey layer) {
    std::vector<std::byte> raw(ggml_nbytes(ids));
    ggml_backend_tensor_get(ids, raw.data(), 0, raw.size());
    top_k = static_cast<std::uint32_t>(ids->ne[0]);
    auto& to = selected[layer];
    to.clear();
    for (std::int64_t t = 0; t < ids->ne[1]; ++t) {
      for (std::int64_t k = 0; k < ids->ne[0]; ++k) {
        std::int32_t e = 0;
        std::memcpy(&e, raw.data() + static_cast<std::size_t>(t) * ids->nb[1] + static_cast<std::size_t>(k) * ids->nb[0], sizeof e);
        to.push_back(e);
      }
    }
  }

  bool observe(const ggml_tensor* node, bool ask) {
    LayerKey layer = 0;
    if (!wanted(node, layer)) return !ask;
    if (!ask) take(node->src[2], layer);
    return true;
  }
};

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read the text '" + path + "'");
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

/// Runs one context's worth of tokens from an empty cache.
void run(TextModel& model, std::span<const TextModel::Token> tokens) {
  model.forget();
  model.clear_batch();
  // Rows are wanted of all tokens, else the engine leaves the last layer out for all but one.
  for (std::size_t i = 0; i < tokens.size(); ++i) model.add(tokens[i], static_cast<std::int32_t>(i), 0, true);
  value(model.decode());
}

RouterTrace record(const Options& options) {
  const auto anatomy = value(linkcpp::engine::read_anatomy(options.model));
  RouterTrace trace;
  for (const auto& layer : anatomy.layers) {
    trace.layers.push_back({layer.key, static_cast<std::uint16_t>(layer.n_expert), layer.expert_bytes()});
  }
  Observer seen;
  const auto model = value(TextModel::load({.path = options.model,
                                            .n_threads = options.n_threads,
                                            .n_batch = options.n_context,
                                            .n_ctx = options.n_context,
                                            .observe = [&seen](ggml_tensor* node, bool ask) { return seen.observe(node, ask); }}));
  for (const std::string& path : options.texts) {
    std::vector<TextModel::Token> tokens = value(model->tokenize(read_text(path)));
    if (options.max_tokens != 0) tokens.resize(std::min<std::size_t>(tokens.size(), options.max_tokens));
    trace.domains.push_back({std::filesystem::path(path).stem().string(), static_cast<std::uint32_t>(tokens.size())});
    for (std::size_t first = 0; first < tokens.size(); first += options.n_context) {
      const std::size_t n = std::min<std::size_t>(options.n_context, tokens.size() - first);
      run(*model, std::span(tokens).subspan(first, n));
      trace.top_k = seen.top_k;
      for (std::size_t t = 0; t < n; ++t) {
        for (const auto& layer : trace.layers) {
          const auto& ids = seen.selected.at(layer.key);
          for (std::size_t k = 0; k < seen.top_k; ++k) trace.selected.push_back(static_cast<std::uint16_t>(ids.at(t * seen.top_k + k)));
        }
      }
    }
  }
  return trace;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Records which experts a model's router selects for every token of some texts."};
  Options options;
  app.add_option("--model", options.model, "GGUF file")->required()->check(CLI::ExistingFile);
  app.add_option("--text", options.texts, "Texts, one domain each, in this order")->required()->delimiter(',');
  app.add_option("--out", options.out, "Trace to write")->required();
  app.add_option("--context", options.n_context, "Tokens that see each other")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  app.add_option("--max-tokens", options.max_tokens, "At most so many of each text; 0: all")->capture_default_str();
  app.add_option("--threads", options.n_threads, "Threads of the engine")->check(CLI::Range(1, 1024))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const RouterTrace trace = record(options);
    linkcpp::test::write_trace(trace, options.out);
    std::printf("%s\n",
                nlohmann::json{{"tokens", trace.n_tokens()}, {"layers", trace.layers.size()}, {"top_k", trace.top_k}}.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "router_trace: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
