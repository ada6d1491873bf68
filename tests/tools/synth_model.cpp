// synth_model: writes a small mixture-of-experts model with random weights that llama.cpp loads, for tests of sizes and bytes.
// Its text is noise; what counts is its shape. The same options give the same weights, in one file or in several.
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <format>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Options {
  std::string out;
  std::string arch = "qwen3moe";
  std::string type = "f16";
  std::uint32_t n_embd = 256;
  std::uint32_t n_ff = 64;
  std::uint32_t experts = 16;
  std::uint32_t top_k = 4;
  std::uint32_t layers = 2;
  std::uint32_t vocab = 512;
  std::uint32_t context = 4096;
  std::uint32_t split = 1;
  std::uint64_t seed = 1;
  bool sparse_experts = false;
};

constexpr std::uint32_t n_head = 4, n_kv = 2, d_head = 64;

using GgufPtr = std::unique_ptr<gguf_context, decltype(&gguf_free)>;
using GgmlPtr = std::unique_ptr<ggml_context, decltype(&ggml_free)>;
using FilePtr = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// SplitMix64: tiny, and the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Uniform in [-1, 1).
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }

 private:
  std::uint64_t state_;
};

/// FNV-1a, so that a tensor's values depend on its name only and not on the file that it lands in.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xCBF29CE484222325ull;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return value;
}

/// How a tensor's values are drawn: `constant`, plus uniform noise of this standard deviation.
struct Fill {
  float constant = 0;
  float deviation = 0;
};

struct Tensor {
  std::string name;
  ggml_type type = GGML_TYPE_F32;
  std::vector<std::int64_t> ne;
  Fill fill;
};

/// All tensors of the model in the order in which they are written.
class Layout {
 public:
  explicit Layout(const Options& options, ggml_type type) : o_(options), type_(type) {
    const std::int64_t d = o_.n_embd, v = o_.vocab;
    add("token_embd.weight", {d, v}, {0, 1});
    add_f32("output_norm.weight", {d}, {1, 0});
    weight("output.weight", {d, v}, 2);  // spread logits, so that greedy choices have no near ties
    for (std::uint32_t i = 0; i < o_.layers; ++i) layer(std::format("blk.{}.", i));
  }
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  void add(std::string name, std::vector<std::int64_t> ne, Fill fill) { tensors_.push_back({std::move(name), type_, std::move(ne), fill}); }
  void add_f32(std::string name, std::vector<std::int64_t> ne, Fill fill) {
    tensors_.push_back({std::move(name), GGML_TYPE_F32, std::move(ne), fill});
  }
  /// A matrix that keeps the scale of its input, times `gain`.
  void weight(std::string name, std::vector<std::int64_t> ne, float gain = 1) {
    const float deviation = gain / std::sqrt(static_cast<float>(ne[0]));
    add(std::move(name), std::move(ne), {0, deviation});
  }
  void layer(const std::string& p) {
    const std::int64_t d = o_.n_embd, f = o_.n_ff, e = o_.experts;
    const bool qwen2 = o_.arch == "qwen2moe", qwen3 = o_.arch == "qwen3moe";
    add_f32(p + "attn_norm.weight", {d}, {1, 0});
    add_f32(p + "ffn_norm.weight", {d}, {1, 0});
    weight(p + "attn_q.weight", {d, n_head * d_head});
    weight(p + "attn_k.weight", {d, n_kv * d_head});
    weight(p + "attn_v.weight", {d, n_kv * d_head});
    weight(p + "attn_output.weight", {n_head * d_head, d});
    if (qwen2) {
      add_f32(p + "attn_q.bias", {n_head * d_head}, {0, 0.1f});
      add_f32(p + "attn_k.bias", {n_kv * d_head}, {0, 0.1f});
      add_f32(p + "attn_v.bias", {n_kv * d_head}, {0, 0.1f});
    }
    if (qwen3) {
      add_f32(p + "attn_q_norm.weight", {d_head}, {1, 0});
      add_f32(p + "attn_k_norm.weight", {d_head}, {1, 0});
    }
    add_f32(p + "ffn_gate_inp.weight", {d, e}, {0, 2 / std::sqrt(static_cast<float>(d))});
    weight(p + "ffn_gate_exps.weight", {d, f, e}, 2);
    weight(p + "ffn_up_exps.weight", {d, f, e}, 2);
    weight(p + "ffn_down_exps.weight", {f, d, e});
    if (qwen2) {
      add_f32(p + "ffn_gate_inp_shexp.weight", {d}, {0, 1 / std::sqrt(static_cast<float>(d))});
      weight(p + "ffn_gate_shexp.weight", {d, f}, 2);
      weight(p + "ffn_up_shexp.weight", {d, f}, 2);
      weight(p + "ffn_down_shexp.weight", {f, d});
    }
  }

