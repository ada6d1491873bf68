#include "net/handshake.h"

#include <algorithm>
#include <utility>

#include "net/handshake_words.h"
#include "net/pipe_io.h"
#include "net/tls_link.h"
#include "wire/messages.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

/// How long a refused peer may take to read why.
constexpr auto refusal_patience = std::chrono::seconds(1);
}  // namespace

Handshake::Handshake(std::shared_ptr<Attempt> attempt, std::shared_ptr<const TlsContext> tls,
                     std::shared_ptr<const Credentials> credentials, LinkKnobs knobs)
    : attempt_(std::move(attempt)), tls_(std::move(tls)), credentials_(std::move(credentials)), knobs_(std::move(knobs)) {}

asio::awaitable<Result<std::shared_ptr<Connection>>> Handshake::run(TlsSide side) {
  auto result = co_await authenticate(side);
  attempt_->end_deadline();
  if (attempt_->aborted()) co_return std::unexpected(*attempt_->aborted());
  if (!result) {
    attempt_->close();
    co_return pass(result);
  }
  co_return std::make_shared<TlsConnection>(TlsConnection::Parts{attempt_->take_pipe(), std::move(session_), std::move(received_)}, knobs_);
}

asio::awaitable<Result<>> Handshake::authenticate(TlsSide side) {
  if (auto done = co_await do_tls(side); !done) co_return pass(done);
  attempt_->enter("the exchange of proofs");
  // The worker goes first, so that one with a wrong token is told so by the backbone.
  if (!credentials_->is_backbone) {
    if (auto proved = co_await prove(Role::worker); !proved) co_return pass(proved);
    co_return co_await check(Role::backbone);
  }
  if (auto checked = co_await check(Role::worker); !checked) {
    if (!attempt_->aborted()) co_await refuse(checked.error());
    co_return pass(checked);
  }
  co_return co_await prove(Role::backbone);
}

asio::awaitable<Result<>> Handshake::do_tls(TlsSide side) {
  attempt_->enter("the TLS handshake");
  auto session = TlsSession::create(tls_, side);
  if (!session) co_return pass(session);
  session_ = std::move(*session);
  for (;;) {
    const auto complete = session_->handshake();
    auto flushed = co_await flush();  // after an error, the alert that tells the peer
    if (!complete) co_return std::unexpected(complete.error());
    if (!flushed) co_return pass(flushed);
    if (*complete) co_return Result<>();
    if (auto read = co_await read_ciphertext(); !read) co_return pass(read);
  }
}

asio::awaitable<Result<>> Handshake::prove(Role role) {
  const auto exported = session_->export_key(auth_exporter_label);
  if (!exported) co_return std::unexpected(exported.error());
  const auto proof = make_proof(credentials_->secret, role, *exported, credentials_->identity.key());
  if (!proof) co_return std::unexpected(proof.error());
  if (auto written = session_->write(wire::make_frame(wire::FrameType::auth, 0, std::as_bytes(std::span(*proof)))); !written)
    co_return pass(written);
  co_return co_await flush();
}

asio::awaitable<Result<>> Handshake::check(Role peer_role) {
  const auto exported = session_->export_key(auth_exporter_label);
  if (!exported) co_return std::unexpected(exported.error());
  const auto expected = make_proof(credentials_->secret, peer_role, *exported, session_->peer());
  if (!expected) co_return std::unexpected(expected.error());
  auto frame = co_await read_frame();
  if (!frame) co_return pass(frame);
  if (frame->header.type == wire::FrameType::auth && check_proof(frame->body, *expected)) co_return Result<>();
  co_return std::unexpected(unproved(*frame, peer_role, session_->peer()));
}

/// Tells the peer why, and lets it read that: closing over unread data would reset the connection and destroy the message.
asio::awaitable<void> Handshake::refuse(const Error& reason) {
  attempt_->enter("the refusal");
  if (!session_->write(refusal_frame(reason))) co_return;
  session_->shutdown();
  attempt_->cancel_after(refusal_patience);
  if (auto flushed = co_await flush(); !flushed) co_return;
  attempt_->pipe().shutdown_send();
  Result<std::size_t> got = 1;
  while (got && *got > 0) got = co_await read_some(attempt_->pipe(), ciphertext_);
}

asio::awaitable<Result<wire::FrameView>> Handshake::read_frame() {
  for (;;) {
    // All plaintext is taken before more is read, as TlsSession::feed demands; what is beyond the frame stays for the link.
    Result<std::size_t> got;
    while (got = session_->read(received_.space(ciphertext_.size())), got && *got > 0) received_.commit(*got);
    if (!got) {
      (void)co_await flush();  // an alert, if the peer still listens; the reason is told in any case
      co_return pass(got);
    }
    auto frame = received_.next(wire::max_unauthenticated_body);
    if (!frame) co_return pass(frame);
    if (*frame) co_return **frame;
    if (session_->closed()) co_return attempt_->ended();
    if (auto read = co_await read_ciphertext(); !read) co_return pass(read);
  }
}

asio::awaitable<Result<>> Handshake::read_ciphertext() {
  const auto got = co_await read_some(attempt_->pipe(), ciphertext_);
  if (!got) co_return attempt_->broken(got.error());
  if (*got == 0) co_return attempt_->ended();
  session_->feed(ByteSpan(ciphertext_).first(*got));
  co_return Result<>();
}

asio::awaitable<Result<>> Handshake::flush() {
  Bytes& output = session_->output();
  if (output.empty()) co_return Result<>();
  const auto written = co_await write_all(attempt_->pipe(), output);
  output.clear();
  if (!written) co_return attempt_->broken(written.error());
  co_return Result<>();
}

}  // namespace linkcpp::net
