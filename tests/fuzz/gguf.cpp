// Fuzzes the reader of GGUF files: any input is read or refused, and what is accepted lies within the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <format>

#include "engine/anatomy.h"

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

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

}  // namespace

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
