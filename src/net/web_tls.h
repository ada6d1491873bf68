// TLS as a client of public web servers and proxies: verified against the authorities of this machine and the server's name.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"

struct ssl_st;  // OpenSSL's SSL

namespace linkcpp::net {

using WebTls = std::unique_ptr<ssl_st, void (*)(ssl_st*)>;

/// A client for `host`, a name or a numeric address, that has yet to be given its input and output. `ca_file`: authorities that are trusted
/// instead of the system's (else SSL_CERT_FILE and SSL_CERT_DIR name them, if set). TLS 1.2 or later. Made for each connection:
/// connections are few and live long, and no global is needed.
Result<WebTls> make_web_tls(const std::string& host, const std::string& ca_file = {});

/// Why the handshake with `host` failed, right after it did.
Error web_tls_refusal(ssl_st* ssl, const std::string& host);
/// The last entry of OpenSSL's error queue of this thread, which is emptied.
std::string web_tls_reason();

}  // namespace linkcpp::net
