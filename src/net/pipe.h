// A stream of bytes in both directions, over which our TLS runs: TCP itself, or something that carries bytes as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"
#include "net/socket.h"

namespace linkcpp::net {

/// One stream. Never encrypted on our behalf: whoever is in between may read it, so only TLS between nodes goes over it.
///
/// Threads: read_some(), wait_writable(), close() and cancel() on the strand. try_write(), shutdown_send() and close() from any thread, but
/// one at a time: the caller holds a lock of its own around them. Callbacks run on the strand and never from inside the call that was
/// given them.
///
/// Lifetime: a pipe must live until the callbacks that it was given have run, or were destroyed with the io_context. A callback that owns
/// the pipe's owner does that.
class Pipe {
 public:
  /// Number of bytes, 0 at the end of the stream, or why nothing can be read any more (also: cancelled).
  using OnRead = std::move_only_function<void(Result<std::size_t>)>;
  using OnWritable = std::move_only_function<void(Result<>)>;

  virtual ~Pipe() = default;
  /// Reads at least one byte into `into`, which must stay; it may be used as scratch space as a whole. One reading at a time.
  virtual void read_some(std::span<std::byte> into, OnRead then) = 0;
  /// Takes bytes off the front of `bytes`, as many as go without waiting. True if all are gone, and whatever the pipe held itself; false if
  /// something waits: call it again, with what is left or nothing, after wait_writable().
  virtual Result<bool> try_write(ByteSpan& bytes) = 0;
  virtual void wait_writable(OnWritable then) = 0;
  /// Tells the other side that nothing more will come. Reading goes on.
  virtual void shutdown_send() = 0;
  /// Ends everything; what waits in callbacks fails.
  virtual void close() = 0;
  /// What waits in callbacks fails; the pipe stays open.
  virtual void cancel() = 0;

  [[nodiscard]] virtual const Strand& strand() const = 0;
  /// Whether bytes have arrived that were not read yet.
  [[nodiscard]] virtual bool unread() const = 0;
  /// Bytes that were handed to the network so far, and how many of them the next machine on the way has taken. For telling a slow line
  /// from a dead peer.
  [[nodiscard]] virtual std::uint64_t written() const = 0;
  [[nodiscard]] virtual std::uint64_t acknowledged() const = 0;
  /// Far end, "203.0.113.7:41234". Behind a proxy it is the proxy's.
  [[nodiscard]] virtual const std::string& endpoint() const = 0;
  /// "tcp", "ws", "wss", "relay".
  [[nodiscard]] virtual std::string_view kind() const = 0;
};

}  // namespace linkcpp::net
