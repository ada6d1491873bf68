#include "doctor/way.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "net/coroutine.h"
#include "net/name_resolver.h"

namespace linkcpp::doctor {
namespace {

namespace asio = boost::asio;
using net::as_values;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// So many attempts make a round of the dialer: one for each address of the host.
asio::awaitable<std::size_t> attempts_of(asio::io_context& context, const net::Address& address, std::chrono::milliseconds limit) {
  if (address.scheme == net::Scheme::relay) co_return 1;
  net::NameResolver resolver(asio::make_strand(context));
  const auto endpoints = co_await resolver.resolve(address.endpoint, limit);
  co_return endpoints ? std::max<std::size_t>(endpoints->size(), 1) : 1;
}

/// The link's own measurement, which its keep-warm pings make.
asio::awaitable<Nanoseconds> round_trip_of(asio::io_context& context, const net::LinkPtr& link) {
  link->start({.on_frame = [](const wire::FrameView&) {}, .on_close = [](const Error&) {}});
  asio::steady_timer timer(context);
  for (const auto end = Clock::now() + 2s; link->stats().rtt_min.count() == 0 && Clock::now() < end;) {
    timer.expires_after(5ms);
    co_await timer.async_wait(as_values);
  }
  co_return link->stats().rtt_min;
}

/// What the dialer's callbacks say; it may outlive the coroutine by a turn of the loop.
struct Outcome {
  explicit Outcome(asio::io_context& context) : changed(context) {}
  asio::steady_timer changed;
  net::LinkPtr link;
  std::optional<Error> error;
  std::size_t attempts = 0;
};

asio::awaitable<void> dial(asio::io_context& context, Way& way, net::Credentials credentials, std::chrono::milliseconds limit,
                           std::size_t attempts) {
  const auto outcome = std::make_shared<Outcome>(context);
  net::LinkKnobs knobs;
  knobs.handshake_deadline = limit;
  knobs.keep_warm = 20ms;
  auto dialer = net::Dialer::start(
      context, {way.address}, std::move(credentials), knobs,
      [outcome](net::LinkPtr link) {
        outcome->link = std::move(link);
        outcome->changed.cancel();
      },
      [outcome](const Error& error) {
        if (!outcome->error || error.kind == ErrorKind::unauthorized) outcome->error = error;
        ++outcome->attempts;
        outcome->changed.cancel();
      });
  // The dialer keeps to the limit by itself; twice that is for what comes before and after its handshake.
  for (const auto end = Clock::now() + 2 * limit; !outcome->link && outcome->attempts < attempts && Clock::now() < end;) {
    outcome->changed.expires_at(end);
    co_await outcome->changed.async_wait(as_values);
  }
  if (outcome->link) {
    way.round_trip = co_await round_trip_of(context, outcome->link);
    outcome->link->close({ErrorKind::unavailable, "linkcpp doctor has seen what it wanted to see"});
    outcome->link.reset();
    co_return;
  }
  way.error = outcome->error.value_or(Error{ErrorKind::timeout, std::format("no answer within {} ms", limit.count())});
}

}  // namespace

asio::awaitable<Result<Nanoseconds>> time_tcp(asio::io_context& context, net::Endpoint where, std::chrono::milliseconds limit) {
  const auto strand = asio::make_strand(context);
  net::NameResolver resolver(strand);
  auto endpoints = co_await resolver.resolve(where, limit);
  if (!endpoints) co_return pass(endpoints);
  const auto socket = std::make_shared<net::Socket>(strand);
  asio::steady_timer deadline(strand, limit);
  deadline.async_wait([socket](const boost::system::error_code& cancelled) {
    boost::system::error_code ignored;
    if (!cancelled) socket->close(ignored);
  });
  for (const net::Tcp::endpoint& endpoint : *endpoints) {
    boost::system::error_code ignored;
    socket->close(ignored);
    const auto begun = Clock::now();
    const auto [error] = co_await socket->async_connect(endpoint, as_values);
    if (!error) co_return Clock::now() - begun;
    if (error == asio::error::operation_aborted) break;
    if (&endpoint == &endpoints->back()) co_return fail(ErrorKind::unavailable, "{}", error.message());
  }
  co_return fail(ErrorKind::timeout, "no answer by TCP within {} ms", limit.count());
}

asio::awaitable<Way> try_way(asio::io_context& context, net::Address address, net::Credentials credentials,
                             std::chrono::milliseconds limit) {
  Way way{.address = address.scheme == net::Scheme::tcp ? "tcp://" + address.endpoint.text() : address.text(),
          .transport = std::string(net::scheme_name(address.scheme))};
  if (address.scheme != net::Scheme::quic) {
    auto connected = co_await time_tcp(context, address.endpoint, limit);
    if (!connected) {
      way.error = connected.error();
      co_return way;
    }
    way.connected = *connected;
  }
  const std::size_t attempts = co_await attempts_of(context, address, limit);
  co_await dial(context, way, std::move(credentials), limit, attempts);
  co_return way;
}

}  // namespace linkcpp::doctor
