// A batch of requests as a list of tokens, cut into pieces that one graph computes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/expert_graph.h"
#include "engine/expert_host.h"

namespace linkcpp::engine {

/// One token of one request, with at least one pair.
struct BatchToken {
  std::uint32_t request = 0;
  std::uint32_t token = 0;       ///< row in the request
  std::uint32_t first_pair = 0;  ///< in the request
  std::uint32_t n_pairs = 0;
};

/// Checks a request's shape against a program and the held experts.
Result<> check_request(const wire::Program& program, const ExpertLayer& layer, const HostRequest& request);

class ExpertBatch {
 public:
  /// Lists the tokens of checked requests. Zeroes the sums of tokens without pairs.
  void assign(const wire::Program& program, const ExpertLayer& layer, std::span<HostRequest> requests);

  [[nodiscard]] std::size_t n_tokens() const { return tokens_.size(); }
  /// How many tokens from `first` on go into one graph of at most `max_pairs` pairs (one token always does), and in which form.
  [[nodiscard]] PairForm piece(std::size_t first, std::size_t max_pairs, bool grid_allowed, std::size_t& n_tokens) const;

  /// Writes expert numbers and input rows of a piece into a graph's tensors.
  void fill(const ExpertGraph& graph, PairForm form, std::size_t first, std::size_t n_tokens);
  /// Puts a piece's result rows where its requests want them, summing where they want sums.
  void collect(const ExpertGraph& graph, std::size_t first, std::size_t n_tokens);

 private:
  [[nodiscard]] std::span<const BatchToken> part(std::size_t first, std::size_t n) const { return std::span(tokens_).subspan(first, n); }
  void fill_ids(ggml_tensor* to, bool local, std::span<const BatchToken> tokens);
  void fill_rows(ggml_tensor* to, std::size_t k, PairForm form, std::span<const BatchToken> tokens);

  const wire::Program* program_ = nullptr;
  const ExpertLayer* layer_ = nullptr;
  std::span<HostRequest> requests_;
  std::vector<BatchToken> tokens_;
  bool repeated_expert_ = false;     ///< some token selects an expert twice
  std::vector<std::uint32_t> seen_;  ///< by expert: the last token that selected it
  std::vector<std::byte> staging_;   ///< for devices whose memory the host cannot reach
};

}  // namespace linkcpp::engine
