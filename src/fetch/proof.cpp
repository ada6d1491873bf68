#include "fetch/proof.h"

#include <span>

#include "net/auth.h"
#include "net/encoding.h"

namespace linkcpp::fetch {
namespace {

Result<net::Proof> proof_of(const net::TlsSession& session, const net::Secret& secret, const net::PeerKey& client) {
  auto exported = session.export_key(exporter_label);
  if (!exported) return pass(exported);
  return net::make_proof(secret, net::Role::worker, *exported, client);
}

}  // namespace

Result<std::string> authorization(const net::TlsSession& session, const net::Secret& secret, const net::PeerKey& client) {
  auto proof = proof_of(session, secret, client);
  if (!proof) return pass(proof);
  return std::string(authorization_scheme) + net::base64url(std::as_bytes(std::span(*proof)));
}

bool authorized(std::string_view value, const net::TlsSession& session, const net::Secret& secret, const net::PeerKey& client) {
  if (!value.starts_with(authorization_scheme)) return false;
  const auto received = net::from_base64url(value.substr(authorization_scheme.size()));
  const auto expected = proof_of(session, secret, client);
  return received && expected && net::check_proof(*received, *expected);
}

}  // namespace linkcpp::fetch
