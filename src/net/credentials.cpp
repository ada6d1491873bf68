#include "net/transport.h"

namespace linkcpp::net {

Result<Credentials> backbone_credentials(const std::filesystem::path& home) {
  auto identity = Identity::load_or_create(home);
  if (!identity) return pass(identity);
  auto secret = load_or_create_secret(home);
  if (!secret) return pass(secret);
  return Credentials{std::move(*identity), *secret, std::nullopt, true};
}

}  // namespace linkcpp::net
