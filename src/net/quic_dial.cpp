#include "net/quic_dial.h"

#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

#include "net/coroutine.h"

namespace linkcpp::net {

namespace asio = boost::asio;

QuicDialling::QuicDialling(Strand strand, std::shared_ptr<const Credentials> credentials, LinkKnobs knobs)
    : strand_(std::move(strand)), credentials_(std::move(credentials)), knobs_(std::move(knobs)) {}

asio::awaitable<Result<std::shared_ptr<Connection>>> QuicDialling::dial(Udp::endpoint to, std::chrono::milliseconds patience) {
  const bool v6 = to.address().is_v6();
  auto& endpoint = endpoints_[v6];
  if (!endpoint) {
    auto opened = QuicEndpoint::open(strand_, {v6 ? Udp::v6() : Udp::v4(), 0}, *credentials_, knobs_);
    if (!opened) co_return pass(opened);
    endpoint = std::move(*opened);
  }
  struct Wait {
    asio::steady_timer timer;
    std::optional<Result<std::shared_ptr<Connection>>> outcome;
  };
  auto wait = std::make_shared<Wait>(Wait{asio::steady_timer(strand_, patience), std::nullopt});
  attempt_ = endpoint->hub()->dial(to, to_text(to), [wait](Result<std::shared_ptr<Connection>> ready) {
    wait->outcome = std::move(ready);
    wait->timer.cancel();
  });
  while (!wait->outcome) {
    const auto [error] = co_await wait->timer.async_wait(as_values);
    if (error || wait->outcome) continue;
    wait->timer.expires_at(asio::steady_timer::time_point::max());
    abort({ErrorKind::timeout, std::format("no answer by QUIC within {} ms", patience.count())});
  }
  co_return std::move(*wait->outcome);
}

void QuicDialling::abort(const Error& reason) {
  if (const auto attempt = attempt_.lock(); attempt && !attempt->established()) attempt->abort(reason);
}

}  // namespace linkcpp::net
