// The error of every decoder: which message, and what is wrong with it.
#pragma once

#include "base/error.h"

namespace linkcpp::wire {

template <class... Args>
std::unexpected<Error> malformed(const char* what, std::format_string<Args...> why, Args&&... args) {
  return fail(ErrorKind::invalid_input, "malformed {}: {}", what, std::format(why, std::forward<Args>(args)...));
}

}  // namespace linkcpp::wire
