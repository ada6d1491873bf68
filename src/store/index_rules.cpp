#include "store/index_rules.h"

#include <algorithm>
#include <limits>
#include <set>

#include "wire/program.h"
#include "wire/text.h"

namespace linkcpp::store {
namespace {

constexpr std::uint16_t block_mask = 0x7FFF;  // the top bit of a layer's number marks a second set of experts
constexpr std::uint64_t max_file_bytes = std::numeric_limits<std::int64_t>::max();

template <class... Args>
[[nodiscard]] std::unexpected<Error> wrong(std::format_string<Args...> format, Args&&... args) {
  return fail(ErrorKind::invalid_input, "the slice index is wrong: {}", std::format(format, std::forward<Args>(args)...));
}

/// Not empty, not longer than `most`, and safe to print.
bool is_name(std::string_view text, std::size_t most) { return !text.empty() && text.size() <= most && wire::is_plain_text(text); }

/// A file's name, not a path: it may be joined to a folder.
bool is_file_name(std::string_view text) {
  return is_name(text, max_file_name_bytes) && text != "." && text != ".." && text.find_first_of("/\\") == std::string_view::npos;
}

Result<> check_model(const SliceIndex& index) {
  if (!is_name(index.architecture, max_architecture_bytes)) return wrong("the architecture's name is empty, too long or unreadable");
  if (index.name.size() > wire::max_name_bytes || !wire::is_plain_text(index.name))
    return wrong("the model's name is too long or unreadable");
  if (index.n_embd == 0 || index.n_embd > wire::max_row_elements) return wrong("n_embd is {}", index.n_embd);
  if (index.top_k == 0 || index.top_k > wire::max_experts) return wrong("top_k is {}", index.top_k);
  if (index.n_expert > wire::max_experts) return wrong("n_expert is {}, at most {} are supported", index.n_expert, wire::max_experts);
  return {};
}

Result<> check_files(const SliceIndex& index) {
  if (index.files.empty() || index.files.size() > max_files) return wrong("it has {} files, 1 to {} can be", index.files.size(), max_files);
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < index.files.size(); ++i) {
    const SourceFile& file = index.files[i];
    if (!is_file_name(file.name)) return wrong("files[{}] has no usable name: a file's name without folders is wanted", i);
    if (!names.insert(file.name).second) return wrong("files[{}] has the same name as another, {}", i, file.name);
    if (file.bytes == 0 || file.bytes > max_file_bytes) return wrong("files[{}] has {} bytes", i, file.bytes);
  }
  return {};
}

/// A part by itself; where it lies in the object is checked with its neighbours.
Result<> check_part(const SliceIndex& index, const SlicePart& part, std::size_t n_expert, std::string_view place) {
  if (!is_name(part.tensor, max_tensor_name_bytes)) return wrong("{}: the tensor's name is empty, too long or unreadable", place);
  if (!is_name(part.type, max_type_name_bytes)) return wrong("{}: the type's name is empty, too long or unreadable", place);
  constexpr std::int64_t longest = wire::max_row_elements;
  if (part.n_in < 0 || part.n_in > longest || part.n_out < 1 || part.n_out > longest)
    return wrong("{}: an expert of {} x {} elements is not possible", place, part.n_in, part.n_out);
  if (part.bytes == 0 || part.bytes > max_slice_bytes)
    return wrong("{}: {} bytes of an expert; 1 to {} can be", place, part.bytes, max_slice_bytes);
  if (part.file >= index.files.size()) return wrong("{}: file {} does not exist, there are {}", place, part.file, index.files.size());
  const std::uint64_t all = part.bytes * n_expert, file_bytes = index.files[part.file].bytes;  // 2^34 times 2^12: no overflow
  if (part.file_offset > file_bytes || all > file_bytes - part.file_offset)
    return wrong("{}: bytes {} to {} + {} lie outside of {}, which has {}", place, part.file_offset, part.file_offset, all,
                 index.files[part.file].name, file_bytes);
  return {};
}

Result<> check_layer(const SliceIndex& index, const LayerSlices& layer, std::size_t at) {
  if (layer.parts.empty() || layer.parts.size() > max_parts)
    return wrong("layers[{}] has {} parts, 1 to {} can be", at, layer.parts.size(), max_parts);
  if (layer.slices.empty() || layer.slices.size() > wire::max_experts)
    return wrong("layers[{}] has {} slices, 1 to {} can be", at, layer.slices.size(), wire::max_experts);
  if ((layer.layer & block_mask) >= index.n_layer)
    return wrong("layers[{}] is layer {}, but the model has {}", at, layer.layer & block_mask, index.n_layer);
  std::uint64_t end = 0;
  std::set<std::string_view> tensors;
  for (std::size_t i = 0; i < layer.parts.size(); ++i) {
    const SlicePart& part = layer.parts[i];
    const std::string place = std::format("layers[{}].parts[{}]", at, i);
    if (auto done = check_part(index, part, layer.slices.size(), place); !done) return done;
    if (!tensors.insert(part.tensor).second) return wrong("{}: tensor {} is there twice", place, part.tensor);
    const std::uint64_t expected = (end + slice_alignment - 1) / slice_alignment * slice_alignment;
    if (part.object_offset != expected)
      return wrong("{}: it lies at byte {} of the object; the next multiple of {} behind the part before is {}", place, part.object_offset,
                   slice_alignment, expected);
    end = expected + part.bytes;
    if (end > max_slice_bytes) return wrong("{}: the object has {} bytes, at most {} are supported", place, end, max_slice_bytes);
  }
  return {};
}

/// No byte of a file belongs to two parts.
Result<> check_file_ranges(const SliceIndex& index) {
  struct Range {
    std::uint32_t file;
    std::uint64_t begin, end;
    const SlicePart* part;
  };
  std::vector<Range> ranges;
  for (const LayerSlices& layer : index.layers) {
    for (const SlicePart& part : layer.parts)
      ranges.push_back({part.file, part.file_offset, part.file_offset + part.bytes * layer.slices.size(), &part});
  }
  std::ranges::sort(ranges, {}, [](const Range& range) { return std::pair(range.file, range.begin); });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].file == ranges[i - 1].file && ranges[i].begin < ranges[i - 1].end)
      return wrong("{} and {} lie in the same bytes of {}", ranges[i - 1].part->tensor, ranges[i].part->tensor,
                   index.files[ranges[i].file].name);
  }
  return {};
}

}  // namespace

Result<> check_index(const SliceIndex& index) {
  if (auto done = check_model(index); !done) return done;
  if (auto done = check_files(index); !done) return done;
  if (index.layers.empty() || index.layers.size() > wire::max_holdings)
    return wrong("it has {} layers, 1 to {} can be", index.layers.size(), wire::max_holdings);
  for (std::size_t i = 0; i < index.layers.size(); ++i) {
    if (i != 0 && index.layers[i].layer <= index.layers[i - 1].layer)
      return wrong("layers[{}] is layer {}, behind layer {}: layers ascend", i, index.layers[i].layer, index.layers[i - 1].layer);
    if (auto done = check_layer(index, index.layers[i], i); !done) return done;
  }
  return check_file_ranges(index);
}

}  // namespace linkcpp::store
