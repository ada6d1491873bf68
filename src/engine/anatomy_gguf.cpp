#include "engine/anatomy_gguf.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_set>

#include "engine/anatomy_file.h"

namespace linkcpp::engine {
namespace {

constexpr std::uint64_t max_key_bytes = 65535;
constexpr std::uint64_t max_tensors = 1u << 20;  // the largest models have a few thousand
constexpr std::uint64_t max_values = 1u << 16;
constexpr std::uint64_t max_scanned_array = 65536;
// Smallest encodings: bounds a count by the bytes that are left before anything is allocated for it.
constexpr std::uint64_t min_value_bytes = 8 + 4 + 1;
constexpr std::uint64_t min_tensor_bytes = 8 + 4 + 4 + 8;

/// Reads a file front to back through a small window. Reading past the end yields zeros and makes ok() false for good.
class Cursor {
 public:
  explicit Cursor(const InputFile& file) : file_(file), window_(64 << 10) {}

  template <class T>
    requires std::is_arithmetic_v<T>
  T get() {
    T value{};
    copy(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  /// n bytes as text; n must have been bounded by the caller.
  std::string text(std::uint64_t n) {
    if (!ok_ || n > left()) {
      ok_ = false;
      return {};
    }
    std::string value(static_cast<std::size_t>(n), '\0');
    copy(std::as_writable_bytes(std::span(value)));
    return value;
  }
  void skip(std::uint64_t n) {
    if (!ok_ || n > left()) {
      ok_ = false;
      return;
    }
    at_ += n;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::uint64_t at() const { return at_; }
  [[nodiscard]] std::uint64_t left() const { return file_.size() - at_; }

 private:
  void copy(std::span<std::byte> to) {
    if (!ok_ || to.size() > left()) {
      ok_ = false;
      return;
    }
    while (!to.empty()) {
      if ((at_ < begin_ || at_ >= begin_ + filled_) && !fill()) return;
      const auto from = static_cast<std::size_t>(at_ - begin_);
      const std::size_t n = std::min(to.size(), filled_ - from);
      std::memcpy(to.data(), window_.data() + from, n);
      to = to.subspan(n);
      at_ += n;
    }
  }
  bool fill() {
    begin_ = at_;
    filled_ = static_cast<std::size_t>(std::min<std::uint64_t>(window_.size(), left()));
    // A file that shrinks while it is read ends here.
    if (!file_.read_at(begin_, std::span(window_).first(filled_))) {
      filled_ = 0;
      ok_ = false;
    }
    return ok_;
  }

  const InputFile& file_;
  std::vector<std::byte> window_;
  std::uint64_t begin_ = 0;
  std::size_t filled_ = 0;
  std::uint64_t at_ = 0;
  bool ok_ = true;
};

/// Bytes of a value of fixed size; 0 for strings, arrays and unknown types.
std::uint64_t fixed_bytes(std::int32_t type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
      return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
      return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
      return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
      return 8;
    default:
      return 0;
  }
}

bool is_integer(std::int32_t type) {
  return fixed_bytes(type) != 0 && type != GGUF_TYPE_BOOL && type != GGUF_TYPE_FLOAT32 && type != GGUF_TYPE_FLOAT64;
}

std::int64_t get_integer(Cursor& in, std::int32_t type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
      return in.get<std::uint8_t>();
    case GGUF_TYPE_INT8:
      return in.get<std::int8_t>();
    case GGUF_TYPE_UINT16:
      return in.get<std::uint16_t>();
    case GGUF_TYPE_INT16:
      return in.get<std::int16_t>();
    case GGUF_TYPE_UINT32:
      return in.get<std::uint32_t>();
    case GGUF_TYPE_INT32:
      return in.get<std::int32_t>();
    case GGUF_TYPE_UINT64:
      return static_cast<std::int64_t>(std::min<std::uint64_t>(in.get<std::uint64_t>(), std::numeric_limits<std::int64_t>::max()));
    default:
      return in.get<std::int64_t>();
  }
}

/// The header of one file, parsed in the order of its bytes.
class Parser {
 public:
  Parser(const std::filesystem::path& path, const InputFile& file) : path_(path.string()), in_(file) { header_.file_bytes = file.size(); }

  Result<GgufHeader> parse() {
    std::uint64_t n_tensors = 0, n_values = 0;
    if (auto done = read_counts(n_tensors, n_values); !done) return pass(done);
    for (std::uint64_t i = 0; i < n_values; ++i) {
      if (auto done = read_value(); !done) return pass(done);
    }
    for (std::uint64_t i = 0; i < n_tensors; ++i) {
      if (auto done = read_tensor(); !done) return pass(done);
    }
    if (auto done = place_tensors(); !done) return pass(done);
    return std::move(header_);
  }

 private:
  template <class... Args>
  [[nodiscard]] std::unexpected<Error> bad(std::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorKind::invalid_input, "{} {}", path_, std::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] std::unexpected<Error> cut() const {
    return bad("is cut short or damaged: its {} bytes end within the GGUF header; get the file again.", header_.file_bytes);
  }

