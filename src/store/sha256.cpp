#include "store/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <new>

namespace linkcpp::store {

// OpenSSL's digests fail only for want of memory or of a provider; both are beyond repair here, so they end like a failed `new`.
struct Sha256::State {
  State() : context(EVP_MD_CTX_new()) {
    if (context == nullptr) throw std::bad_alloc();
    start();
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  void start() const {
    if (EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1) throw std::bad_alloc();
  }
  void add(ByteSpan bytes) const {
    if (EVP_DigestUpdate(context, bytes.data(), bytes.size()) != 1) throw std::bad_alloc();
  }
  EVP_MD_CTX* context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::add(ByteSpan bytes) { state_->add(bytes); }

void Sha256::add_zeros(std::uint64_t n) {
  static constexpr std::array<std::byte, 4096> zeros{};
  while (n != 0) {
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(n, zeros.size()));
    state_->add(ByteSpan(zeros).first(part));
    n -= part;
  }
}

wire::Digest Sha256::finish() {
  wire::Digest digest{};
  if (EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) != 1) throw std::bad_alloc();
  state_->start();
  return digest;
}

wire::Digest sha256(ByteSpan bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

}  // namespace linkcpp::store
