// Writes GGUF files byte by byte, sound ones and broken ones. Independent of the reader and of ggml's writer.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace linkcpp::test {

/// A folder that is removed with everything in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "linkcpp-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::error_code absent;
  std::filesystem::remove(path, absent);  // some file systems flush a file that is truncated in place, which is slow
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
inline void put_text(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

/// Numbers of the format that the tests use.
inline constexpr std::int32_t gguf_u16 = 2, gguf_u32 = 4, gguf_i32 = 5, gguf_text = 8, gguf_array = 9;
inline constexpr std::int32_t type_f32 = 0, type_f16 = 1, type_q8_0 = 8;

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> ne;
  std::int32_t type = type_f32;
  std::string data;          ///< its length is the tensor's size on disk
  std::int64_t offset = -1;  ///< negative: behind the one before
};

/// A GGUF in memory. Every field may be falsified before bytes() is called.
struct GgufBuilder {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::int64_t extra_tensors = 0, extra_values = 0;  ///< lies about the counts
  std::vector<std::string> values;                   ///< encoded key-value pairs
  std::vector<TensorSpec> tensors;
  std::uint64_t alignment = 32;  ///< by which data is laid out

  void value(std::string_view key, std::int32_t type, std::string_view encoded) {
    std::string pair;
    put_text(pair, key);
    put(pair, type);
    values.push_back(pair.append(encoded));
  }
  void u32(std::string_view key, std::uint32_t number) {
    std::string encoded;
    put(encoded, number);
    value(key, gguf_u32, encoded);
  }
  void u16(std::string_view key, std::uint16_t number) {
    std::string encoded;
    put(encoded, number);
    value(key, gguf_u16, encoded);
  }
  void text(std::string_view key, std::string_view content) {
    std::string encoded;
    put_text(encoded, content);
    value(key, gguf_text, encoded);
  }
  void array(std::string_view key, std::int32_t type, std::uint64_t count, std::string_view encoded) {
    std::string head;
    put(head, type);
    put(head, count);
    value(key, gguf_array, head.append(encoded));
  }

  [[nodiscard]] std::string bytes() const {
    std::string out = magic, data;
    put(out, version);
    put<std::uint64_t>(out, tensors.size() + extra_tensors);
    put<std::uint64_t>(out, values.size() + extra_values);
    for (const auto& pair : values) out += pair;
    for (const auto& tensor : tensors) {
      const std::uint64_t offset = tensor.offset >= 0 ? static_cast<std::uint64_t>(tensor.offset) : data.size();
      put_text(out, tensor.name);
      put<std::uint32_t>(out, static_cast<std::uint32_t>(tensor.ne.size()));
      for (const auto ne : tensor.ne) put(out, ne);
      put(out, tensor.type);
      put(out, offset);
      data += tensor.data;
      data.resize((data.size() + alignment - 1) / alignment * alignment);
    }
    if (!tensors.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

}  // namespace linkcpp::test
