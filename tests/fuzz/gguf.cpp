// Fuzzes the reader of GGUF files: any input is read or refused, and what is accepted lies within the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <format>

#include "engine/anatomy.h"
#include "require.h"
#include "support/tiny_gguf.h"

using linkcpp::fuzz::require;

namespace {

/// An anonymous file with these bytes, reachable under a path.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(::memfd_create("gguf", MFD_CLOEXEC)) {
    while (size != 0) {
      const ssize_t n = ::write(descriptor_, data, size);
      if (n <= 0) std::abort();
      data += n;
      size -= static_cast<std::size_t>(n);
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }
  [[nodiscard]] std::string path() const { return std::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

linkcpp::Bytes bytes_of(const linkcpp::test::GgufBuilder& gguf) {
  const std::string text = gguf.bytes();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const linkcpp::test::TinyShape shape{.n_embd = 32, .n_ff = 32, .n_expert = 2, .n_vocab = 2, .layers = 1};
  const linkcpp::fuzz::SeedFolder seeds;
  seeds.add("model", bytes_of(linkcpp::test::tiny_model(shape)));
  seeds.add("part", bytes_of(linkcpp::test::tiny_parts(2, shape)[0]));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const MemoryFile file(data, size);
  const auto anatomy = linkcpp::engine::read_anatomy(file.path());
  if (!anatomy) {
    require(!anatomy.error().message.empty(), "an error has a message");
    return 0;
  }
  require(!anatomy->layers.empty() && anatomy->top_k != 0, "an accepted model has experts");
  for (const auto& layer : anatomy->layers) {
    for (const auto& tensor : layer.tensors) {
      require(tensor.n_expert == layer.n_expert, "all tensors of a layer have the same experts");
      require(tensor.slice_bytes != 0 && tensor.slice_bytes <= size / tensor.n_expert, "slices fit into the file");
      require(tensor.offset <= size - tensor.slice_bytes * tensor.n_expert, "slices lie within the file");
    }
  }
  return 0;
}