  const Options& o_;
  ggml_type type_;
  std::vector<Tensor> tensors_;
};

std::string utf8(std::uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

/// The printable stand-in for a byte in a byte-level vocabulary: itself where visible, else a letter from 256 on.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    tokens.push_back(utf8(visible ? b : next++));
  }
  return tokens;
}

constexpr std::array<const char*, 3> special_tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
constexpr std::array<std::array<const char*, 3>, 2> merges{{{"\u0120", "t", "\u0120t"}, {"h", "e", "he"}}};
constexpr std::uint32_t min_vocab = 256 + special_tokens.size() + merges.size();

constexpr const char* chat_template =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void set_strings(gguf_context* gguf, const char* key, const std::vector<std::string>& values) {
  std::vector<const char*> pointers;
  for (const auto& value : values) pointers.push_back(value.c_str());
  gguf_set_arr_str(gguf, key, pointers.data(), pointers.size());
}

void set_tokenizer(gguf_context* gguf, std::uint32_t n_vocab) {
  constexpr std::int32_t normal = 1, control = 3;
  std::vector<std::string> tokens = byte_tokens(), merge_lines;
  for (const auto& [left, right, joined] : merges) {
    tokens.emplace_back(joined);
    merge_lines.push_back(std::format("{} {}", left, right));
  }
  while (tokens.size() + special_tokens.size() < n_vocab) tokens.push_back(std::format("\u0120w{}", tokens.size()));
  std::vector<std::int32_t> types(tokens.size(), normal);
  for (const char* token : special_tokens) {
    tokens.emplace_back(token);
    types.push_back(control);
  }
  gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(gguf, "tokenizer.ggml.pre", "gpt-2");
  set_strings(gguf, "tokenizer.ggml.tokens", tokens);
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  set_strings(gguf, "tokenizer.ggml.merges", merge_lines);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", n_vocab - 3);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", n_vocab - 3);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eot_token_id", n_vocab - 1);
  gguf_set_val_u32(gguf, "tokenizer.ggml.padding_token_id", n_vocab - 3);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", false);
  gguf_set_val_str(gguf, "tokenizer.chat_template", chat_template);
}

void set_metadata(gguf_context* gguf, const Options& o) {
  const auto u32 = [&](const char* key, std::uint32_t value) { gguf_set_val_u32(gguf, (o.arch + "." + key).c_str(), value); };
  const auto f32 = [&](const char* key, float value) { gguf_set_val_f32(gguf, (o.arch + "." + key).c_str(), value); };
  gguf_set_val_str(gguf, "general.architecture", o.arch.c_str());
  gguf_set_val_str(gguf, "general.name", std::format("Synthetic {} {}x{} seed {}", o.arch, o.experts, o.n_embd, o.seed).c_str());
  gguf_set_val_str(gguf, "general.description", "Random weights for tests; its text is noise");
  u32("block_count", o.layers);
  u32("context_length", o.context);
  u32("embedding_length", o.n_embd);
  u32("feed_forward_length", o.n_ff);
  u32("attention.head_count", n_head);
  u32("attention.head_count_kv", n_kv);
  u32("attention.key_length", d_head);
  u32("attention.value_length", d_head);
  u32("rope.dimension_count", d_head);
  f32("rope.freq_base", 10000);
  f32("attention.layer_norm_rms_epsilon", 1e-6f);
  u32("vocab_size", o.vocab);
  u32("expert_count", o.experts);
  u32("expert_used_count", o.top_k);
  u32("expert_feed_forward_length", o.n_ff);
  if (o.arch == "qwen2moe") u32("expert_shared_feed_forward_length", o.n_ff);
  set_tokenizer(gguf, o.vocab);
}

