// Who a node is: an Ed25519 key pair, created on first start and kept in the node's home folder.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

struct evp_pkey_st;  // OpenSSL's EVP_PKEY
struct x509_st;      // OpenSSL's X509

namespace linkcpp::net {

/// Raw Ed25519 public key: a node's name for authentication.
struct PeerKey {
  std::array<std::uint8_t, 32> bytes{};
  auto operator<=>(const PeerKey&) const = default;
};
/// First ten characters of the base32 (RFC 4648, lower case) of the key: how a node is shown to people.
std::string short_name(const PeerKey& key);
/// The base32 of the whole key, as addresses and lists of keys have it.
std::string key_text(const PeerKey& key);
/// Fails with `invalid_input`, saying what a key looks like.
Result<PeerKey> parse_key(std::string_view text);

/// A key pair with a self-signed certificate around it, ready for TLS. Copies share the key.
class Identity {
 public:
  /// Reads `home/identity.pem`, or creates it (mode 0600, folder 0700, written atomically).
  /// Fails with `invalid_input` on a damaged file or one that others can read, saying how to repair it.
  static Result<Identity> load_or_create(const std::filesystem::path& home);
  /// A fresh key in memory only; for tests and one-shot swarms.
  static Result<Identity> generate();

  [[nodiscard]] const PeerKey& key() const { return key_; }
  [[nodiscard]] evp_pkey_st* private_key() const { return private_key_.get(); }
  [[nodiscard]] x509_st* certificate() const { return certificate_.get(); }

 private:
  std::shared_ptr<evp_pkey_st> private_key_;
  std::shared_ptr<x509_st> certificate_;
  PeerKey key_;
};

/// Where a node keeps its identity and swarm secret: `explicit_home`, else $LINKCPP_HOME, else $XDG_CONFIG_HOME/linkcpp, else
/// ~/.config/linkcpp.
std::filesystem::path home_folder(const std::string& explicit_home = {});

}  // namespace linkcpp::net
