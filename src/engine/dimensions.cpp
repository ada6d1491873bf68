#include "engine/dimensions.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/anatomy_gguf.h"
#include "wire/program.h"

namespace linkcpp::engine {
namespace {

using nlohmann::json;

/// Bounds that keep every later product and sum within 64 bits: 1000 layers x 6 tensors x elements x 4 bytes < 2^63.
struct Most {
  static constexpr std::size_t file_bytes = std::size_t{1} << 20;
  static constexpr std::uint64_t layers = 1000, experts = 65535, elements = 10'000'000'000'000, matrices = 1000;
  static constexpr std::uint64_t row = wire::max_row_elements, parameters = 1'000'000'000'000'000;
};

/// Keys that state a fact of the model: each needs a source.
constexpr std::array figures{"parameters", "n_layer",     "moe_layers",   "n_embd", "n_vocab",     "n_expert",
                             "top_k",      "n_ff_expert", "n_expert_row", "gated",  "expert_bias", "n_ff_shared"};
constexpr std::array other_keys{"name", "architecture", "expert_type", "backbone_type", "backbone", "sources", "note"};

bool is_figure(std::string_view key) { return std::ranges::find(figures, key) != figures.end(); }

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

class DimensionsReader {
 public:
  explicit DimensionsReader(std::string_view file) : file_(file) {}

  Result<Dimensions> read(const json& root) {
    if (!root.is_object()) return bad("is no JSON object of dimensions; models/dimensions/README.md describes them.");
    root_ = &root;
    for (const auto step :
         {&DimensionsReader::read_keys, &DimensionsReader::read_texts, &DimensionsReader::read_counts, &DimensionsReader::read_layers,
          &DimensionsReader::read_experts, &DimensionsReader::read_backbone, &DimensionsReader::read_sources}) {
      if (auto done = (this->*step)(); !done) return pass(done);
    }
    return std::move(result_);
  }

 private:
  template <class... Args>
  [[nodiscard]] std::unexpected<Error> bad(std::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorKind::invalid_input, "{} {}", file_, std::format(format, std::forward<Args>(args)...));
  }

  /// Only known keys: a misspelt one would be left out of the account silently.
  Result<> check_keys(const json& object, std::string_view where, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object.items()) {
      if (std::ranges::find(known, key) == known.end()) return bad("has an unknown key \"{}\" in {}.", shown(key), where);
    }
    return {};
  }

  Result<> read_keys() {
    for (const auto& [key, value] : root_->items()) {
      if (!is_figure(key) && std::ranges::find(other_keys, std::string_view(key)) == other_keys.end())
        return bad("has an unknown key \"{}\"; models/dimensions/README.md lists them.", shown(key));
    }
    return {};
  }

  Result<std::string> text(const json& object, const char* key, std::optional<std::string> otherwise = std::nullopt) const {
    const auto at = object.find(key);
    if (at == object.end()) {
      if (otherwise) return *otherwise;
      return bad("misses \"{}\".", key);
    }
    if (!at->is_string()) return bad("has \"{}\" = {}, which is no text.", key, short_dump(*at));
    auto value = at->get<std::string>();
    if (value.empty() || value.size() > 2000 || std::ranges::any_of(value, is_control))
      return bad("has an empty, too long or unreadable \"{}\".", key);
    return value;
  }

  Result<std::uint64_t> number(const json& object, const char* key, std::uint64_t least, std::uint64_t most,
                               std::optional<std::uint64_t> otherwise = std::nullopt) const {
    const auto at = object.find(key);
    if (at == object.end()) {
      if (otherwise) return *otherwise;
      return bad("misses \"{}\".", key);
    }
    return bounded(*at, key, least, most);
  }

  Result<std::uint64_t> bounded(const json& value, std::string_view what, std::uint64_t least, std::uint64_t most) const {
    if (!value.is_number_unsigned()) return bad("has \"{}\" = {}, which is no whole number.", what, short_dump(value));
    const auto n = value.get<std::uint64_t>();
    if (n < least || n > most) return bad("has \"{}\" = {}, outside {} to {}.", what, n, least, most);
    return n;
  }

