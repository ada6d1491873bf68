// What handshakes over any transport say when a proof is missing or wrong.
#pragma once

#include <string>

#include "net/auth.h"
#include "wire/frame.h"

namespace linkcpp::net {

inline constexpr const char* wrong_token = "wrong or outdated join token; ask the backbone's operator for `linkcpp token`";

/// A stranger's words go to terminals and logs: cut, and without control characters.
std::string printable(std::string text);

/// Why this frame of a peer that should have proved the join token is no proof.
Error unproved(const wire::FrameView& frame, Role peer_role, const PeerKey& peer);

}  // namespace linkcpp::net
