// Errors as values across module borders.
#pragma once

#include <expected>
#include <format>
#include <string>
#include <utility>

namespace linkcpp {

/// What kind of thing went wrong; decides exit codes and whether a retry makes sense.
enum class ErrorKind {
  invalid_input,  ///< a file, flag, frame or token that is wrong as given
  not_found,      ///< a file, expert or peer that does not exist
  unauthorized,   ///< a peer that failed authentication or is not allowed
  incompatible,   ///< another protocol, engine, model or ABI version
  unavailable,    ///< a peer or resource that is missing now; retry may help
  timeout,        ///< a deadline passed
  io,             ///< the operating system refused
  internal,       ///< a broken invariant of our own
};

/// An error: its kind and one sentence that names what was wrong and what to do.
struct Error {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
};

/// Result of an operation that can fail.
template <class T = void>
using Result = std::expected<T, Error>;

/// Builds the failing side of a Result: `return fail(ErrorKind::io, "cannot open {}", path);`
template <class... Args>
[[nodiscard]] std::unexpected<Error> fail(ErrorKind kind, std::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Error{kind, std::format(format, std::forward<Args>(args)...)});
}

/// Passes the error of a failed Result on, under any value type.
template <class T>
[[nodiscard]] std::unexpected<Error> pass(Result<T>& failed) {
  return std::unexpected(std::move(failed.error()));
}

}  // namespace linkcpp