  Result<> read_counts(std::uint64_t& n_tensors, std::uint64_t& n_values) {
    if (header_.file_bytes == 0) return bad("is empty; name a GGUF file.");
    if (in_.text(std::min<std::uint64_t>(4, in_.left())) != GGUF_MAGIC) {
      return bad("is not a GGUF file (it does not begin with \"GGUF\"); linkcpp reads models that were converted to GGUF.");
    }
    const auto version = in_.get<std::uint32_t>();
    header_.version = version;
    n_tensors = in_.get<std::uint64_t>();
    n_values = in_.get<std::uint64_t>();
    if (!in_.ok()) return cut();
    if (version != 0 && (version & 0xFFFF) == 0) return bad("is a big-endian GGUF; convert the model for little-endian machines.");
    if (version < 2 || version > GGUF_VERSION) {
      return fail(ErrorKind::incompatible, "{} has GGUF version {}; versions 2 to {} are understood.", path_, version, GGUF_VERSION);
    }
    if (n_values > max_values || n_values > in_.left() / min_value_bytes) {
      return bad("announces {} metadata values, more than it can hold; the file is damaged.", n_values);
    }
    if (n_tensors > max_tensors || n_tensors > in_.left() / min_tensor_bytes) {
      return bad("announces {} tensors, more than it can hold; the file is damaged.", n_tensors);
    }
    return {};
  }

  Result<> read_value() {
    const std::uint64_t begin = in_.at();
    const auto key_bytes = in_.get<std::uint64_t>();
    if (in_.ok() && key_bytes > max_key_bytes) return bad("has a metadata key of {} bytes; the file is damaged.", key_bytes);
    std::string key = in_.text(key_bytes);
    const auto type = in_.get<std::int32_t>();
    if (!in_.ok()) return cut();
    GgufValue value;
    if (auto done = read_value_of(type, key, value); !done) return done;
    if (!in_.ok()) return cut();
    value.offset = begin;
    value.bytes = in_.at() - begin;
    const auto [at, fresh] = header_.values.emplace(std::move(key), std::move(value));
    if (!fresh) return bad("has the metadata key \"{}\" twice; the file is damaged.", shown(at->first));
    return {};
  }

  Result<> read_value_of(std::int32_t type, const std::string& key, GgufValue& value) {
    if (is_integer(type)) {
      value.integer = get_integer(in_, type);
    } else if (type == GGUF_TYPE_STRING) {
      value.kind = GgufValue::Kind::text;
      const auto n = in_.get<std::uint64_t>();
      if (n <= max_kept_text)
        value.text = in_.text(n);
      else
        in_.skip(n);
    } else if (type == GGUF_TYPE_ARRAY) {
      return read_array(key, value);
    } else if (fixed_bytes(type) != 0) {
      value.kind = type == GGUF_TYPE_BOOL ? GgufValue::Kind::boolean : GgufValue::Kind::real;
      in_.skip(fixed_bytes(type));
    } else {
      return bad("has metadata \"{}\" of unknown type {}; the file is damaged or newer than this program.", shown(key), type);
    }
    return {};
  }

  Result<> read_array(const std::string& key, GgufValue& value) {
    value.kind = GgufValue::Kind::array;
    const auto type = in_.get<std::int32_t>();
    value.count = in_.get<std::uint64_t>();
    if (!in_.ok()) return cut();
    const std::uint64_t each = fixed_bytes(type);
    if (each == 0 && type != GGUF_TYPE_STRING) {
      return bad("has metadata \"{}\", an array of unknown type {}; the file is damaged or newer than this program.", shown(key), type);
    }
    if (value.count > in_.left() / (each != 0 ? each : sizeof(std::uint64_t))) return cut();
    if (type == GGUF_TYPE_STRING) {
      for (std::uint64_t i = 0; i < value.count && in_.ok(); ++i) in_.skip(in_.get<std::uint64_t>());
    } else if (is_integer(type) && value.count <= max_scanned_array) {
      for (std::uint64_t i = 0; i < value.count; ++i) {
        const std::int64_t element = get_integer(in_, type);
        value.integer = i == 0 ? element : std::max(value.integer, element);
      }
    } else {
      in_.skip(value.count * each);
    }
    return {};
  }

  Result<> read_tensor() {
    GgufTensor tensor;
    const auto name_bytes = in_.get<std::uint64_t>();
    if (in_.ok() && (name_bytes == 0 || name_bytes >= GGML_MAX_NAME)) {
      return bad("has a tensor name of {} bytes; the engine takes 1 to {}.", name_bytes, GGML_MAX_NAME - 1);
    }
    tensor.name = in_.text(name_bytes);
    const auto n_dims = in_.get<std::uint32_t>();
    if (!in_.ok()) return cut();
    if (n_dims > tensor.ne.size())
      return bad("has tensor \"{}\" with {} dimensions; the engine takes up to 4.", shown(tensor.name), n_dims);
    tensor.n_dims = n_dims;
    for (std::uint32_t i = 0; i < n_dims; ++i) tensor.ne[i] = in_.get<std::int64_t>();
    tensor.type = in_.get<std::int32_t>();
    tensor.offset = in_.get<std::uint64_t>();  // within the data area until place_tensors()
    if (!in_.ok()) return cut();
    if (auto done = measure(tensor); !done) return done;
    if (!names_.insert(tensor.name).second) return bad("has tensor \"{}\" twice; the file is damaged.", shown(tensor.name));
    header_.tensors.push_back(std::move(tensor));
    return {};
  }

