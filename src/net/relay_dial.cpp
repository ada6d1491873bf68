#include "net/relay_dial.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "net/coroutine.h"
#include "net/handshake.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;

/// How long the first comparison of relays may take: further than a second is not near.
constexpr auto comparing_limit = std::chrono::seconds(1);
constexpr auto comparing_pause = std::chrono::milliseconds(5);

}  // namespace

RelayDialling::RelayDialling(Strand strand, std::shared_ptr<const Credentials> credentials, LinkKnobs knobs)
    : strand_(std::move(strand)), credentials_(std::move(credentials)), knobs_(std::move(knobs)) {}

std::shared_ptr<RelayClient> RelayDialling::client_of(const Address& address) {
  Address relay = address;
  relay.key.reset();
  auto& client = clients_[relay.text()];
  if (!client) {
    client = std::make_shared<RelayClient>(strand_, relay, credentials_, knobs_, RelayClient::Hooks{});
    client->start();
  }
  return client;
}

asio::awaitable<std::vector<Address>> RelayDialling::nearest_first(std::vector<Address> addresses) {
  if (addresses.size() < 2) co_return addresses;
  std::vector<std::pair<std::shared_ptr<RelayClient>, Address>> relays;
  for (Address& address : addresses) relays.emplace_back(client_of(address), std::move(address));
  const auto measured = [](const auto& relay) { return relay.first->round_trip() || (relay.first->tried() && !relay.first->up()); };
  asio::steady_timer timer(strand_);
  for (const auto end = std::chrono::steady_clock::now() + comparing_limit;
       !stopped_ && !std::ranges::all_of(relays, measured) && std::chrono::steady_clock::now() < end;) {
    timer.expires_after(comparing_pause);
    co_await timer.async_wait(as_values);
  }
  const auto distance = [](const auto& relay) {
    return relay.first->up() ? relay.first->round_trip().value_or(std::chrono::hours(1)) : std::chrono::hours(2);
  };
  std::ranges::stable_sort(relays, {}, distance);
  addresses.clear();
  for (auto& relay : relays) addresses.push_back(std::move(relay.second));
  co_return addresses;
}

asio::awaitable<Result<std::shared_ptr<Connection>>> RelayDialling::dial(Address address, std::shared_ptr<const TlsContext> tls) {
  const auto key = address.key ? address.key : credentials_->expected_peer;
  if (!key) co_return fail(ErrorKind::invalid_input, "the address names no node; write it as relay://host:port/KEY");
  const auto client = client_of(address);
  const auto introduced = co_await client->connect(*key);
  if (!introduced) co_return std::unexpected(introduced.error());
  if (stopped_) co_return fail(ErrorKind::unavailable, "this node stopped dialling");
  const auto attempt = attempt_ = std::make_shared<Attempt>(strand_, knobs_.handshake_deadline);
  attempt->start_deadline();
  auto opened = co_await open_relay_data(*attempt, client->address(), client->endpoint(), introduced->ticket, knobs_);
  Result<std::shared_ptr<Connection>> connection = nullptr;
  if (opened) {
    Handshake handshake(attempt, std::move(tls), credentials_, knobs_);
    connection = co_await handshake.run(TlsSide::client);
  } else {
    connection = pass(opened);
  }
  attempt->end_deadline();
  attempt->close();
  attempt_.reset();
  co_return connection;
}

void RelayDialling::stop(const Error& reason) {
  stopped_ = true;
  if (attempt_) attempt_->abort(reason);
  for (const auto& [address, client] : clients_) client->stop();
}

}  // namespace linkcpp::net
