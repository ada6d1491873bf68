// A slice index for tests: two layers, two files, parts whose sizes leave gaps.
#pragma once

#include "store/index.h"

namespace linkcpp::test {

inline store::Digest numbered_digest(std::uint8_t a, std::uint8_t b = 0) {
  store::Digest digest{};
  digest[0] = a;
  digest[31] = b;
  return digest;
}

inline store::SliceIndex sample_index() {
  store::SliceIndex index{.model = numbered_digest(7),
                          .architecture = "qwen3moe",
                          .name = "A model",
                          .n_layer = 3,
                          .n_embd = 64,
                          .n_expert = 4,
                          .top_k = 2,
                          .n_vocab = 100,
                          .shared_expert = true,
                          .files = {{"m-00001-of-00002.gguf", 4096}, {"m-00002-of-00002.gguf", 8192}},
                          .layers = {}};
  for (const std::uint16_t number : {std::uint16_t{1}, std::uint16_t{2}}) {
    store::LayerSlices layer{.layer = number, .parts = {}, .slices = {}};
    const std::uint32_t file = number - 1u;
    layer.parts.push_back({"blk." + std::to_string(number) + ".ffn_down_exps.weight", "f32", 5, 10, 200, file, 96, 0});
    layer.parts.push_back({"blk." + std::to_string(number) + ".ffn_up_exps.bias", "f32", 0, 10, 40, file, 1024, 256});
    layer.parts.push_back({"blk." + std::to_string(number) + ".ffn_up_exps.weight", "q8_0", 32, 10, 340, file, 2048, 320});
    for (std::uint8_t e = 0; e < 4; ++e) layer.slices.push_back(numbered_digest(static_cast<std::uint8_t>(number), e));
    index.layers.push_back(std::move(layer));
  }
  return index;
}

}  // namespace linkcpp::test
