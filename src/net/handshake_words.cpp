#include "net/handshake_words.h"

#include <algorithm>

#include "wire/messages.h"

namespace linkcpp::net {
namespace {

constexpr std::size_t max_shown_reason = 400;

}  // namespace

std::string printable(std::string text) {
  text.resize(std::min(text.size(), max_shown_reason));
  std::ranges::replace_if(text, [](unsigned char c) { return c < ' ' || c == 0x7F; }, '?');
  return text;
}

Error unproved(const wire::FrameView& frame, Role peer_role, const PeerKey& peer) {
  if (frame.header.type == wire::FrameType::auth) {
    return {ErrorKind::unauthorized, std::format("node {} has a {}", short_name(peer), wrong_token)};
  }
  if (frame.header.type == wire::FrameType::refuse && peer_role == Role::backbone) {  // the pinned backbone, so its words count
    auto refusal = wire::decode_refuse(frame.body);
    if (refusal) return {refusal->kind, std::format("the backbone refused this node: {}", printable(std::move(refusal->reason)))};
  }
  return {ErrorKind::unauthorized,
          std::format("the peer sent a frame of type {} before it proved the join token", static_cast<int>(frame.header.type))};
}

}  // namespace linkcpp::net
