// How a node that asks for slices shows that it knows the swarm's secret: "Authorization: Linkcpp <base64url proof>".
//
// The proof is that of net/auth.h over keying material exported with a label of its own, so that a proof for a link is none here.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "net/tls_session.h"
#include "net/token.h"

namespace linkcpp::fetch {

inline constexpr std::string_view exporter_label = "EXPORTER-linkcpp-slices";
inline constexpr std::string_view authorization_scheme = "Linkcpp ";

/// The header's value for the client side of this TLS connection.
Result<std::string> authorization(const net::TlsSession& session, const net::Secret& secret, const net::PeerKey& client);
/// Whether a header's value is that of the client `client` on this connection.
bool authorized(std::string_view value, const net::TlsSession& session, const net::Secret& secret, const net::PeerKey& client);

}  // namespace linkcpp::fetch
