// widen_model: writes a copy of a small GGUF with more routed experts, of fresh random weights, so that routing is selective. Everything
// that is not an expert stays as it is. The copy may also get other metadata, and tensors that the source does not have: so a dense
// model becomes the template of its architecture's mixture-of-experts form.
#include <ggml.h>
#include <gguf.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <format>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Options {
  std::string in, out;
  std::uint32_t experts = 16, top_k = 4;
  std::uint64_t seed = 1;
  std::string type = "q8_0";
  std::string arch;                    ///< renames the architecture, keys included
  std::vector<std::string> set, drop;  ///< KEY=TYPE:VALUE[,VALUE...]; regular expressions over tensor names
  std::vector<std::string> add;        ///< NAME=N0xN1x...
  std::vector<std::string> clone;      ///< FROM=TO: blocks
};

using GgufPtr = std::unique_ptr<gguf_context, decltype(&gguf_free)>;
using GgmlPtr = std::unique_ptr<ggml_context, decltype(&ggml_free)>;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// What a tensor is to routing. Experts of attention, shared experts and the norm in front of experts are no routed experts.
enum class Kind : std::uint8_t { other, expert, router, hash_router };
Kind kind_of(const std::string& name) {
  if (contains(name, "shexp") || contains(name, "attn_") || contains(name, "norm_exps")) return Kind::other;
  if (contains(name, "ffn_gate_tid2eid")) return Kind::hash_router;
  if (contains(name, "exps.")) return Kind::expert;
  return contains(name, "ffn_gate_inp.") || contains(name, "exp_probs_b") ? Kind::router : Kind::other;
}

ggml_type parse_type(const std::string& text) {
  for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
    const char* name = ggml_type_name(static_cast<ggml_type>(t));
    if (name != nullptr && text == name) return static_cast<ggml_type>(t);
  }
  throw std::runtime_error("unknown type " + text);
}

class Widener {
 public:
  explicit Widener(const Options& o) : o_(o), expert_type_(parse_type(o.type)) {
    ggml_context* data = nullptr;
    in_.reset(gguf_init_from_file(o.in.c_str(), {.no_alloc = false, .ctx = &data}));
    if (!in_) throw std::runtime_error("cannot read " + o.in);
    source_.reset(data);
    out_.reset(gguf_init_empty());
    // Room for every new tensor; those of the source keep their memory.
    made_.reset(ggml_init({.mem_size = std::size_t{1} << 30, .mem_buffer = nullptr, .no_alloc = false}));
  }

  void run() {
    copy_metadata();
    for (ggml_tensor* t = ggml_get_first_tensor(source_.get()); t != nullptr; t = ggml_get_next_tensor(source_.get(), t)) {
      // Behind the tensors lies the blob that they point into; it has no entry.
      if (gguf_find_tensor(in_.get(), t->name) < 0 || dropped(t->name)) continue;
      gguf_add_tensor(out_.get(), kind_of(t->name) == Kind::other ? t : widened(t));
    }
    for (const std::string& line : o_.clone) clone(line);
    for (const std::string& line : o_.add) add(line);
    if (!gguf_write_to_file(out_.get(), o_.out.c_str(), false)) throw std::runtime_error("cannot write " + o_.out);
  }

