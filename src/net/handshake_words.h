// What handshakes over any transport say when a proof is missing or wrong.
#pragma once

#include <cstddef>

#include "net/auth.h"
#include "wire/frame.h"

namespace linkcpp::net {

inline constexpr const char* wrong_token = "wrong or outdated join token; ask the backbone's operator for `linkcpp token`";

/// Bytes of a stranger's words that go to terminals and logs.
inline constexpr std::size_t max_shown_reason = 400;

/// The frame that tells a peer why it is refused: the rule, not what this side knows of it.
Bytes refusal_frame(const Error& reason);

/// Why this frame of a peer that should have proved the join token is no proof.
Error unproved(const wire::FrameView& frame, Role peer_role, const PeerKey& peer);

}  // namespace linkcpp::net
