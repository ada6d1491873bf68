#include "engine/backbone_file.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "base/bytes.h"
#include "engine/anatomy_file.h"
#include "engine/anatomy_gguf.h"
#include "engine/new_file.h"

namespace linkcpp::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t gguf_version = 3;
constexpr std::int32_t gguf_u8 = 0, gguf_u16 = 2, gguf_i32 = 5, gguf_text = 8, gguf_array = 9, gguf_u64 = 10;
constexpr std::uint64_t max_holes_header = 64u << 20;
constexpr std::size_t copy_bytes = 4u << 20;

/// Beside the file that it will be: renaming must not cross file systems.
fs::path temporary_of(const fs::path& path) { return path.string() + std::format(".{}.part", ::getpid()); }

void put_text(ByteWriter& out, std::string_view text) {
  out.put<std::uint64_t>(text.size());
  out.raw(std::as_bytes(std::span(text)));
}

/// A GGUF header under construction.
class HeaderWriter {
 public:
  template <class T>
  void number(std::string_view key, std::int32_t type, T value) {
    begin(key, type).put<T>(value);
  }
  void text(std::string_view key, std::string_view value) {
    auto out = begin(key, gguf_text);
    put_text(out, value);
  }
  void bytes(std::string_view key, ByteSpan value) {
    auto out = begin(key, gguf_array);
    out.put<std::int32_t>(gguf_u8);
    out.put<std::uint64_t>(value.size());
    out.raw(value);
  }
  void encoded(ByteSpan pair) {
    ++n_values_;
    ByteWriter(values_).raw(pair);
  }
  /// Places the tensor behind the one before.
  void tensor(const GgufTensor& tensor, std::uint64_t alignment) {
    ++n_tensors_;
    ByteWriter out(tensors_);
    put_text(out, tensor.name);
    out.put<std::uint32_t>(tensor.n_dims);
    for (std::uint32_t i = 0; i < tensor.n_dims; ++i) out.put<std::int64_t>(tensor.ne[i]);
    out.put<std::int32_t>(tensor.type);
    out.put<std::uint64_t>(data_bytes_);
    data_bytes_ = (data_bytes_ + tensor.bytes + alignment - 1) / alignment * alignment;
  }
  [[nodiscard]] std::uint64_t data_bytes() const { return data_bytes_; }
  [[nodiscard]] Bytes finish(std::uint64_t alignment) const {
    Bytes all;
    ByteWriter out(all);
    out.raw(std::as_bytes(std::span(std::string_view("GGUF"))));
    out.put<std::uint32_t>(gguf_version);
    out.put<std::uint64_t>(n_tensors_);
    out.put<std::uint64_t>(n_values_);
    out.raw(values_);
    out.raw(tensors_);
    all.resize((all.size() + alignment - 1) / alignment * alignment);
    return all;
  }

 private:
  ByteWriter begin(std::string_view key, std::int32_t type) {
    ++n_values_;
    ByteWriter out(values_);
    put_text(out, key);
    out.put<std::int32_t>(type);
    return out;
  }
  Bytes values_, tensors_;
  std::uint64_t n_values_ = 0, n_tensors_ = 0, data_bytes_ = 0;
};

/// A tensor and the file that it lies in.
struct Placed {
  GgufTensor tensor;
  std::uint32_t file = 0;
};

/// Everything of the model that goes into the two files.
struct Contents {
  GgufHeader first;  ///< of the model's first file: the metadata
  std::vector<Placed> dense, experts;
  [[nodiscard]] std::size_t n_tensors() const { return dense.size() + experts.size(); }
};

