// How coroutines of this folder wait. Include in .cpp files only.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

// False alarm of GCC 16: it inlines Asio's aligned allocation of coroutine frames, but not the matching release.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace linkcpp::net {

/// Errors come back as values.
inline constexpr auto as_values = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace linkcpp::net
