#include "net/hmac.h"

#include <openssl/evp.h>

namespace linkcpp::net {

std::optional<Hmac> hmac_sha256(std::span<const std::uint8_t> key, ByteSpan message) {
  Hmac mac{};
  std::size_t length = 0;
  const unsigned char* made =
      EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(), reinterpret_cast<const unsigned char*>(message.data()),
                message.size(), mac.data(), mac.size(), &length);
  if (made == nullptr || length != mac.size()) return std::nullopt;
  return mac;
}

}  // namespace linkcpp::net
