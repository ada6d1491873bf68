#include "net/link_user.h"

#include <utility>

namespace linkcpp::net {

bool LinkUser::start(Link::Handlers handlers) {
  if (muted_) return false;
  handlers_ = std::move(handlers);
  started_ = true;
  if (!untold_) return true;
  tell(*untold_);
  return false;
}

void LinkUser::end(Error reason) {
  if (!started_ && !muted_) {
    untold_ = std::move(reason);
  } else {
    tell(reason);
  }
  if (const auto hook = std::exchange(finished_hook_, {})) hook();
}

void LinkUser::tell(const Error& reason) {
  const Link::Handlers handlers = std::exchange(handlers_, {});
  if (handlers.on_close && !muted_) handlers.on_close(reason);
}

}  // namespace linkcpp::net
