#include "engine/anatomy.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "engine/anatomy_digest.h"
#include "engine/anatomy_gguf.h"
#include "engine/backbone_file.h"
#include "wire/program.h"

namespace linkcpp::engine {
namespace {

constexpr std::uint32_t max_experts = 65535;  // the wire carries expert numbers in 16 bits
constexpr std::int64_t max_row = wire::max_row_elements;

struct BlockName {
  std::uint16_t block = 0;
  std::string_view role;
};

/// Splits "blk.7.ffn_up.weight" into 7 and "ffn_up.weight". Numbers are written without sign and leading zeros.
std::optional<BlockName> parse_block_name(std::string_view name) {
  constexpr std::string_view prefix = "blk.";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  BlockName parsed;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), parsed.block);
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (error != std::errc{} || parsed.block >= chunk_experts_bit || digits >= name.size() || name[digits] != '.') return std::nullopt;
  if (digits > 1 && name[0] == '0') return std::nullopt;
  parsed.role = name.substr(digits + 1);
  return parsed;
}

constexpr std::string_view parts_marker = "-of-";

/// "dir/model-00002-of-00003.gguf" is prefix "dir/model", part 2 of 3.
struct PartName {
  std::string prefix;
  std::int64_t part = 0;
  std::int64_t count = 0;
};

