// How coroutines use a pipe. Include in .cpp files only.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <utility>

#include "net/coroutine.h"
#include "net/pipe.h"

namespace linkcpp::net {

/// As Pipe::read_some().
inline boost::asio::awaitable<Result<std::size_t>> read_some(Pipe& pipe, std::span<std::byte> into) {
  return boost::asio::async_initiate<const boost::asio::use_awaitable_t<>, void(Result<std::size_t>)>(
      [&pipe, into](auto handler) { pipe.read_some(into, std::move(handler)); }, boost::asio::use_awaitable);
}

inline boost::asio::awaitable<Result<>> writable(Pipe& pipe) {
  return boost::asio::async_initiate<const boost::asio::use_awaitable_t<>, void(Result<>)>(
      [&pipe](auto handler) { pipe.wait_writable(std::move(handler)); }, boost::asio::use_awaitable);
}

/// Writes all bytes, as fast as the other side takes them.
inline boost::asio::awaitable<Result<>> write_all(Pipe& pipe, ByteSpan bytes) {
  for (;;) {
    const auto gone = pipe.try_write(bytes);
    if (!gone) co_return std::unexpected(gone.error());
    if (*gone) co_return Result<>();
    if (auto ready = co_await writable(pipe); !ready) co_return ready;
  }
}

}  // namespace linkcpp::net
