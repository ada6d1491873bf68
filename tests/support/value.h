// What a result holds, for tools: in one an error ends the program.
#pragma once

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace linkcpp::test {

/// Throws std::runtime_error with the error's message.
template <class T>
T value(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace linkcpp::test