Result<Contents> read_contents(const Anatomy& anatomy) {
  std::set<std::string_view> expert_names;
  for (const MoeLayer& layer : anatomy.layers) {
    for (const ExpertTensor& tensor : layer.tensors) expert_names.insert(tensor.name);
  }
  Contents contents;
  for (std::uint32_t file = 0; file < anatomy.files.size(); ++file) {
    auto header = read_gguf_header(anatomy.files[file]);
    if (!header) return pass(header);
    for (const GgufTensor& tensor : header->tensors)
      (expert_names.contains(tensor.name) ? contents.experts : contents.dense).push_back({tensor, file});
    if (file == 0) contents.first = std::move(*header);
  }
  return contents;
}

void put_split(HeaderWriter& header, std::uint16_t number, std::size_t n_tensors) {
  header.number<std::uint16_t>("split.no", gguf_u16, number);
  header.number<std::uint16_t>("split.count", gguf_u16, 2);
  header.number<std::int32_t>("split.tensors.count", gguf_i32, static_cast<std::int32_t>(n_tensors));
}

/// The header of the second file and that file's length.
std::pair<Bytes, std::uint64_t> holes_header(const Contents& contents) {
  HeaderWriter header;
  put_split(header, 1, contents.n_tensors());
  const std::uint64_t alignment = contents.first.alignment;
  header.number<std::uint32_t>("general.alignment", 4, static_cast<std::uint32_t>(alignment));
  for (const Placed& placed : contents.experts) header.tensor(placed.tensor, alignment);
  Bytes bytes = header.finish(alignment);
  const std::uint64_t all = bytes.size() + header.data_bytes();
  return {std::move(bytes), all};
}

/// All metadata pairs of the model as they are encoded, in their order, but those of splitting.
Result<> copy_values(const Contents& contents, const fs::path& path, HeaderWriter& header) {
  auto file = InputFile::open(path);
  if (!file) return pass(file);
  std::vector<const GgufValue*> order;
  for (const auto& [key, value] : contents.first.values) {
    if (!key.starts_with("split.")) order.push_back(&value);
  }
  std::ranges::sort(order, {}, &GgufValue::offset);
  for (const GgufValue* value : order) {
    Bytes pair(value->bytes);
    if (!file->read_at(value->offset, pair)) return fail(ErrorKind::io, "{} cannot be read at byte {}.", path.string(), value->offset);
    header.encoded(pair);
  }
  return {};
}

Result<> copy_tensors(const Anatomy& anatomy, const Contents& contents, NewFile& to, const CopyProgress& progress) {
  auto files = InputFile::open_all(anatomy.files);
  if (!files) return pass(files);
  Bytes buffer(copy_bytes);
  const std::uint64_t total = backbone_bytes(anatomy), alignment = contents.first.alignment;
  std::uint64_t done = 0;
  for (const Placed& placed : contents.dense) {
    for (std::uint64_t at = 0; at < placed.tensor.bytes;) {
      const auto part = std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(copy_bytes, placed.tensor.bytes - at)));
      if (!(*files)[placed.file].read_at(placed.tensor.offset + at, part))
        return fail(ErrorKind::io, "{} cannot be read at byte {}.", anatomy.files[placed.file].string(), placed.tensor.offset + at);
      if (auto written = to.append(part); !written) return written;
      at += part.size();
      done += part.size();
      if (progress && !progress(done, total)) return fail(ErrorKind::unavailable, "interrupted; nothing is lost, run it again");
    }
    const Bytes padding((alignment - placed.tensor.bytes % alignment) % alignment);
    if (auto written = to.append(padding); !written) return written;
  }
  return {};
}

Result<> write_holes(const fs::path& path, ByteSpan header, std::uint64_t bytes) {
  auto file = NewFile::create(temporary_of(path));
  if (!file) return pass(file);
  if (auto written = file->append(header); !written) return written;
  if (auto sized = file->set_size(bytes); !sized) return sized;
  return file->name(path);
}

/// Whether a value is an array of single bytes, at least one: its pair is key, type, element type, count and those bytes.
bool is_byte_array(std::string_view key, const GgufValue& value) {
  const std::uint64_t before = sizeof(std::uint64_t) + key.size() + 2 * sizeof(std::int32_t) + sizeof(std::uint64_t);
  return value.kind == GgufValue::Kind::array && value.count > 0 && value.bytes == before + value.count;
}

}  // namespace