/// Draws one row of a tensor and encodes it.
void write_row(std::vector<float>& row, const Tensor& tensor, Random& random, std::vector<char>& out) {
  const float amplitude = tensor.fill.deviation * std::sqrt(3.0f);  // uniform noise has a third of its amplitude's square as variance
  for (float& x : row) x = tensor.fill.constant + (amplitude != 0 ? amplitude * random.uniform() : 0);
  if (tensor.type == GGML_TYPE_F32) {
    std::memcpy(out.data(), row.data(), out.size());
  } else {
    ggml_quantize_chunk(tensor.type, row.data(), out.data(), 0, 1, static_cast<std::int64_t>(row.size()), nullptr);
  }
}

void write(std::FILE* file, const void* data, std::size_t n) {
  if (std::fwrite(data, 1, n, file) != n) throw std::runtime_error("cannot write: is the disk full?");
}

void write_tensor(std::FILE* file, const Tensor& tensor, std::uint64_t seed, std::size_t alignment) {
  std::int64_t n_rows = 1;
  for (std::size_t i = 1; i < tensor.ne.size(); ++i) n_rows *= tensor.ne[i];
  std::vector<float> row(static_cast<std::size_t>(tensor.ne[0]));
  std::vector<char> encoded(ggml_row_size(tensor.type, tensor.ne[0]));
  Random random(seed ^ hash(tensor.name));
  for (std::int64_t i = 0; i < n_rows; ++i) {
    write_row(row, tensor, random, encoded);
    write(file, encoded.data(), encoded.size());
  }
  const std::size_t bytes = encoded.size() * static_cast<std::size_t>(n_rows);
  const std::vector<char> padding((alignment - bytes % alignment) % alignment);
  write(file, padding.data(), padding.size());
}

bool is_expert_tensor(const Tensor& tensor) { return tensor.name.contains("_exps."); }

/// Leaves a hole of a tensor's size: it reads as zeros and costs no disk.
void skip_tensor(std::FILE* file, const Tensor& tensor, std::size_t alignment) {
  std::size_t bytes = ggml_row_size(tensor.type, tensor.ne[0]);
  for (std::size_t i = 1; i < tensor.ne.size(); ++i) bytes *= static_cast<std::size_t>(tensor.ne[i]);
  bytes += (alignment - bytes % alignment) % alignment;
  if (fseeko(file, static_cast<off_t>(bytes), SEEK_CUR) != 0) throw std::runtime_error("cannot seek");
}

/// Ends the file where it stands, for a hole may be last.
void end_file(std::FILE* file) {
  const off_t end = ftello(file);
  if (std::fflush(file) != 0 || end < 0 || ftruncate(fileno(file), end) != 0) throw std::runtime_error("cannot write: is the disk full?");
}

/// One part: header, then the tensors [first, last).
void write_part(const Options& o, const std::string& path, const std::vector<Tensor>& all, std::uint32_t part) {
  const std::size_t first = all.size() * part / o.split, last = all.size() * (part + 1) / o.split;
  GgufPtr gguf(gguf_init_empty(), &gguf_free);
  if (part == 0) set_metadata(gguf.get(), o);
  if (o.split > 1) {
    gguf_set_val_u16(gguf.get(), "split.no", static_cast<std::uint16_t>(part));
    gguf_set_val_u16(gguf.get(), "split.count", static_cast<std::uint16_t>(o.split));
    gguf_set_val_i32(gguf.get(), "split.tensors.count", static_cast<std::int32_t>(all.size()));
  }
  GgmlPtr shapes(ggml_init({ggml_tensor_overhead() * (last - first + 1), nullptr, true}), &ggml_free);
  for (std::size_t i = first; i < last; ++i) {
    ggml_tensor* shape = ggml_new_tensor(shapes.get(), all[i].type, static_cast<int>(all[i].ne.size()), all[i].ne.data());
    ggml_set_name(shape, all[i].name.c_str());
    gguf_add_tensor(gguf.get(), shape);
  }
  std::vector<char> header(gguf_get_meta_size(gguf.get()));
  gguf_get_meta_data(gguf.get(), header.data());
  FilePtr file(std::fopen(path.c_str(), "wb"), &std::fclose);
  if (!file) throw std::runtime_error("cannot create " + path);
  write(file.get(), header.data(), header.size());
  const std::size_t alignment = gguf_get_alignment(gguf.get());
  for (std::size_t i = first; i < last; ++i) {
    if (o.sparse_experts && is_expert_tensor(all[i])) {
      skip_tensor(file.get(), all[i], alignment);
    } else {
      write_tensor(file.get(), all[i], o.seed * 0x9E3779B97F4A7C15ull, alignment);
    }
  }
  end_file(file.get());
  if (std::fclose(file.release()) != 0) throw std::runtime_error("cannot write " + path);
  std::printf("%s\n", path.c_str());
}

