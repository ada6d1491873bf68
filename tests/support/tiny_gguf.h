// A small mixture-of-experts model as a GGUF builder: the engine would not run it, but its anatomy is complete.
#pragma once

#include <format>

#include "support/gguf_builder.h"

namespace linkcpp::test {

struct TinyShape {
  std::int64_t n_embd = 64, n_ff = 32, n_expert = 6, n_vocab = 40;
  std::uint32_t layers = 2, top_k = 2;
};

/// Bytes that depend on the name, so that a wrong offset shows.
inline std::string filled(std::string_view name, std::size_t n) {
  std::string bytes(n, '\0');
  std::uint32_t state = 2166136261u;
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 16777619u;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

inline TensorSpec f32_tensor(std::string name, std::vector<std::int64_t> ne) {
  std::size_t n = sizeof(float);
  for (const auto x : ne) n *= static_cast<std::size_t>(x);
  std::string data = filled(name, n);
  return {std::move(name), std::move(ne), type_f32, std::move(data)};
}
inline TensorSpec q8_tensor(std::string name, std::vector<std::int64_t> ne) {
  std::size_t n = 34;  // bytes of a block of 32
  for (const auto x : ne) n *= static_cast<std::size_t>(x);
  std::string data = filled(name, n / 32);
  return {std::move(name), std::move(ne), type_q8_0, std::move(data)};
}

inline std::vector<TensorSpec> tiny_tensors(const TinyShape& s = {}) {
  std::vector<TensorSpec> all{f32_tensor("token_embd.weight", {s.n_embd, s.n_vocab}), f32_tensor("output_norm.weight", {s.n_embd})};
  for (std::uint32_t i = 0; i < s.layers; ++i) {
    const std::string p = std::format("blk.{}.", i);
    all.push_back(f32_tensor(p + "attn_norm.weight", {s.n_embd}));
    all.push_back(f32_tensor(p + "ffn_gate_inp.weight", {s.n_embd, s.n_expert}));
    all.push_back(q8_tensor(p + "ffn_gate_exps.weight", {s.n_embd, s.n_ff, s.n_expert}));
    all.push_back(f32_tensor(p + "ffn_up_exps.weight", {s.n_embd, s.n_ff, s.n_expert}));
    all.push_back(f32_tensor(p + "ffn_down_exps.weight", {s.n_ff, s.n_embd, s.n_expert}));
    all.push_back(f32_tensor(p + "ffn_down_exps.bias", {s.n_embd, s.n_expert}));
  }
  return all;
}

inline void add_tiny_metadata(GgufBuilder& gguf, const TinyShape& s = {}) {
  gguf.text("general.architecture", "qwen3moe");
  gguf.text("general.name", "tiny");
  gguf.u32("qwen3moe.block_count", s.layers);
  gguf.u32("qwen3moe.embedding_length", static_cast<std::uint32_t>(s.n_embd));
  gguf.u32("qwen3moe.context_length", 512);
  gguf.u32("qwen3moe.expert_count", static_cast<std::uint32_t>(s.n_expert));
  gguf.u32("qwen3moe.expert_used_count", s.top_k);
  std::string tokens;
  for (std::int64_t i = 0; i < s.n_vocab; ++i) put_text(tokens, std::format("t{}", i));
  gguf.array("tokenizer.ggml.tokens", gguf_text, static_cast<std::uint64_t>(s.n_vocab), tokens);
}

inline GgufBuilder tiny_model(const TinyShape& s = {}) {
  GgufBuilder gguf;
  add_tiny_metadata(gguf, s);
  gguf.tensors = tiny_tensors(s);
  return gguf;
}

/// The same model cut into parts; part 1 has the metadata.
inline std::vector<GgufBuilder> tiny_parts(std::size_t count, const TinyShape& s = {}) {
  const auto all = tiny_tensors(s);
  std::vector<GgufBuilder> parts(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i == 0) add_tiny_metadata(parts[i], s);
    parts[i].u16("split.no", static_cast<std::uint16_t>(i));
    parts[i].u16("split.count", static_cast<std::uint16_t>(count));
    parts[i].u32("split.tensors.count", static_cast<std::uint32_t>(all.size()));
    parts[i].tensors.assign(all.begin() + static_cast<std::ptrdiff_t>(all.size() * i / count),
                            all.begin() + static_cast<std::ptrdiff_t>(all.size() * (i + 1) / count));
  }
  return parts;
}

inline std::string part_name(std::size_t part, std::size_t count) { return std::format("tiny-{:05}-of-{:05}.gguf", part, count); }

}  // namespace linkcpp::test
