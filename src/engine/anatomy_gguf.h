// A bounded reader of GGUF headers: what a file says of itself, checked against what the file can hold.
//
// The engine's own parser is written for files that one trusts: it asserts on some inputs and reports through a process-wide
// log callback, which belongs to llama-server here. A worker opens files that strangers made, so this reader takes nothing
// on trust: no count is believed before the file's size bears it out, memory stays within a small multiple of the header,
// and every fault is a sentence. Types and block sizes are still the engine's (ggml.h).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace linkcpp::engine {

/// A metadata value. Of an array the length is kept, and the largest element if it holds integers ("a count a layer").
struct GgufValue {
  enum class Kind : std::uint8_t { integer, real, boolean, text, array };
  Kind kind = Kind::integer;
  std::int64_t integer = 0;  ///< value of an integer, largest element of an array of integers; clamped to the range of int64
  std::string text;          ///< `text` only; empty if longer than max_kept_text
  std::uint64_t count = 0;   ///< `array` only: number of elements
  std::uint64_t offset = 0;  ///< of the encoded pair (key, type, value) in the file
  std::uint64_t bytes = 0;   ///< of the encoded pair
};
inline constexpr std::size_t max_kept_text = 4096;

/// One tensor of the header. Its bytes [offset, offset + bytes) lie in the file.
struct GgufTensor {
  std::string name;
  int type = 0;              ///< ggml_type, known to the engine
  std::uint32_t n_dims = 0;  ///< as written; the others are 1
  std::array<std::int64_t, 4> ne{1, 1, 1, 1};
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< from the start of the file
};

struct GgufHeader {
  std::uint32_t version = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t alignment = 0;  ///< of tensors, a power of two
  std::map<std::string, GgufValue, std::less<>> values;
  std::vector<GgufTensor> tensors;  ///< in the order of the file, names unique

  /// The integer under a key; of an array its largest element. None if the key is missing or of another kind.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  /// The text under a key; empty if missing.
  [[nodiscard]] std::string_view text(std::string_view key) const;
};

/// Reads and checks a header; reads nothing behind it. Fails with a sentence that names the file and the fault: not found,
/// not a GGUF, a foreign version, cut short (how many bytes are missing), tensors of unknown type, misaligned or overlapping.
Result<GgufHeader> read_gguf_header(const std::filesystem::path& path);

/// Text of a file as it may be shown: control characters become '?', and it is cut to a readable length.
std::string shown(std::string_view text);

}  // namespace linkcpp::engine