ggml_type parse_type(const std::string& text) {
  if (text == "f32") return GGML_TYPE_F32;
  if (text == "f16") return GGML_TYPE_F16;
  return text == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0;
}

std::string part_path(const Options& o, std::uint32_t part) {
  if (o.split == 1) return o.out;
  const std::string stem = o.out.ends_with(".gguf") ? o.out.substr(0, o.out.size() - 5) : o.out;
  return std::format("{}-{:05}-of-{:05}.gguf", stem, part + 1, o.split);
}

void check(const Options& o, ggml_type type, std::size_t n_tensors) {
  if (o.top_k > o.experts) throw std::runtime_error("--top-k is larger than --experts");
  if (o.n_embd % ggml_blck_size(type) != 0 || o.n_ff % ggml_blck_size(type) != 0) {
    throw std::runtime_error(std::format("--n-embd and --n-ff must be multiples of {} for this type", ggml_blck_size(type)));
  }
  if (o.split > n_tensors) throw std::runtime_error("--split is larger than the number of tensors");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Writes a small mixture-of-experts model with random weights that llama.cpp loads.\n\n"
      "  synth_model --out wide.gguf --n-embd 3072 --n-ff 64 --experts 16 --top-k 8 --layers 2\n"
      "  synth_model --out parts.gguf --arch qwen2moe --type q8_0 --split 3"};
  app.add_option("--out", o.out, "File to write; with --split N the parts are named FILE-00001-of-0000N.gguf")->required();
  app.add_option("--arch", o.arch, "Architecture: qwen3moe, qwen2moe (has a shared expert) or llama (Mixtral)")
      ->check(CLI::IsMember({"qwen3moe", "qwen2moe", "llama", "mixtral"}))
      ->capture_default_str();
  app.add_option("--n-embd", o.n_embd, "Width of the hidden state")->check(CLI::Range(32u, 1u << 16))->capture_default_str();
  app.add_option("--n-ff", o.n_ff, "Inner width of an expert")->check(CLI::Range(32u, 1u << 16))->capture_default_str();
  app.add_option("--experts", o.experts, "Experts a layer")->check(CLI::Range(1u, 4096u))->capture_default_str();
  app.add_option("--top-k", o.top_k, "Experts used a token")->check(CLI::Range(1u, 255u))->capture_default_str();
  app.add_option("--layers", o.layers, "Layers, all with experts")->check(CLI::Range(1u, 1024u))->capture_default_str();
  app.add_option("--vocab", o.vocab, "Vocabulary: 256 bytes, two merges, three special tokens, then fillers")
      ->check(CLI::Range(min_vocab, 1u << 20))
      ->capture_default_str();
  app.add_option("--context", o.context, "Context length of the metadata")->check(CLI::Range(64u, 1u << 20))->capture_default_str();
  app.add_option("--type", o.type, "Type of the matrices")->check(CLI::IsMember({"f16", "f32", "q8_0", "q4_0"}))->capture_default_str();
  app.add_option("--seed", o.seed, "Seed of the weights")->capture_default_str();
  app.add_option("--split", o.split, "Number of files")->check(CLI::Range(1u, 99u))->capture_default_str();
  app.add_flag("--sparse-experts", o.sparse_experts, "Experts are holes in the file: zeros, whatever their size, that cost no disk");
  CLI11_PARSE(app, argc, argv);
  if (o.arch == "mixtral") o.arch = "llama";
  try {
    const ggml_type type = parse_type(o.type);
    const Layout layout(o, type);
    check(o, type, layout.tensors().size());
    for (std::uint32_t part = 0; part < o.split; ++part) write_part(o, part_path(o, part), layout.tensors(), part);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "synth_model: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
