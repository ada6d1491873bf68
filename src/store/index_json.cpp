// The slice index as JSON. Read by events, not into a tree: the handler knows the one form that an index has, so that memory stays
// within a small multiple of the text whatever somebody sends.
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "store/index.h"
#include "store/index_rules.h"

namespace linkcpp::store {
namespace {

constexpr std::string_view format_name = "linkcpp slices 2";

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

void append_part(std::string& out, const SlicePart& part) {
  out += std::format(R"({{"tensor":{},"type":{},"n_in":{},"n_out":{},"bytes":{},"file":{},"file_offset":{},"object_offset":{}}})",
                     json_text(part.tensor), json_text(part.type), part.n_in, part.n_out, part.bytes, part.file, part.file_offset,
                     part.object_offset);
}

void append_layer(std::string& out, const LayerSlices& layer) {
  out += std::format(R"({{"layer":{},"experts":{},"parts":[)", layer.layer, layer.slices.size());
  for (std::size_t i = 0; i < layer.parts.size(); ++i) {
    out += i == 0 ? "\n" : ",\n";
    append_part(out, layer.parts[i]);
  }
  out += "],\"slices\":[";
  for (std::size_t i = 0; i < layer.slices.size(); ++i) {
    out += i == 0 ? "\n\"" : ",\n\"";
    out += wire::to_hex(layer.slices[i]);
    out += '"';
  }
  out += "]}";
}

/// Where the parser is.
enum class Place : std::uint8_t { before, model, files, file, layers, layer, parts, part, slices, behind };

/// What a member of an object is read into: a number, a text, a digest, a truth value, or a list.
using Target =
    std::variant<std::monostate, std::uint16_t*, std::uint32_t*, std::uint64_t*, std::int64_t*, std::string*, Digest*, bool*, Place>;

struct Member {
  std::string_view name;
  Target target;
};

/// The parser's events. Each returns false to stop; the reason is in error().
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return stop("null has no place here"); }
  bool boolean(bool value) override {
    bool* const* to = std::get_if<bool*>(&target_);
    if (to == nullptr) return stop("a truth value has no place here");
    **to = value;
    return taken();
  }
  bool number_integer(number_integer_t) override { return stop("a negative number has no place here"); }
  bool number_unsigned(number_unsigned_t value) override {
    return std::visit(
        [&]<class T>(T to) {
          if constexpr (std::is_pointer_v<T>) {
            using Number = std::remove_pointer_t<T>;
            if constexpr (std::is_integral_v<Number> && !std::is_same_v<Number, bool>) {
              if (!std::in_range<Number>(value)) return stop(std::format("{} is too large", value));
              *to = static_cast<Number>(value);
              return taken();
            }
          }
          return stop("a number has no place here");
        },
        target_);
  }
  bool number_float(number_float_t, const string_t&) override { return stop("only whole numbers up to 2^64 - 1 have a place here"); }
  bool string(string_t& value) override {
    if (place_ == Place::slices) return add_slice(value);
    if (std::string* const* to = std::get_if<std::string*>(&target_)) {
      **to = std::move(value);
      return taken();
    }
    if (Digest* const* to = std::get_if<Digest*>(&target_)) {
      auto digest = wire::digest_from_hex(value);
      if (!digest) return stop(digest.error().message);
      **to = *digest;
      return taken();
    }
    return stop("a text has no place here");
  }
  bool binary(binary_t&) override { return stop("bytes have no place here"); }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::before:
        return enter(Place::model);
      case Place::files:
        if (index_.files.size() == max_files) return stop(std::format("more than {} files", max_files));
        index_.files.emplace_back();
        return enter(Place::file);
      case Place::layers:
        if (index_.layers.size() == wire::max_holdings) return stop(std::format("more than {} layers", wire::max_holdings));
        index_.layers.emplace_back();
        return enter(Place::layer);
      case Place::parts:
        if (layer().parts.size() == max_parts) return stop(std::format("more than {} parts", max_parts));
        layer().parts.emplace_back();
        return enter(Place::part);
      default:
        return stop("an object has no place here");
    }
  }
  bool key(string_t& name) override {
    key_ = name.substr(0, longest_shown);
    std::size_t at = 0;
    for (const Member& member : members()) {
      if (member.name == name) {
        if ((seen() >> at & 1) != 0) return stop("it is there twice");
        seen() |= 1u << at;
        target_ = member.target;
        return true;
      }
      ++at;
    }
    return stop("there is no such member in this version");
  }
  bool end_object() override {
    std::size_t at = 0;
    for (const Member& member : members()) {
      key_ = member.name;
      if ((seen() >> at++ & 1) == 0) return stop("it is missing");
    }
    key_.clear();
    if (place_ == Place::model && format_ != format_name)
      return stop(std::format("the format is not \"{}\"; this version of linkcpp reads no other", format_name));
    if (place_ == Place::layer && experts_ != layer().slices.size())
      return stop(std::format("it says {} experts, but has {} slices", experts_, layer().slices.size()));
    return leave();
  }
  bool start_array(std::size_t) override {
    const Place* to = std::get_if<Place>(&target_);
    if (to == nullptr) return stop("a list has no place here");
    return enter(*to);
  }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return stop(std::format("it is not JSON, or cut short, at byte {}", position));
  }

  [[nodiscard]] SliceIndex take() { return std::move(index_); }
  [[nodiscard]] Error error() const { return error_; }

 private:
  static constexpr std::size_t longest_shown = 64;

  LayerSlices& layer() { return index_.layers.back(); }
  std::uint32_t& seen() { return seen_[static_cast<std::size_t>(place_)]; }

  /// Members of the object that the parser is in; all are required. At most 32.
  std::vector<Member> members() {
    switch (place_) {
      case Place::model:
        return {{"format", &format_},
                {"model", &index_.model},
                {"architecture", &index_.architecture},
                {"name", &index_.name},
                {"n_layer", &index_.n_layer},
                {"n_embd", &index_.n_embd},
                {"n_expert", &index_.n_expert},
                {"top_k", &index_.top_k},
                {"n_vocab", &index_.n_vocab},
                {"shared_expert", &index_.shared_expert},
                {"files", Place::files},
                {"layers", Place::layers}};
      case Place::file:
        return {{"name", &index_.files.back().name}, {"bytes", &index_.files.back().bytes}};
      case Place::layer:
        return {{"layer", &layer().layer}, {"experts", &experts_}, {"parts", Place::parts}, {"slices", Place::slices}};
      case Place::part: {
        SlicePart& part = layer().parts.back();
        return {{"tensor", &part.tensor},
                {"type", &part.type},
                {"n_in", &part.n_in},
                {"n_out", &part.n_out},
                {"bytes", &part.bytes},
                {"file", &part.file},
                {"file_offset", &part.file_offset},
                {"object_offset", &part.object_offset}};
      }
      default:
        return {};
    }
  }

  bool add_slice(std::string_view hex) {
    if (layer().slices.size() == wire::max_experts) return stop(std::format("more than {} slices", wire::max_experts));
    auto digest = wire::digest_from_hex(hex);
    if (!digest) return stop(digest.error().message);
    layer().slices.push_back(*digest);
    return true;
  }

  /// A value has found its place.
  bool taken() {
    target_ = std::monostate();
    return true;
  }
  bool enter(Place place) {
    target_ = std::monostate();
    key_.clear();
    place_ = place;
    seen() = 0;
    return true;
  }
  bool leave() {
    target_ = std::monostate();
    key_.clear();
    place_ = outer(place_);
    return true;
  }
  static Place outer(Place place) {
    switch (place) {
      case Place::files:
      case Place::layers:
        return Place::model;
      case Place::file:
        return Place::files;
      case Place::layer:
        return Place::layers;
      case Place::parts:
      case Place::slices:
        return Place::layer;
      case Place::part:
        return Place::parts;
      default:
        return Place::behind;
    }
  }

  [[nodiscard]] std::string where() const {
    std::string text;
    if (place_ == Place::files || place_ == Place::file) text = std::format("files[{}]", index_.files.size() - (place_ == Place::file));
    if (place_ >= Place::layers && place_ <= Place::slices && !index_.layers.empty()) {
      text = std::format("layers[{}]", index_.layers.size() - 1);
      if (place_ == Place::part) text += std::format(".parts[{}]", index_.layers.back().parts.size() - 1);
      if (place_ == Place::slices) text += std::format(".slices[{}]", index_.layers.back().slices.size());
    }
    if (!key_.empty()) text += (text.empty() ? "" : ".") + json_text(key_);
    return text;
  }
  bool stop(std::string_view why) {
    const std::string place = where();
    error_ = {ErrorKind::invalid_input, std::format("the slice index is wrong: {}{}{}", place, place.empty() ? "" : ": ", why)};
    return false;
  }

  SliceIndex index_;
  std::string format_;
  std::uint64_t experts_ = 0;
  Place place_ = Place::before;
  Target target_;
  std::string key_;
  std::array<std::uint32_t, static_cast<std::size_t>(Place::behind) + 1> seen_{};
  Error error_{ErrorKind::invalid_input, "the slice index is wrong: it is empty"};
};

}  // namespace

