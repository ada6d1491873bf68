#include "net/relay_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "net/connect.h"
#include "net/pipe_io.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

/// Pings that a relay may leave unanswered, while it says nothing else either.
constexpr int silent_pings = 3;

}  // namespace

RelayClient::RelayClient(Strand strand, Address address, std::shared_ptr<const Credentials> credentials, LinkKnobs knobs, Hooks hooks)
    : strand_(std::move(strand)),
      address_(std::move(address)),
      credentials_(std::move(credentials)),
      knobs_(std::move(knobs)),
      hooks_(std::move(hooks)),
      resolver_(strand_),
      pause_(strand_),
      random_(std::random_device{}()),
      known_key_(address_.relay_key) {
  knobs_.backoff_min = std::max(knobs_.backoff_min, std::chrono::milliseconds(1));
  knobs_.backoff_max = std::max(knobs_.backoff_max, knobs_.backoff_min);
  knobs_.relay_ping = std::max(knobs_.relay_ping, std::chrono::milliseconds(1));
}

void RelayClient::start() {
  asio::co_spawn(strand_, [self = shared_from_this()] { return self->run(); }, asio::detached);
}

void RelayClient::stop() {
  stopped_ = true;
  hooks_ = {};
  resolver_.cancel();
  pause_.cancel();
  if (attempt_) attempt_->abort({ErrorKind::unavailable, "this node stopped using the relay"});
  settle_all({ErrorKind::unavailable, "this node stopped using the relay"});
}

asio::awaitable<void> RelayClient::run() {
  auto tls = TlsContext::create(credentials_->identity, std::nullopt);
  if (!tls) co_return trouble(tls.error());
  tls_ = std::move(*tls);
  auto pause = knobs_.backoff_min;
  while (!stopped_) {
    const auto begun = Clock::now();
    const Error error = co_await stay_connected();
    channel_.reset();
    attempt_.reset();
    tried_ = true;
    if (stopped_) break;
    trouble(error);
    if (Clock::now() - begun >= knobs_.backoff_max) pause = knobs_.backoff_min;
    if (error.kind == ErrorKind::unauthorized || error.kind == ErrorKind::incompatible) pause = knobs_.backoff_max;
    pause_.expires_after(std::chrono::milliseconds(std::uniform_int_distribution(pause.count() / 2, pause.count())(random_)));
    co_await pause_.async_wait(as_values);
    pause = std::min(2 * pause, knobs_.backoff_max);
  }
}

void RelayClient::trouble(const Error& error) {
  settle_all(error);
  if (hooks_.on_trouble) hooks_.on_trouble({error.kind, std::format("relay {}: {}", address_.endpoint.text(), error.message)});
}

/// Until the connection is lost; returns why.
asio::awaitable<Error> RelayClient::stay_connected() {
  auto channel = co_await come_in();
  if (!channel) co_return channel.error();
  channel_ = *channel;
  tried_ = true;
  heard_ = Clock::now();
  if (hooks_.on_called) channel_->send(RelayListen{});
  for (const auto& [number, request] : requests_) channel_->send(RelayConnect{number, request->to});
  asio::co_spawn(strand_, [self = shared_from_this(), channel = *channel] { return self->keep_warm(channel); }, asio::detached);
  for (;;) {
    auto message = co_await (*channel)->receive();
    if (!message) co_return message.error();
    heard_ = Clock::now();
    if (auto ended = handle(*message)) {
      (*channel)->close();
      co_return *ended;
    }
  }
}

asio::awaitable<Result<std::shared_ptr<RelayChannel>>> RelayClient::come_in() {
  auto endpoints = co_await resolver_.resolve(address_.endpoint, knobs_.handshake_deadline);
  if (!endpoints) co_return pass(endpoints);
  Error last{ErrorKind::unavailable, "it has no address"};
  for (const Tcp::endpoint& endpoint : *endpoints) {
    if (stopped_) break;
    auto channel = co_await try_one(endpoint);
    if (channel) {
      endpoint_ = endpoint;
      co_return channel;
    }
    if (attempt_->has_pipe()) attempt_->close();
    last = std::move(channel.error());
  }
  co_return std::unexpected(std::move(last));
}

asio::awaitable<Result<std::shared_ptr<RelayChannel>>> RelayClient::try_one(Tcp::endpoint endpoint) {
  attempt_ = std::make_shared<Attempt>(strand_, knobs_.handshake_deadline);
  const auto attempt = attempt_;
  attempt->start_deadline();
  if (auto connected = co_await connect_pipe(*attempt, address_, endpoint, knobs_); !connected) co_return pass(connected);
  auto channel = std::make_shared<RelayChannel>(attempt);
  if (auto done = co_await channel->handshake(tls_, TlsSide::client); !done) co_return pass(done);
  if (auto welcome = co_await introduce_self(*channel); !welcome) co_return pass(welcome);
  attempt->end_deadline();
  if (attempt->aborted()) co_return std::unexpected(*attempt->aborted());
  co_return channel;
}

/// A relay cannot read what it passes on, so that its key matters little: it could refuse, or listen to who speaks with whom. The key in
/// its address is the only one that is right; without one the first that was seen is.
Result<> RelayClient::check_key(const PeerKey& key) {
  if (!known_key_) known_key_ = key;
  if (*known_key_ == key) return {};
  return fail(ErrorKind::unauthorized, "its key is {}, expected {}; {}", key_text(key), key_text(*known_key_),
              address_.relay_key ? "is the address right?" : "if it got a new key, start this node again");
}

