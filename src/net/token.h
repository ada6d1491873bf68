// The join token: what a worker needs to find, recognise and be accepted by a backbone.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/identity.h"

namespace linkcpp::net {

using Secret = std::array<std::uint8_t, 32>;

/// Text form: "lkc1." + base64url(payload, with a four-byte SHA-256 check so that a truncated paste is told from a wrong one).
///
/// Payload, little-endian: u16 payload length (itself included), backbone key, secret, u8 count, then each address as u16 length and text.
struct JoinToken {
  /// More addresses than these are not encoded.
  static constexpr std::size_t max_addresses = 16;

  PeerKey backbone;  ///< the only key that the worker accepts
  Secret secret{};   ///< proves to the backbone that the worker was invited
  std::vector<std::string>
      addresses;  ///< "host:port" or with a scheme (net/endpoint.h), tried in order; may be empty for workers that listen

  [[nodiscard]] std::string encode() const;
  /// Fails with `invalid_input`, naming what is wrong (not a token, cut off, mistyped, newer version).
  static Result<JoinToken> decode(const std::string& text);
};

/// The backbone's swarm secret, `home/swarm.secret`; created on first use like the identity.
Result<Secret> load_or_create_secret(const std::filesystem::path& home);

}  // namespace linkcpp::net