std::string encode_index(const SliceIndex& index) {
  std::string out = std::format(
      "{{\"format\":\"{}\",\n\"model\":\"{}\",\n\"architecture\":{},\n\"name\":{},\n\"n_layer\":{},\"n_embd\":{},\"n_expert\":{},"
      "\"top_k\":{},\"n_vocab\":{},\"shared_expert\":{},\n\"files\":[",
      format_name, wire::to_hex(index.model), json_text(index.architecture), json_text(index.name), index.n_layer, index.n_embd,
      index.n_expert, index.top_k, index.n_vocab, index.shared_expert);
  for (std::size_t i = 0; i < index.files.size(); ++i)
    out += std::format("{}{{\"name\":{},\"bytes\":{}}}", i == 0 ? "\n" : ",\n", json_text(index.files[i].name), index.files[i].bytes);
  out += "],\n\"layers\":[";
  for (std::size_t i = 0; i < index.layers.size(); ++i) {
    out += i == 0 ? "\n" : ",\n";
    append_layer(out, index.layers[i]);
  }
  return out + "]}\n";
}

Result<SliceIndex> decode_index(std::string_view text) {
  if (text.size() > max_index_bytes) {
    return fail(ErrorKind::invalid_input, "the slice index is wrong: it has {} bytes, at most {} are supported", text.size(),
                max_index_bytes);
  }
  Reader reader;
  if (!nlohmann::json::sax_parse(text, &reader)) return std::unexpected(reader.error());
  SliceIndex index = reader.take();
  if (auto done = check_index(index); !done) return pass(done);
  return index;
}

}  // namespace linkcpp::store
