#include "doctor/relay_check.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "doctor/way.h"
#include "net/coroutine.h"
#include "net/relay_client.h"

namespace linkcpp::doctor {
namespace {

namespace asio = boost::asio;
using net::as_values;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

asio::awaitable<void> come_in(asio::io_context& context, RelayFinding& finding, const net::Address& relay, net::Credentials credentials,
                              std::chrono::milliseconds limit) {
  net::LinkKnobs knobs;
  knobs.handshake_deadline = limit;
  const auto trouble = std::make_shared<std::optional<Error>>();
  const auto client = std::make_shared<net::RelayClient>(
      asio::make_strand(context), relay, std::make_shared<const net::Credentials>(std::move(credentials)), knobs,
      net::RelayClient::Hooks{.on_called = {}, .on_trouble = [trouble](const Error& error) {
                                if (!*trouble) *trouble = error;
                              }});
  client->start();
  asio::steady_timer timer(context);
  for (const auto end = Clock::now() + limit; !client->round_trip() && !*trouble && Clock::now() < end;) {
    timer.expires_after(5ms);
    co_await timer.async_wait(as_values);
  }
  finding.round_trip = client->round_trip();
  if (!finding.round_trip) {
    finding.error = trouble->value_or(Error{ErrorKind::timeout, std::format("it did not let this node in within {} ms", limit.count())});
  }
  client->stop();
}

}  // namespace

asio::awaitable<RelayFinding> check_relay(asio::io_context& context, net::Address relay, std::optional<net::Credentials> credentials,
                                          std::chrono::milliseconds limit) {
  relay.key.reset();
  RelayFinding finding{.address = relay.text()};
  auto connected = co_await time_tcp(context, relay.endpoint, limit);
  if (!connected) {
    finding.error = connected.error();
    co_return finding;
  }
  finding.connected = *connected;
  finding.asked_in = credentials.has_value();
  if (credentials) co_await come_in(context, finding, relay, std::move(*credentials), limit);
  co_return finding;
}

}  // namespace linkcpp::doctor
