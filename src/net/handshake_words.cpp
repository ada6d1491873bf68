#include "net/handshake_words.h"

#include "wire/messages.h"
#include "wire/text.h"

namespace linkcpp::net {

Bytes refusal_frame(const Error& reason) {
  Bytes frame = wire::begin_frame(wire::FrameType::refuse, 0);
  wire::encode(wire::Refuse{reason.kind, reason.kind == ErrorKind::unauthorized ? wrong_token : reason.message}, frame);
  wire::finish_frame(frame);
  return frame;
}

Error unproved(const wire::FrameView& frame, Role peer_role, const PeerKey& peer) {
  if (frame.header.type == wire::FrameType::auth) {
    return {ErrorKind::unauthorized, std::format("node {} has a {}", short_name(peer), wrong_token)};
  }
  if (frame.header.type == wire::FrameType::refuse && peer_role == Role::backbone) {  // the pinned backbone, so its words count
    auto refusal = wire::decode_refuse(frame.body);
    if (refusal)
      return {refusal->kind, std::format("the backbone refused this node: {}", wire::plain_text(refusal->reason, max_shown_reason))};
  }
  return {ErrorKind::unauthorized,
          std::format("the peer sent a frame of type {} before it proved the join token", static_cast<int>(frame.header.type))};
}

}  // namespace linkcpp::net