std::optional<std::int64_t> five_digits(std::string_view text) {
  std::int64_t value = 0;
  if (text.size() < 5) return std::nullopt;
  text = text.substr(0, 5);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<PartName> parse_part_name(const std::string& path) {
  constexpr std::size_t tail = std::string_view("-00001-of-00003.gguf").size();
  if (path.size() < tail || !path.ends_with(".gguf")) return std::nullopt;
  const std::string_view end = std::string_view(path).substr(path.size() - tail);
  if (end[0] != '-' || end.substr(6, parts_marker.size()) != parts_marker) return std::nullopt;
  const auto part = five_digits(end.substr(1)), count = five_digits(end.substr(10));
  if (!part || !count) return std::nullopt;
  return PartName{path.substr(0, path.size() - tail), *part, *count};
}

/// All headers of a model, in order of its parts.
struct Parts {
  std::vector<std::filesystem::path> files;
  std::vector<GgufHeader> headers;
};

Result<> check_part(const std::filesystem::path& path, const GgufHeader& header, std::int64_t index, std::int64_t count,
                    const GgufHeader& first) {
  const std::int64_t own_count = header.integer("split.count").value_or(1), own_index = header.integer("split.no").value_or(0);
  if (own_count != count || own_index != index) {
    return fail(ErrorKind::invalid_input, "{} does not belong to this model: it says that it is part {} of {}, its place is part {} of {}.",
                path.string(), own_index + 1, own_count, index + 1, count);
  }
  if (header.integer("split.tensors.count") != first.integer("split.tensors.count")) {
    return fail(ErrorKind::invalid_input, "{} does not belong to this model: it counts {} tensors in all parts, the first part {}.",
                path.string(), header.integer("split.tensors.count").value_or(0), first.integer("split.tensors.count").value_or(0));
  }
  const auto architecture = header.text("general.architecture");
  if (!architecture.empty() && architecture != first.text("general.architecture")) {
    return fail(ErrorKind::invalid_input, "{} does not belong to this model: it is \"{}\", the first part is \"{}\".", path.string(),
                shown(architecture), shown(first.text("general.architecture")));
  }
  return {};
}

Result<std::vector<std::filesystem::path>> find_parts(const std::filesystem::path& path, std::int64_t count) {
  const auto name = parse_part_name(path.string());
  if (!name || name->count != count || count > 99999) {
    return fail(
        ErrorKind::invalid_input,
        "{} is one of {} parts of a model, but its name does not say so; give every part its name back (model-00001-of-{:05}.gguf ...).",
        path.string(), count, count);
  }
  std::vector<std::filesystem::path> files;
  std::string missing;
  std::size_t n_missing = 0;
  for (std::int64_t i = 1; i <= count; ++i) {
    files.emplace_back(std::format("{}-{:05}-of-{:05}.gguf", name->prefix, i, count));
    std::error_code ignored;
    if (std::filesystem::exists(files.back(), ignored)) continue;
    if (++n_missing <= 3) missing += (n_missing > 1 ? ", " : "") + files.back().string();
  }
  if (n_missing != 0) {
    return fail(ErrorKind::not_found, "{} of the model's {} parts are missing: {}{}; put all parts into one folder.", n_missing, count,
                missing, n_missing > 3 ? ", ..." : "");
  }
  return files;
}

Result<Parts> read_parts(const std::filesystem::path& path) {
  auto named = read_gguf_header(path);
  if (!named) return pass(named);
  const std::int64_t count = named->integer("split.count").value_or(1);
  Parts parts;
  if (count <= 1) {
    parts.files.push_back(path);
    parts.headers.push_back(std::move(*named));
    return parts;
  }
  auto files = find_parts(path, count);
  if (!files) return pass(files);
  parts.files = std::move(*files);
  std::uint64_t n_tensors = 0;
  for (std::size_t i = 0; i < parts.files.size(); ++i) {
    auto header = read_gguf_header(parts.files[i]);
    if (!header) return pass(header);
    parts.headers.push_back(std::move(*header));
    if (auto done = check_part(parts.files[i], parts.headers[i], static_cast<std::int64_t>(i), count, parts.headers[0]); !done)
      return pass(done);
    n_tensors += parts.headers[i].tensors.size();
  }
  const auto announced = parts.headers[0].integer("split.tensors.count");
  if (announced && std::cmp_not_equal(*announced, n_tensors)) {
    return fail(ErrorKind::invalid_input, "the parts of {} hold {} tensors, but the model has {}; some part belongs to another model.",
                parts.files[0].string(), n_tensors, *announced);
  }
  return parts;
}

/// Gathers the anatomy from the headers.
class Builder {
 public:
  explicit Builder(Parts parts) : parts_(std::move(parts)), meta_(parts_.headers[0]) { anatomy_.files = parts_.files; }

  Result<Anatomy> build() {
    if (auto done = read_metadata(); !done) return pass(done);
    for (std::uint32_t file = 0; file < parts_.headers.size(); ++file) {
      for (const GgufTensor& tensor : parts_.headers[file].tensors) {
        if (auto done = add_tensor(tensor, file); !done) return pass(done);
      }
    }
    if (auto done = finish_layers(); !done) return pass(done);
    if (auto done = finish_counts(); !done) return pass(done);
    if (const auto cut = meta_.text(key_model_digest); !cut.empty()) {
      auto digest = wire::digest_from_hex(cut);
      if (!digest) return bad("has a damaged {}: {}; slice the model again.", key_model_digest, digest.error().message);
      anatomy_.digest = *digest;
      anatomy_.experts_absent = true;
      return std::move(anatomy_);
    }
    auto digest = model_digest(anatomy_, std::move(whole_));
    if (!digest) return pass(digest);
    anatomy_.digest = *digest;
    return std::move(anatomy_);
  }

 private:
  template <class... Args>
  [[nodiscard]] std::unexpected<Error> bad(std::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorKind::invalid_input, "{} {}", parts_.files[0].string(), std::format(format, std::forward<Args>(args)...));
  }

  /// A count under "<architecture>.<key>"; 0 if missing.
  Result<std::uint32_t> count(std::string_view key) const {
    const std::int64_t value = meta_.integer(std::format("{}.{}", anatomy_.architecture, key)).value_or(0);
    if (value < 0 || value > UINT32_MAX) return bad("has {}.{} = {}; the file is damaged.", anatomy_.architecture, key, value);
    return static_cast<std::uint32_t>(value);
  }

  Result<> read_metadata() {
    const std::string_view architecture = meta_.text("general.architecture");
    if (architecture.empty()) return bad("names no model architecture (general.architecture); it is not a language model.");
    if (architecture.size() > 64 || shown(architecture) != architecture)
      return bad("has an unreadable architecture name; the file is damaged.");
    anatomy_.architecture = architecture;
    anatomy_.name = meta_.text("general.name");
    const std::array<std::pair<std::string_view, std::uint32_t*>, 6> counts{{{"block_count", &anatomy_.n_layer},
                                                                             {"embedding_length", &anatomy_.n_embd},
                                                                             {"expert_count", &anatomy_.n_expert},
                                                                             {"expert_used_count", &anatomy_.top_k},
                                                                             {"vocab_size", &anatomy_.n_vocab},
                                                                             {"context_length", &anatomy_.context_length}}};
    for (const auto& [key, field] : counts) {
      auto value = count(key);
      if (!value) return pass(value);
      *field = *value;
    }
    if (anatomy_.n_vocab == 0) {
      const auto tokens = meta_.values.find("tokenizer.ggml.tokens");
      if (tokens != meta_.values.end())
        anatomy_.n_vocab = static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens->second.count, UINT32_MAX));
    }
    return {};
  }

  Result<> add_tensor(const GgufTensor& tensor, std::uint32_t file) {
    if (!names_.insert(tensor.name).second) {
      return bad("has tensor \"{}\" in two of its parts; a part belongs to another model.", shown(tensor.name));
    }
    const auto expert = parse_expert_name(tensor.name);
    anatomy_.total_bytes += tensor.bytes;
    (expert ? anatomy_.expert_types : anatomy_.backbone_types)[ggml_type_name(static_cast<ggml_type>(tensor.type))] += tensor.bytes;
    if (expert) return add_expert_tensor(tensor, *expert, file);
    note_backbone_tensor(tensor, file);
    return {};
  }

  /// What else counts: the tensors of the digest, a shared expert, experts in an old layout.
  void note_backbone_tensor(const GgufTensor& tensor, std::uint32_t file) {
    if (tensor.name == "output_norm.weight") add_whole(tensor, file);
    if (tensor.name == "token_embd.weight") n_embedding_rows_ = tensor.ne[1];
    const auto block = parse_block_name(tensor.name);
    if (!block) return;
    if (block->role == "ffn_gate_inp.weight") add_whole(tensor, file);
    if (block->role.starts_with("ffn_") && block->role.find("_shexp.") != std::string_view::npos) anatomy_.shared_expert = true;
    if (block->role.starts_with("ffn_gate.") && block->role != "ffn_gate.weight" && block->role != "ffn_gate.bias")
      separate_experts_ = true;
  }

  void add_whole(const GgufTensor& tensor, std::uint32_t file) {
    whole_.push_back({tensor.name, ggml_type_name(static_cast<ggml_type>(tensor.type)), file, tensor.offset, tensor.bytes});
  }

  Result<> add_expert_tensor(const GgufTensor& tensor, const ExpertName& name, std::uint32_t file) {
    ExpertTensor expert{.name = tensor.name, .role = name.role, .type = tensor.type, .file = file, .offset = tensor.offset};
    expert.type_name = ggml_type_name(static_cast<ggml_type>(tensor.type));
    expert.is_bias = name.role.ends_with(".bias");
    const auto& ne = tensor.ne;
    const std::int64_t n_expert = expert.is_bias ? ne[1] : ne[2];
    const bool shaped = expert.is_bias ? ne[2] == 1 && ne[3] == 1 : ne[3] == 1;
    expert.n_in = expert.is_bias ? 0 : ne[0];
    expert.n_out = expert.is_bias ? ne[0] : ne[1];
    if (!shaped || n_expert < 1 || n_expert > max_experts || ne[0] < 1 || expert.n_out < 1 || ne[0] > max_row || expert.n_out > max_row) {
      return bad("has expert tensor \"{}\" of shape [{}, {}, {}, {}], which is not a stack of 1 to {} experts.", tensor.name, ne[0], ne[1],
                 ne[2], ne[3], max_experts);
    }
    expert.n_expert = static_cast<std::uint32_t>(n_expert);
    expert.slice_bytes = tensor.bytes / expert.n_expert;  // whole rows, and rows are whole blocks: exact
    anatomy_.expert_bytes += tensor.bytes;
    layers_[name.layer].push_back(std::move(expert));
    return {};
  }

  Result<> finish_layers() {
    if (layers_.empty()) {
      if (separate_experts_)
        return bad("keeps every expert in a tensor of its own, an old layout; convert the model again with a current llama.cpp.");
      return bad("has no routed experts (architecture \"{}\", a dense model); linkcpp serves mixture-of-experts models.",
                 anatomy_.architecture);
    }
    for (auto& [key, tensors] : layers_) {
      const std::uint32_t block = key & ~chunk_experts_bit;
      if (block >= anatomy_.n_layer)
        return bad("has experts in layer {}, but only {} layers; the file is damaged.", block, anatomy_.n_layer);
      std::ranges::sort(tensors, {}, &ExpertTensor::role);
      for (const ExpertTensor& tensor : tensors) {
        if (tensor.n_expert != tensors[0].n_expert) {
          return bad("has {} experts in \"{}\" but {} in \"{}\" of the same layer; the file is damaged.", tensors[0].n_expert,
                     tensors[0].name, tensor.n_expert, tensor.name);
        }
      }
      most_experts_ = std::max(most_experts_, tensors[0].n_expert);
      anatomy_.layers.push_back({key, tensors[0].n_expert, std::move(tensors)});
    }
    return {};
  }

  Result<> finish_counts() {
    if (anatomy_.n_vocab == 0) anatomy_.n_vocab = static_cast<std::uint32_t>(std::min<std::int64_t>(n_embedding_rows_, UINT32_MAX));
    if (anatomy_.n_embd == 0 || anatomy_.n_embd > max_row) {
      return bad("has {}.embedding_length = {}; the file is damaged.", anatomy_.architecture, anatomy_.n_embd);
    }
    if (anatomy_.top_k == 0 || anatomy_.top_k > most_experts_) {
      return bad("uses {} of {} experts a token ({}.expert_used_count); the file is damaged.", anatomy_.top_k, most_experts_,
                 anatomy_.architecture);
    }
    return {};
  }

  Parts parts_;
  const GgufHeader& meta_;
  Anatomy anatomy_;
  std::set<std::string> names_;
  std::map<LayerKey, std::vector<ExpertTensor>> layers_;
  std::vector<FileRange> whole_;
  std::int64_t n_embedding_rows_ = 0;
  std::uint32_t most_experts_ = 0;
  bool separate_experts_ = false;
};

}  // namespace

