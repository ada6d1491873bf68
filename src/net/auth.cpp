#include "net/auth.h"

#include <openssl/crypto.h>

#include <span>

#include "net/hmac.h"

namespace linkcpp::net {

Result<Proof> make_proof(const Secret& secret, Role prover, const TlsSession::ExportedKey& exported, const PeerKey& prover_key) {
  constexpr std::string_view context = "linkcpp auth v1";
  Bytes message;
  ByteWriter out(message);
  out.raw(std::as_bytes(std::span(context)));
  out.put(static_cast<std::uint8_t>(prover));
  out.raw(std::as_bytes(std::span(exported)));
  out.raw(std::as_bytes(std::span(prover_key.bytes)));
  const auto proof = hmac_sha256(secret, message);
  if (!proof) return fail(ErrorKind::internal, "OpenSSL cannot compute an HMAC; is its installation complete?");
  return *proof;
}

bool check_proof(ByteSpan received, const Proof& expected) {
  return received.size() == expected.size() && CRYPTO_memcmp(received.data(), expected.data(), expected.size()) == 0;
}

}  // namespace linkcpp::net