Result<RelayMessage> RelayClient::first_words(RelayChannel& channel) const {
  const auto membership = relay_membership(credentials_->secret);
  if (!membership) return std::unexpected(membership.error());
  if (credentials_->is_backbone) return RelayRegister{*membership};
  if (!credentials_->expected_peer) return fail(ErrorKind::invalid_input, "a node that is no backbone must know whose it is");
  const auto exported = channel.exported();
  if (!exported) return std::unexpected(exported.error());
  const auto proof = relay_proof(*membership, *exported, credentials_->identity.key(), *credentials_->expected_peer);
  if (!proof) return std::unexpected(proof.error());
  return RelayJoin{*credentials_->expected_peer, *proof};
}

asio::awaitable<Result<>> RelayClient::introduce_self(RelayChannel& channel) {
  if (auto right = check_key(channel.peer()); !right) co_return right;
  const auto words = first_words(channel);
  if (!words) co_return std::unexpected(words.error());
  channel.send(*words);
  auto answer = co_await channel.receive();
  if (!answer) co_return pass(answer);
  if (std::holds_alternative<RelayWelcome>(*answer)) co_return Result<>();
  if (auto* refuse = std::get_if<RelayRefuse>(&*answer)) co_return fail(refuse->kind, "it refused this node: {}", refuse->reason);
  co_return fail(ErrorKind::invalid_input, "it answered with something unexpected");
}

/// An error ends the connection.
std::optional<Error> RelayClient::handle(const RelayMessage& message) {
  if (const auto* introduce = std::get_if<RelayIntroduce>(&message)) {
    if (introduce->request != 0) {
      settle(introduce->request, *introduce);
    } else if (hooks_.on_called) {
      hooks_.on_called(*introduce);
    }
  } else if (const auto* failed = std::get_if<RelayFailed>(&message)) {
    settle(failed->request, fail(failed->kind, "the relay {} cannot connect: {}", address_.endpoint.text(), failed->reason));
  } else if (const auto* pong = std::get_if<RelayPong>(&message)) {
    const auto now = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
    if (pong->stamp != ping_stamp_ || now <= ping_stamp_) return std::nullopt;
    const std::chrono::nanoseconds trip(now - ping_stamp_);
    round_trip_ = std::min(round_trip_.value_or(trip), trip);
    ping_stamp_ = 0;
  } else if (const auto* ping = std::get_if<RelayPing>(&message)) {
    channel_->send(RelayPong{ping->stamp});
  } else if (const auto* refuse = std::get_if<RelayRefuse>(&message)) {
    return Error{refuse->kind, std::format("it refused this node: {}", refuse->reason)};
  } else {
    return Error{ErrorKind::invalid_input, "it sent something unexpected"};
  }
  return std::nullopt;
}

asio::awaitable<void> RelayClient::keep_warm(std::shared_ptr<RelayChannel> channel) {
  asio::steady_timer timer(strand_);
  while (channel_ == channel && !stopped_) {
    if (Clock::now() - heard_ > silent_pings * knobs_.relay_ping) {
      attempt_->abort({ErrorKind::timeout, std::format("it has been silent for {} pings", silent_pings)});
      co_return;
    }
    ping_stamp_ = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
    channel->send(RelayPing{ping_stamp_});
    timer.expires_after(knobs_.relay_ping);
    co_await timer.async_wait(as_values);
  }
}

void RelayClient::settle(std::uint32_t number, Result<RelayIntroduce> outcome) {
  const auto found = requests_.find(number);
  if (found == requests_.end()) return;  // nobody waits any more
  found->second->outcome = std::move(outcome);
  found->second->timer.cancel();
  requests_.erase(found);
}

void RelayClient::settle_all(const Error& error) {
  for (const auto& [number, request] : std::exchange(requests_, {})) {
    request->outcome = fail(error.kind, "the relay {}: {}", address_.endpoint.text(), error.message);
    request->timer.cancel();
  }
}

asio::awaitable<Result<RelayIntroduce>> RelayClient::connect(PeerKey to) {
  const auto self = shared_from_this();
  if (stopped_) co_return fail(ErrorKind::unavailable, "this node stopped using the relay");
  const auto request = std::make_shared<Request>(strand_, to);
  const std::uint32_t number = ++last_request_ == 0 ? ++last_request_ : last_request_;
  requests_[number] = request;
  if (channel_) channel_->send(RelayConnect{number, to});
  request->timer.expires_after(knobs_.handshake_deadline);
  if (!request->outcome) co_await request->timer.async_wait(as_values);
  requests_.erase(number);
  if (!request->outcome)
    co_return fail(ErrorKind::timeout, "the relay {} did not answer within {} ms", address_.endpoint.text(),
                   knobs_.handshake_deadline.count());
  co_return std::move(*request->outcome);
}

asio::awaitable<Result<>> open_relay_data(Attempt& attempt, const Address& relay, Tcp::endpoint endpoint, const RelayTicket& ticket,
                                          const LinkKnobs& knobs) {
  attempt.enter("the connection to the relay");
  if (auto connected = co_await connect_pipe(attempt, relay, endpoint, knobs); !connected) co_return connected;
  attempt.enter("the exchange of tickets at the relay");
  if (auto sent = co_await write_all(attempt.pipe(), encode_relay_preamble(ticket)); !sent) co_return attempt.broken(sent.error());
  std::array<std::byte, 1> answer{};
  const auto got = co_await read_some(attempt.pipe(), answer);
  if (!got) co_return attempt.broken(got.error());
  if (*got == 0) co_return attempt.ended();
  if (answer[0] == std::byte{0}) co_return Result<>();
  co_return std::unexpected(relay_answer_error(std::to_integer<std::uint8_t>(answer[0])));
}

}  // namespace linkcpp::net