std::optional<ExpertName> parse_expert_name(std::string_view tensor_name) {
  const auto block = parse_block_name(tensor_name);
  if (!block) return std::nullopt;
  const auto dot = block->role.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view base = block->role.substr(0, dot), suffix = block->role.substr(dot + 1);
  if (suffix != "weight" && suffix != "bias") return std::nullopt;
  for (const std::string_view part : {"ffn_gate", "ffn_up", "ffn_down", "ffn_gate_up"}) {
    if (!base.starts_with(part)) continue;
    const std::string_view kind = base.substr(part.size());
    if (kind == "_exps") return ExpertName{block->block, std::string(block->role)};
    if (kind == "_chexps") return ExpertName{static_cast<LayerKey>(block->block | chunk_experts_bit), std::string(block->role)};
  }
  return std::nullopt;
}

bool ExpertTensor::fits(const ggml_tensor& tensor) const {
  const std::int64_t rows = is_bias ? n_expert : n_out, stack = is_bias ? 1 : n_expert;
  return tensor.type == type && tensor.ne[0] == (is_bias ? n_out : n_in) && tensor.ne[1] == rows && tensor.ne[2] == stack &&
         tensor.ne[3] == 1;
}

std::uint64_t MoeLayer::expert_bytes() const {
  std::uint64_t bytes = 0;
  for (const ExpertTensor& tensor : tensors) bytes += tensor.slice_bytes;
  return bytes;
}