  /// Type, block alignment and size in bytes.
  Result<> measure(GgufTensor& tensor) const {
    const std::string name = shown(tensor.name);
    const bool known = tensor.type >= 0 && tensor.type < GGML_TYPE_COUNT;
    const auto type = static_cast<ggml_type>(known ? tensor.type : 0);
    const std::int64_t block = known ? ggml_blck_size(type) : 0;
    if (block <= 0 || ggml_type_size(type) == 0) {
      return fail(ErrorKind::incompatible, "{} has tensor \"{}\" of type number {}, which this engine ({}) does not know.", path_, name,
                  tensor.type, ggml_version());
    }
    std::int64_t elements = 1;
    for (const std::int64_t ne : tensor.ne) {
      if (ne < 0 || __builtin_mul_overflow(elements, ne, &elements))
        return bad("has tensor \"{}\" of impossible shape; the file is damaged.", name);
    }
    if (tensor.ne[0] % block != 0) {
      return bad("has tensor \"{}\" with rows of {} elements, not a multiple of the {} in a block of type {}; the file is damaged.", name,
                 tensor.ne[0], block, ggml_type_name(type));
    }
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements / block), ggml_type_size(type), &tensor.bytes)) {
      return bad("has tensor \"{}\" of impossible size; the file is damaged.", name);
    }
    return {};
  }

  /// Turns offsets within the data area into offsets in the file and checks that all data is there, once each.
  Result<> place_tensors() {
    const std::int64_t alignment = header_.values.contains(GGUF_KEY_GENERAL_ALIGNMENT)
                                       ? header_.integer(GGUF_KEY_GENERAL_ALIGNMENT).value_or(0)
                                       : GGUF_DEFAULT_ALIGNMENT;
    if (alignment < 1 || alignment > UINT32_MAX || !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
      return bad("has an alignment of {}, not a power of two; the file is damaged.", alignment);
    }
    const auto step = static_cast<std::uint64_t>(alignment);
    header_.alignment = step;
    const std::uint64_t data = (in_.at() + step - 1) / step * step;
    std::uint64_t needed = 0;
    for (GgufTensor& tensor : header_.tensors) {
      if (tensor.offset % step != 0)
        return bad("has tensor \"{}\" at an offset that is not aligned; the file is damaged.", shown(tensor.name));
      std::uint64_t end = 0;
      if (__builtin_add_overflow(data, tensor.offset, &tensor.offset) || __builtin_add_overflow(tensor.offset, tensor.bytes, &end) ||
          end > std::numeric_limits<std::int64_t>::max()) {
        return bad("has tensor \"{}\" at an impossible offset; the file is damaged.", shown(tensor.name));
      }
      needed = std::max(needed, end);
    }
    if (auto done = check_overlaps(); !done) return done;
    if (needed > header_.file_bytes) {
      return bad("is truncated: it has {} bytes, its tensors need {} ({} bytes are missing); get the file again.", header_.file_bytes,
                 needed, needed - header_.file_bytes);
    }
    return {};
  }

  Result<> check_overlaps() const {
    std::vector<const GgufTensor*> order;
    order.reserve(header_.tensors.size());
    for (const GgufTensor& tensor : header_.tensors) {
      if (tensor.bytes != 0) order.push_back(&tensor);
    }
    std::ranges::sort(order, {}, &GgufTensor::offset);
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
        return bad("has tensors \"{}\" and \"{}\" in the same bytes; the file is damaged.", shown(order[i - 1]->name),
                   shown(order[i]->name));
      }
    }
    return {};
  }

  std::string path_;
  Cursor in_;
  GgufHeader header_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::optional<std::int64_t> GgufHeader::integer(std::string_view key) const {
  const auto at = values.find(key);
  if (at == values.end()) return std::nullopt;
  const GgufValue& value = at->second;
  if (value.kind != GgufValue::Kind::integer && value.kind != GgufValue::Kind::array) return std::nullopt;
  return value.integer;
}

std::string_view GgufHeader::text(std::string_view key) const {
  const auto at = values.find(key);
  return at != values.end() ? std::string_view(at->second.text) : std::string_view();
}

Result<GgufHeader> read_gguf_header(const std::filesystem::path& path) {
  auto file = InputFile::open(path);
  if (!file) return pass(file);
  return Parser(path, *file).parse();
}

std::string shown(std::string_view text) {
  constexpr std::size_t longest = 80;
  std::string safe(text.substr(0, longest));
  for (char& c : safe) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return text.size() > longest ? safe + "..." : safe;
}

}  // namespace linkcpp::engine
