#include "net/signature.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include <memory>

namespace linkcpp::net {
namespace {

using DigestContext = std::unique_ptr<EVP_MD_CTX, decltype([](EVP_MD_CTX* context) { EVP_MD_CTX_free(context); })>;
using PublicKey = std::unique_ptr<EVP_PKEY, decltype([](EVP_PKEY* key) { EVP_PKEY_free(key); })>;

const unsigned char* raw(ByteSpan bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

}  // namespace

Result<Signature> sign(const Identity& identity, ByteSpan message) {
  const DigestContext context(EVP_MD_CTX_new());
  Signature signature{};
  std::size_t length = signature.size();
  if (!context || EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, identity.private_key()) != 1 ||
      EVP_DigestSign(context.get(), signature.data(), &length, raw(message), message.size()) != 1 || length != signature.size()) {
    ERR_clear_error();
    return fail(ErrorKind::internal, "OpenSSL cannot sign; is its installation complete?");
  }
  return signature;
}

bool is_signed_by(const PeerKey& key, ByteSpan message, const Signature& signature) {
  const PublicKey public_key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.bytes.data(), key.bytes.size()));
  const DigestContext context(EVP_MD_CTX_new());
  const bool valid = public_key && context && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, public_key.get()) == 1 &&
                     EVP_DigestVerify(context.get(), signature.data(), signature.size(), raw(message), message.size()) == 1;
  ERR_clear_error();
  return valid;
}

}  // namespace linkcpp::net