std::uint64_t backbone_bytes(const Anatomy& anatomy) { return anatomy.total_bytes - anatomy.expert_bytes; }

Result<> write_backbone(const Anatomy& anatomy, const fs::path& folder, const std::optional<wire::Digest>& index,
                        const CopyProgress& progress) {
  if (anatomy.experts_absent)
    return fail(ErrorKind::invalid_input, "{} is a backbone without experts; name the whole model.", anatomy.files[0].string());
  auto contents = read_contents(anatomy);
  if (!contents) return pass(contents);
  const auto [holes, holes_bytes] = holes_header(*contents);
  HeaderWriter header;
  if (auto copied = copy_values(*contents, anatomy.files[0], header); !copied) return copied;
  put_split(header, 0, contents->n_tensors());
  header.text(key_model_digest, wire::to_hex(anatomy.digest));
  if (index) header.text(key_index_digest, wire::to_hex(*index));
  header.number<std::uint64_t>(key_holes_bytes, gguf_u64, holes_bytes);
  header.bytes(key_holes_header, holes);
  const std::uint64_t alignment = contents->first.alignment;
  for (const Placed& placed : contents->dense) header.tensor(placed.tensor, alignment);
  auto file = NewFile::create(temporary_of(folder / backbone_file_name));
  if (!file) return pass(file);
  if (auto written = file->append(header.finish(alignment)); !written) return written;
  if (auto copied = copy_tensors(anatomy, *contents, *file, progress); !copied) return copied;
  if (auto written = write_holes(folder / holes_file_name, holes, holes_bytes); !written) return written;
  return file->name(folder / backbone_file_name);
}

Result<bool> restore_holes(const fs::path& backbone) {
  auto header = read_gguf_header(backbone);
  if (!header) return pass(header);
  if (header->text(key_model_digest).empty()) return false;
  const auto at = header->values.find(key_holes_header);
  const auto bytes = header->integer(key_holes_bytes);
  if (at == header->values.end() || !bytes || *bytes < 0 || !is_byte_array(at->first, at->second) || at->second.count > max_holes_header ||
      std::cmp_greater(at->second.count, *bytes))
    return fail(ErrorKind::invalid_input, "{} does not say how its second file is made; slice the model again.", backbone.string());
  const std::string name = backbone.filename().string();
  const std::size_t digits = name.rfind("-00001-of-00002.gguf");
  if (digits == std::string::npos)
    return fail(ErrorKind::invalid_input, "{} must be called …-00001-of-00002.gguf for the engine to find its second file.",
                backbone.string());
  const fs::path holes = backbone.parent_path() / (name.substr(0, digits) + "-00002-of-00002.gguf");
  std::error_code absent;
  if (const auto there = fs::file_size(holes, absent); !absent && std::cmp_equal(there, *bytes)) return false;
  auto file = InputFile::open(backbone);
  if (!file) return pass(file);
  Bytes first(at->second.count);
  if (!file->read_at(at->second.offset + at->second.bytes - first.size(), first))
    return fail(ErrorKind::io, "{} cannot be read.", backbone.string());
  if (auto written = write_holes(holes, first, static_cast<std::uint64_t>(*bytes)); !written) return pass(written);
  return true;
}

std::vector<fs::path> hole_files(const Anatomy& anatomy) {
  std::vector<fs::path> files;
  if (!anatomy.experts_absent) return files;
  std::set<std::uint32_t> numbers;
  for (const MoeLayer& layer : anatomy.layers) {
    for (const ExpertTensor& tensor : layer.tensors) numbers.insert(tensor.file);
  }
  for (const std::uint32_t number : numbers) files.push_back(anatomy.files[number]);
  return files;
}

}  // namespace linkcpp::engine