  Result<bool> flag(const char* key, bool otherwise) const {
    const auto at = root_->find(key);
    if (at == root_->end()) return otherwise;
    if (!at->is_boolean()) return bad("has \"{}\" = {}, which is neither true nor false.", key, short_dump(*at));
    return at->get<bool>();
  }

  Result<ggml_type> type(const json& object, const char* key, std::optional<std::string> otherwise = std::nullopt) const {
    auto name = text(object, key, std::move(otherwise));
    if (!name) return pass(name);
    const auto found = type_by_name(*name);
    if (!found) return bad("has \"{}\" = \"{}\", which is no tensor type of the engine; write for example \"q4_0\".", key, *name);
    return static_cast<ggml_type>(*found);
  }

  static std::string short_dump(const json& value) {
    return shown(value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 40));
  }

  Result<> read_texts() {
    auto name = text(*root_, "name"), architecture = text(*root_, "architecture");
    if (!name) return pass(name);
    if (!architecture) return pass(architecture);
    result_.anatomy.name = std::move(*name);
    result_.anatomy.architecture = std::move(*architecture);
    if (auto note = text(*root_, "note", "none"); !note) return pass(note);
    return {};
  }

  Result<> read_counts() {
    Anatomy& anatomy = result_.anatomy;
    struct Count {
      const char* key;
      std::uint32_t* field;
      std::uint64_t most;
      std::optional<std::uint64_t> otherwise;
    };
    for (const auto& [key, field, most, otherwise] :
         {Count{"n_layer", &anatomy.n_layer, Most::layers, {}}, Count{"n_embd", &anatomy.n_embd, Most::row, {}},
          Count{"n_expert", &anatomy.n_expert, Most::experts, {}}, Count{"top_k", &anatomy.top_k, Most::experts, {}},
          Count{"n_vocab", &anatomy.n_vocab, UINT32_MAX, 0}}) {
      auto value = number(*root_, key, 1, most, otherwise);
      if (!value) return pass(value);
      *field = static_cast<std::uint32_t>(*value);
    }
    if (anatomy.top_k > anatomy.n_expert) return bad("uses {} of {} experts a token (\"top_k\").", anatomy.top_k, anatomy.n_expert);
    auto shared = number(*root_, "n_ff_shared", 0, Most::row, 0);
    if (!shared) return pass(shared);
    anatomy.shared_expert = *shared != 0;
    auto published = number(*root_, "parameters", 1, Most::parameters, 0);
    if (!published) return pass(published);
    result_.published_parameters = *published;
    return {};
  }

  /// "moe_layers": {"first": F, "step": S} or a list of layer numbers; every layer if it is missing.
  Result<> read_layers() {
    const std::uint32_t n_layer = result_.anatomy.n_layer;
    const auto at = root_->find("moe_layers");
    if (at != root_->end() && at->is_array()) {
      for (const json& value : *at) {
        auto layer = bounded(value, "moe_layers", 0, n_layer - 1);
        if (!layer) return pass(layer);
        if (!moe_layers_.insert(static_cast<LayerKey>(*layer)).second) return bad("names layer {} twice in \"moe_layers\".", *layer);
      }
    } else {
      const json rule = at == root_->end() ? json::object() : *at;
      if (!rule.is_object())
        return bad("has \"moe_layers\" = {}, which is neither a list nor {{\"first\": F, \"step\": S}}.", short_dump(rule));
      if (auto known = check_keys(rule, "\"moe_layers\"", {"first", "step"}); !known) return pass(known);
      auto first = number(rule, "first", 0, n_layer - 1, 0), step = number(rule, "step", 1, Most::layers, 1);
      if (!first) return pass(first);
      if (!step) return pass(step);
      for (std::uint64_t layer = *first; layer < n_layer; layer += *step) moe_layers_.insert(static_cast<LayerKey>(layer));
    }
    if (moe_layers_.empty()) return bad("has no layer with experts (\"moe_layers\" is empty).");
    return {};
  }

  Result<> read_experts() {
    auto ff = number(*root_, "n_ff_expert", 1, Most::row), row = number(*root_, "n_expert_row", 1, Most::row, result_.anatomy.n_embd);
    auto gated = flag("gated", true), bias = flag("expert_bias", false);
    auto weight_type = type(*root_, "expert_type");
    if (!ff) return pass(ff);
    if (!row) return pass(row);
    if (!gated) return pass(gated);
    if (!bias) return pass(bias);
    if (!weight_type) return pass(weight_type);
    struct Role {
      std::string_view name;
      std::uint64_t n_in, n_out;
    };
    std::vector<Role> roles{{"ffn_down_exps", *ff, *row}, {"ffn_up_exps", *row, *ff}};
    if (*gated) roles.insert(roles.begin() + 1, {"ffn_gate_exps", *row, *ff});
    for (const LayerKey key : moe_layers_) {
      MoeLayer layer{.key = key, .n_expert = result_.anatomy.n_expert, .tensors = {}};
      for (const auto& [name, n_in, n_out] : roles) {  // in the order of roles, as in a GGUF's anatomy: a bias before its weight
        if (*bias) {
          if (auto done = add_expert_tensor(layer, std::format("{}.bias", name), GGML_TYPE_F32, 0, n_out); !done) return pass(done);
        }
        if (auto done = add_expert_tensor(layer, std::format("{}.weight", name), *weight_type, n_in, n_out); !done) return pass(done);
      }
      result_.anatomy.layers.push_back(std::move(layer));
    }
    return {};
  }

  Result<> add_expert_tensor(MoeLayer& layer, std::string role, ggml_type type, std::uint64_t n_in, std::uint64_t n_out) {
    auto bytes = matrix_bytes(role, type, n_in == 0 ? n_out : n_in, n_in == 0 ? 1 : n_out, layer.n_expert);
    if (!bytes) return pass(bytes);
    Anatomy& anatomy = result_.anatomy;
    ExpertTensor tensor{.name = std::format("blk.{}.{}", layer.key, role), .role = std::move(role), .type = type};
    tensor.type_name = ggml_type_name(type);
    tensor.is_bias = n_in == 0;
    tensor.n_in = static_cast<std::int64_t>(n_in);
    tensor.n_out = static_cast<std::int64_t>(n_out);
    tensor.n_expert = layer.n_expert;
    tensor.slice_bytes = *bytes / layer.n_expert;
    layer.tensors.push_back(std::move(tensor));
    anatomy.expert_bytes += *bytes;
    anatomy.total_bytes += *bytes;
    anatomy.expert_types[ggml_type_name(type)] += *bytes;
    elements_ += std::max<std::uint64_t>(n_in, 1) * n_out * layer.n_expert;
    return {};
  }

  /// Bytes of `count` matrices of n_out rows of n_in elements.
  Result<std::uint64_t> matrix_bytes(std::string_view what, ggml_type type, std::uint64_t n_in, std::uint64_t n_out,
                                     std::uint64_t count) const {
    if (n_in > Most::elements / n_out || n_in * n_out > Most::elements / count)
      return bad("has more than {} elements in \"{}\"; that is no real model.", Most::elements, what);
    const auto block = static_cast<std::uint64_t>(ggml_blck_size(type));
    if (n_in % block != 0) {
      return bad("has rows of {} elements in \"{}\", which type {} cannot hold: it stores blocks of {}; choose another type.", n_in, what,
                 ggml_type_name(type), block);
    }
    return ggml_row_size(type, static_cast<std::int64_t>(n_in)) * n_out * count;
  }

  /// "backbone": [{"what": TEXT, "shape": [ROW ELEMENTS, ROWS], "count": N, "type": T}, ...]: everything but the routed experts.
  Result<> read_backbone() {
    const auto at = root_->find("backbone");
    if (at == root_->end()) return {};
    if (!at->is_array() || at->empty() || at->size() > Most::matrices)
      return bad("has a \"backbone\" that is no list of 1 to {} matrices.", Most::matrices);
    auto common = type(*root_, "backbone_type");
    if (!common) return pass(common);
    for (const json& entry : *at) {
      if (auto done = add_backbone(entry, *common); !done) return pass(done);
    }
    result_.parameters = elements_;
    return {};
  }

  Result<> add_backbone(const json& entry, ggml_type common) {
    if (!entry.is_object()) return bad("has {} in \"backbone\", which is no object.", short_dump(entry));
    if (auto known = check_keys(entry, "\"backbone\"", {"what", "shape", "count", "type"}); !known) return pass(known);
    auto what = text(entry, "what");
    if (!what) return pass(what);
    auto type = this->type(entry, "type", ggml_type_name(common));
    auto count = number(entry, "count", 1, Most::elements, 1);
    if (!type) return pass(type);
    if (!count) return pass(count);
    const auto shape = entry.find("shape");
    if (shape == entry.end() || !shape->is_array() || shape->empty() || shape->size() > 2)
      return bad("has no \"shape\": [elements a row, rows] for \"{}\" in \"backbone\".", *what);
    std::array<std::uint64_t, 2> ne{1, 1};
    for (std::size_t i = 0; i < shape->size(); ++i) {
      auto n = bounded((*shape)[i], *what, 1, UINT32_MAX);
      if (!n) return pass(n);
      ne[i] = *n;
    }
    auto bytes = matrix_bytes(*what, *type, ne[0], ne[1], *count);
    if (!bytes) return pass(bytes);
    result_.anatomy.total_bytes += *bytes;
    result_.anatomy.backbone_types[ggml_type_name(*type)] += *bytes;
    elements_ += ne[0] * ne[1] * *count;
    return {};
  }

  /// "sources": [{"of": [KEY, ...], "where": TEXT}, ...]: no figure without one.
  Result<> read_sources() {
    const auto at = root_->find("sources");
    if (at == root_->end() || !at->is_array() || at->size() > Most::matrices) return bad("has no list of \"sources\".");
    std::set<std::string> sourced;
    for (const json& source : *at) {
      if (!source.is_object()) return bad("has {} in \"sources\", which is no object.", short_dump(source));
      if (auto known = check_keys(source, "\"sources\"", {"of", "where"}); !known) return pass(known);
      if (auto where = text(source, "where"); !where) return pass(where);
      const auto of = source.find("of");
      if (of == source.end() || !of->is_array()) return bad("has a source without \"of\": [KEY, ...].");
      for (const json& key : *of) {
        if (!key.is_string() || !root_->contains(key.get<std::string>()))
          return bad("has a source of {}, which is no key of it.", short_dump(key));
        sourced.insert(key.get<std::string>());
      }
    }
    for (const auto& [key, value] : root_->items()) {
      if ((is_figure(key) || key == "backbone") && !sourced.contains(key)) return bad("has no source for \"{}\".", key);
    }
    return {};
  }

  std::string file_;
  const json* root_ = nullptr;
  Dimensions result_;
  std::set<LayerKey> moe_layers_;
  std::uint64_t elements_ = 0;
};

