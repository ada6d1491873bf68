#include "engine/anatomy_digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "engine/anatomy_file.h"

namespace linkcpp::engine {
namespace {

constexpr std::uint64_t sample_bytes = 64;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    ok_ = context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  }
  void add(std::span<const std::byte> bytes) { ok_ = ok_ && EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1; }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  Result<wire::Digest> finish() {
    wire::Digest digest{};
    if (!ok_ || EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) != 1) {
      return fail(ErrorKind::internal, "OpenSSL could not compute a SHA-256.");
    }
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
  bool ok_ = false;
};

/// Adds ranges of the model's files to a digest.
class Hasher {
 public:
  explicit Hasher(const Anatomy& anatomy) : anatomy_(anatomy), buffer_(1 << 20) {}

  Result<> open() {
    auto files = InputFile::open_all(anatomy_.files);
    if (!files) return pass(files);
    files_ = std::move(*files);
    return {};
  }
  void add(std::string_view text) { sha_.add(text); }
  Result<> add(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes) {
    while (bytes != 0) {
      const auto part = std::span(buffer_).first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, buffer_.size())));
      if (!files_[file].read_at(offset, part))
        return fail(ErrorKind::io, "{} cannot be read at byte {}.", anatomy_.files[file].string(), offset);
      sha_.add(part);
      offset += part.size();
      bytes -= part.size();
    }
    return {};
  }
  Result<wire::Digest> finish() { return sha_.finish(); }

 private:
  const Anatomy& anatomy_;
  std::vector<std::byte> buffer_;
  std::vector<InputFile> files_;
  Sha256 sha_;
};

Result<> add_samples(Hasher& hasher, const ExpertTensor& tensor) {
  hasher.add(std::format("sample {}\n", tensor.name));
  const std::uint64_t bytes = std::min(sample_bytes, tensor.slice_bytes);
  for (const std::uint32_t expert : {0u, tensor.n_expert / 2, tensor.n_expert - 1}) {
    if (auto done = hasher.add(tensor.file, tensor.offset + expert * tensor.slice_bytes, bytes); !done) return done;
  }
  return {};
}

}  // namespace

Result<wire::Digest> model_digest(const Anatomy& anatomy, std::vector<FileRange> whole) {
  Hasher hasher(anatomy);
  if (auto done = hasher.open(); !done) return pass(done);
  hasher.add(std::format("linkcpp model 1\narchitecture {}\nn_embd {}\ntop_k {}\nn_vocab {}\n", anatomy.architecture, anatomy.n_embd,
                         anatomy.top_k, anatomy.n_vocab));
  for (const MoeLayer& layer : anatomy.layers) {
    for (const ExpertTensor& tensor : layer.tensors) {
      hasher.add(std::format("experts {} {} {} {} {}\n", tensor.name, tensor.type_name, tensor.n_in, tensor.n_out, tensor.n_expert));
    }
  }
  std::ranges::sort(whole, {}, &FileRange::name);
  for (const FileRange& range : whole) {
    hasher.add(std::format("tensor {} {} {}\n", range.name, range.type_name, range.bytes));
    if (auto done = hasher.add(range.file, range.offset, range.bytes); !done) return pass(done);
  }
  for (const MoeLayer& layer : anatomy.layers) {
    for (const ExpertTensor& tensor : layer.tensors) {
      if (auto done = add_samples(hasher, tensor); !done) return pass(done);
    }
  }
  return hasher.finish();
}

}  // namespace linkcpp::engine