std::uint32_t MoeLayer::n_in() const {
  for (const ExpertTensor& tensor : tensors) {
    if (!tensor.is_bias && !tensor.role.starts_with("ffn_down")) return static_cast<std::uint32_t>(tensor.n_in);
  }
  return 0;
}

std::uint32_t MoeLayer::n_out() const {
  for (const ExpertTensor& tensor : tensors) {
    if (!tensor.is_bias && tensor.role.starts_with("ffn_down")) return static_cast<std::uint32_t>(tensor.n_out);
  }
  return 0;
}

const MoeLayer* Anatomy::find(LayerKey key) const {
  const auto at = std::ranges::lower_bound(layers, key, {}, &MoeLayer::key);
  return at != layers.end() && at->key == key ? &*at : nullptr;
}

Result<Anatomy> read_anatomy(const std::filesystem::path& path) {
  auto parts = read_parts(path);
  if (!parts) return pass(parts);
  return Builder(std::move(*parts)).build();
}

std::optional<int> type_by_name(std::string_view name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    const char* known = ggml_type_name(type);  // of formats that the engine has dropped a name may be left
    if (known != nullptr && name == known && ggml_blck_size(type) > 0 && ggml_type_size(type) > 0) return i;
  }
  return std::nullopt;
}

std::uint64_t slice_bytes_of(const ExpertTensor& tensor) {
  const auto type = static_cast<ggml_type>(tensor.type);
  const std::int64_t row = tensor.is_bias ? tensor.n_out : tensor.n_in, rows = tensor.is_bias ? 1 : tensor.n_out;
  if (row <= 0 || rows <= 0 || row > max_row || rows > max_row || row % ggml_blck_size(type) != 0) return 0;
  return ggml_row_size(type, row) * static_cast<std::uint64_t>(rows);
}

std::string engine_version() { return std::string("ggml ") + ggml_version(); }

}  // namespace linkcpp::engine
