// SHA-256 over a stream (FIPS 180-4, OpenSSL's implementation).
#pragma once

#include <memory>
#include <string_view>

#include "base/bytes.h"
#include "wire/messages.h"

namespace linkcpp::store {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void add(ByteSpan bytes);
  void add_zeros(std::uint64_t n);
  /// The digest of everything added; afterwards the object starts anew.
  wire::Digest finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

wire::Digest sha256(ByteSpan bytes);

}  // namespace linkcpp::store