/// Refuses a key that is given twice: the second would silently win.
class UniqueKeys {
 public:
  bool operator()(int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end && !open_.empty()) open_.pop_back();
    if (event == json::parse_event_t::key && !open_.empty() && !open_.back().insert(parsed.get<std::string>()).second && twice_.empty())
      twice_ = parsed.get<std::string>();
    return true;
  }
  [[nodiscard]] const std::string& twice() const { return twice_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string twice_;
};

}  // namespace

Result<Dimensions> parse_dimensions(std::string_view text, std::string_view name) {
  UniqueKeys keys;
  json root;
  try {
    root = json::parse(text, std::ref(keys));
  } catch (const json::exception& error) {
    return fail(ErrorKind::invalid_input, "{} is no JSON: {}.", name, shown(error.what()));
  }
  if (!keys.twice().empty()) return fail(ErrorKind::invalid_input, "{} has the key \"{}\" twice.", name, shown(keys.twice()));
  return DimensionsReader(name).read(root);
}

Result<Dimensions> read_dimensions(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return fail(ErrorKind::not_found, "{} does not exist.", path.string());
  if (!std::filesystem::is_regular_file(path, error)) return fail(ErrorKind::invalid_input, "{} is not a file.", path.string());
  std::ifstream file(path, std::ios::binary);
  std::string text(Most::file_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || !(file.eof() || file.good())) return fail(ErrorKind::io, "cannot read {}.", path.string());
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > Most::file_bytes)
    return fail(ErrorKind::invalid_input, "{} is larger than {} bytes; a file of dimensions is not.", path.string(), Most::file_bytes);
  return parse_dimensions(text, path.string());
}

}  // namespace linkcpp::engine