 private:
  static std::string text_of(const gguf_context* gguf, const char* key) {
    const std::int64_t id = gguf_find_key(gguf, key);
    if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_STRING) throw std::runtime_error(std::format("the source has no {}", key));
    return gguf_get_val_str(gguf, id);
  }
  std::optional<std::uint32_t> number_of(const std::string& key) const {
    const std::int64_t id = gguf_find_key(in_.get(), key.c_str());
    if (id < 0 || gguf_get_kv_type(in_.get(), id) != GGUF_TYPE_UINT32) return std::nullopt;
    return gguf_get_val_u32(in_.get(), id);
  }

  void copy_metadata() {
    const std::string before = text_of(in_.get(), "general.architecture");
    arch_ = o_.arch.empty() ? before : o_.arch;
    experts_before_ = number_of(before + ".expert_count").value_or(0);
    if (arch_ == before) {
      gguf_set_kv(out_.get(), in_.get());
    } else {
      for (std::int64_t i = 0; i < gguf_get_n_kv(in_.get()); ++i) copy_renamed(i, before + ".");
      gguf_set_val_str(out_.get(), "general.architecture", arch_.c_str());
    }
    set_u32(arch_ + ".expert_count", o_.experts);
    set_u32(arch_ + ".expert_used_count", o_.top_k);
    for (const std::string& line : o_.set) set(line);
  }
  /// One entry, under the new architecture's name where it stood under the old one's.
  void copy_renamed(std::int64_t i, const std::string& before) {
    const gguf_context* in = in_.get();
    std::string key = gguf_get_key(in, i);
    if (key.starts_with(before)) key = arch_ + "." + key.substr(before.size());
    const char* k = key.c_str();
    switch (gguf_get_kv_type(in, i)) {
      case GGUF_TYPE_UINT32:
        return gguf_set_val_u32(out_.get(), k, gguf_get_val_u32(in, i));
      case GGUF_TYPE_INT32:
        return gguf_set_val_i32(out_.get(), k, gguf_get_val_i32(in, i));
      case GGUF_TYPE_FLOAT32:
        return gguf_set_val_f32(out_.get(), k, gguf_get_val_f32(in, i));
      case GGUF_TYPE_BOOL:
        return gguf_set_val_bool(out_.get(), k, gguf_get_val_bool(in, i));
      case GGUF_TYPE_STRING:
        return gguf_set_val_str(out_.get(), k, gguf_get_val_str(in, i));
      case GGUF_TYPE_ARRAY:
        return copy_array(i, k);
      default:
        throw std::runtime_error(std::format("cannot copy {} of type {}", key, gguf_type_name(gguf_get_kv_type(in, i))));
    }
  }
  void copy_array(std::int64_t i, const char* key) {
    const std::size_t n = gguf_get_arr_n(in_.get(), i);
    const gguf_type type = gguf_get_arr_type(in_.get(), i);
    if (type != GGUF_TYPE_STRING) return gguf_set_arr_data(out_.get(), key, type, gguf_get_arr_data(in_.get(), i), n);
    std::vector<const char*> texts;
    for (std::size_t k = 0; k < n; ++k) texts.push_back(gguf_get_arr_str(in_.get(), i, k));
    gguf_set_arr_str(out_.get(), key, texts.data(), n);
  }
  void set_u32(const std::string& key, std::uint32_t value) { gguf_set_val_u32(out_.get(), key.c_str(), value); }

  /// "key=u32:5", "key=f32:0.5,1", "key=bool:1", "key=str:text"; several values make an array. "ARCH." stands for the architecture.
  void set(const std::string& line) {
    static const std::regex form("([^=]+)=(u32|i32|f32|bool|str|u32s|f32s|bools):(.*)");
    std::smatch m;
    if (!std::regex_match(line, m, form)) throw std::runtime_error("--set wants KEY=TYPE:VALUE, not " + line);
    std::string key = m[1], type = m[2], text = m[3];
    if (key.starts_with("ARCH.")) key = arch_ + key.substr(4);
    const char* k = key.c_str();
    if (type == "str") return gguf_set_val_str(out_.get(), k, text.c_str());
    std::vector<double> values;
    for (const std::string& item : CLI::detail::split(text, ',')) values.push_back(std::stod(item));
    if (type == "u32") return set_u32(key, static_cast<std::uint32_t>(values.at(0)));
    if (type == "i32") return gguf_set_val_i32(out_.get(), k, static_cast<std::int32_t>(values.at(0)));
    if (type == "f32") return gguf_set_val_f32(out_.get(), k, static_cast<float>(values.at(0)));
    if (type == "bool") return gguf_set_val_bool(out_.get(), k, values.at(0) != 0);
    if (type == "u32s") return set_array<std::uint32_t>(k, GGUF_TYPE_UINT32, values);
    if (type == "f32s") return set_array<float>(k, GGUF_TYPE_FLOAT32, values);
    return set_array<std::int8_t>(k, GGUF_TYPE_BOOL, values);
  }
  template <class T>
  void set_array(const char* key, gguf_type type, const std::vector<double>& values) {
    std::vector<T> items;
    for (const double v : values) items.push_back(static_cast<T>(v));
    gguf_set_arr_data(out_.get(), key, type, items.data(), items.size());
  }

  bool dropped(const std::string& name) const {
    return std::ranges::any_of(o_.drop, [&](const std::string& pattern) { return std::regex_search(name, std::regex(pattern)); });
  }

  /// The same tensor for more experts: they are its last dimension (that of "chunk" experts, one for several experts, grows alike).
  ggml_tensor* widened(const ggml_tensor* t) {
    std::vector<std::int64_t> ne(t->ne, t->ne + ggml_n_dims(t));
    if (kind_of(t->name) == Kind::hash_router) {
      ne[0] = o_.top_k;
    } else {
      if (experts_before_ == 0 || ne.back() * o_.experts % experts_before_ != 0) {
        throw std::runtime_error(std::format("{} with {} does not widen from {} experts", t->name, ne.back(), experts_before_));
      }
      ne.back() = ne.back() * o_.experts / experts_before_;
    }
    return make(t->name, ne, t->type);
  }

  /// "1=2": the block 2 gets a copy of everything in block 1, experts of its own again.
  void clone(const std::string& line) {
    const std::size_t at = line.find('=');
    if (at == std::string::npos) throw std::runtime_error("--clone wants FROM=TO, not " + line);
    const std::string from = "blk." + line.substr(0, at) + ".", to = "blk." + line.substr(at + 1) + ".";
    for (ggml_tensor* t = ggml_get_first_tensor(source_.get()); t != nullptr; t = ggml_get_next_tensor(source_.get(), t)) {
      const std::string name = t->name;
      if (!name.starts_with(from) || dropped(name)) continue;
      ggml_tensor copy = *t;
      ggml_set_name(&copy, (to + name.substr(from.size())).c_str());
      gguf_add_tensor(out_.get(), kind_of(name) == Kind::other ? &copy : widened(&copy));
    }
  }

  void add(const std::string& line) {
    const std::size_t at = line.find('=');
    if (at == std::string::npos) throw std::runtime_error("--add wants NAME=N0xN1, not " + line);
    std::vector<std::int64_t> ne;
    for (const std::string& n : CLI::detail::split(line.substr(at + 1), 'x')) ne.push_back(n == "E" ? o_.experts : std::stoll(n));
    const std::string name = line.substr(0, at);
    gguf_add_tensor(out_.get(), make(name, ne, GGML_TYPE_F32));
  }

  ggml_tensor* make(const std::string& name, const std::vector<std::int64_t>& ne, ggml_type type) {
    const Kind kind = kind_of(name);
    // Matrices of experts are quantised as in real models; 2-D ones are biases and scales, which are not.
    if (kind == Kind::expert && ne.size() == 3 && contains(name, ".weight"))
      type = ne[0] % ggml_blck_size(expert_type_) == 0 ? expert_type_ : GGML_TYPE_F16;
    ggml_tensor* t = ggml_new_tensor(made_.get(), type, static_cast<int>(ne.size()), ne.data());
    ggml_set_name(t, name.c_str());
    if (kind == Kind::hash_router) {
      fill_hash_router(t);
    } else {
      fill(t, kind);
    }
    return t;
  }

  std::mt19937_64 random_for(const char* name) const {
    return std::mt19937_64(o_.seed * 0x9E3779B97F4A7C15ull + std::hash<std::string>{}(name));
  }

  void fill(ggml_tensor* t, Kind kind) {
    const std::string name = t->name;
    const bool factor = contains(name, ".scale") || contains(name, "norm.weight");
    // Routers spread their scores so that tokens choose different experts.
    const float constant = factor ? 1 : 0, deviation = kind == Kind::router && contains(name, ".weight") ? 1.0f : 0.1f;
    auto random = random_for(t->name);
    std::uniform_real_distribution<float> noise(-deviation * std::sqrt(3.0f), deviation * std::sqrt(3.0f));
    std::vector<float> row(static_cast<std::size_t>(t->ne[0]));
    char* to = static_cast<char*>(t->data);
    for (std::int64_t r = 0; r < ggml_nrows(t); ++r, to += ggml_row_size(t->type, t->ne[0])) {
      for (float& x : row) x = constant + noise(random);
      if (t->type == GGML_TYPE_F32) {
        std::memcpy(to, row.data(), row.size() * sizeof(float));
      } else {
        ggml_quantize_chunk(t->type, row.data(), to, 0, 1, t->ne[0], nullptr);
      }
    }
  }

  /// Experts by token number: top_k different ones for each.
  void fill_hash_router(ggml_tensor* t) {
    if (t->type != GGML_TYPE_I32) throw std::runtime_error(std::format("{} is not a table of I32", t->name));
    auto random = random_for(t->name);
    std::vector<std::int32_t> all(o_.experts);
    std::iota(all.begin(), all.end(), 0);
    auto* to = static_cast<std::int32_t*>(t->data);
    for (std::int64_t r = 0; r < ggml_nrows(t); ++r, to += t->ne[0]) {
      std::ranges::shuffle(all, random);
      std::copy_n(all.begin(), t->ne[0], to);
    }
  }

  const Options& o_;
  ggml_type expert_type_;
  std::string arch_;
  std::uint32_t experts_before_ = 0;
  GgufPtr in_{nullptr, &gguf_free}, out_{nullptr, &gguf_free};
  GgmlPtr source_{nullptr, &ggml_free}, made_{nullptr, &ggml_free};
};

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Writes a copy of a small GGUF with more routed experts.\n\n"
      "  widen_model --in qwen3moe-moe.gguf --out wide.gguf --experts 16 --top-k 4\n"
      "  widen_model --in jamba-dense.gguf --out moe.gguf --drop 'blk.0.ffn_(up|gate|down).weight' --add "
      "blk.0.ffn_up_exps.weight=256x384xE ..."};
  app.add_option("--in", o.in, "Template")->required()->check(CLI::ExistingFile);
  app.add_option("--out", o.out, "File to write")->required();
  app.add_option("--experts", o.experts, "Experts a layer")->check(CLI::Range(1u, 512u))->capture_default_str();
  app.add_option("--top-k", o.top_k, "Experts used a token")->check(CLI::Range(1u, 512u))->capture_default_str();
  app.add_option("--type", o.type, "Type of the experts' matrices")->capture_default_str();
  app.add_option("--seed", o.seed, "Seed of the new weights")->capture_default_str();
  app.add_option("--arch", o.arch, "Architecture of the copy, if it is another");
  app.add_option("--set", o.set, "KEY=TYPE:VALUE, TYPE one of u32 i32 f32 bool str u32s f32s bools; ARCH. stands for the architecture")
      ->expected(1)
      ->take_all();
  app.add_option("--drop", o.drop, "Regular expression: tensors that the copy does not get")->expected(1)->take_all();
  app.add_option("--clone", o.clone, "FROM=TO: block TO is a copy of block FROM")->expected(1)->take_all();
  app.add_option("--add", o.add, "NAME=N0xN1x...: a tensor that the template does not have; E stands for the number of experts")
      ->expected(1)
      ->take_all();
  CLI11_PARSE(app, argc, argv);
  try {
    if (o.top_k > o.experts) throw std::runtime_error("--top-k is larger than --experts");
    Widener(o).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "widen_model: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
