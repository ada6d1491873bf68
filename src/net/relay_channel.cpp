#include "net/relay_channel.h"

#include <utility>

#include "net/pipe_io.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

/// A node and a relay exchange a few bytes now and then.
constexpr std::size_t max_waiting = 256u << 10;
constexpr auto farewell_patience = std::chrono::seconds(1);

}  // namespace

RelayChannel::RelayChannel(std::shared_ptr<Attempt> attempt, Bytes received)
    : attempt_(std::move(attempt)), endpoint_(attempt_->pipe().endpoint()), early_(std::move(received)) {}

asio::awaitable<Result<>> RelayChannel::handshake(std::shared_ptr<const TlsContext> tls, TlsSide side) {
  attempt_->enter("the TLS handshake");
  auto session = TlsSession::create(std::move(tls), side);
  if (!session) co_return pass(session);
  session_ = std::move(*session);
  session_->feed(early_);
  for (;;) {
    const auto complete = session_->handshake();
    auto flushed = co_await flush_all();  // after an error, the alert that tells the peer
    if (!complete) co_return std::unexpected(complete.error());
    if (!flushed) co_return flushed;
    if (*complete) break;
    if (auto read = co_await read_more(); !read) co_return read;
  }
  authenticated_ = true;
  attempt_->enter("the exchange with the relay");
  co_return Result<>();
}

asio::awaitable<Result<>> RelayChannel::flush_all() {
  const auto written = co_await write_all(attempt_->pipe(), session_->output());
  session_->output().clear();
  if (!written) co_return attempt_->broken(written.error());
  co_return Result<>();
}

asio::awaitable<Result<>> RelayChannel::read_more() {
  const auto self = shared_from_this();  // close() may take the last other owner
  const auto got = co_await read_some(attempt_->pipe(), ciphertext_);
  if (!got) co_return attempt_->broken(got.error());
  if (*got == 0) co_return attempt_->ended();
  session_->feed(ByteSpan(ciphertext_).first(*got));
  co_return Result<>();
}

asio::awaitable<Result<RelayMessage>> RelayChannel::receive() {
  const auto self = shared_from_this();
  for (;;) {
    std::array<std::byte, 4096> plain;
    Result<std::size_t> got;
    // All plaintext is taken before more is read, as TlsSession::feed demands.
    while (got = session_->read(plain), got && *got > 0) messages_.add(ByteSpan(plain).first(*got));
    if (!closed_) flush();  // answers of the TLS layer itself, or an alert
    if (!got) co_return pass(got);
    auto message = messages_.next();
    if (!message) co_return pass(message);
    if (*message) co_return std::move(**message);
    if (session_->closed()) co_return attempt_->ended();
    if (closed_) co_return attempt_->ended();
    if (auto read = co_await read_more(); !read) co_return pass(read);
  }
}

void RelayChannel::send(const RelayMessage& message) {
  if (closed_) return;
  if (auto written = session_->write(encode_relay_message(message)); !written) return close();
  flush();
}

void RelayChannel::flush() {
  if (waiting_ || closed_) return;
  Bytes& output = session_->output();
  ByteSpan rest = ByteSpan(output).subspan(written_);
  const auto gone = attempt_->pipe().try_write(rest);
  written_ = output.size() - rest.size();
  if (!gone || rest.size() > max_waiting) return close();
  if (*gone) {
    output.clear();
    written_ = 0;
    return;
  }
  waiting_ = true;
  attempt_->pipe().wait_writable([self = shared_from_this()](const Result<>& ready) {
    self->waiting_ = false;
    if (ready) self->flush();
  });
}

void RelayChannel::end_sending() {
  if (closed_) return;
  session_->shutdown();
  flush();
  if (!closed_ && !waiting_) attempt_->pipe().shutdown_send();
}

asio::awaitable<void> RelayChannel::farewell() {
  const auto self = shared_from_this();
  end_sending();
  attempt_->cancel_after(farewell_patience);
  Result<std::size_t> got = 1;
  while (got && *got > 0 && !closed_) got = co_await read_some(attempt_->pipe(), ciphertext_);
  close();
}

void RelayChannel::close() {
  closed_ = true;
  attempt_->close();
}

}  // namespace linkcpp::net
