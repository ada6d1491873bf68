#include "net/connect.h"

#include <tuple>
#include <utility>

#include "net/pipe_io.h"
#include "net/tcp_pipe.h"
#include "net/web_tls_pipe.h"
#include "net/websocket_upgrade.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

asio::awaitable<Result<>> connect_tcp(Attempt& attempt, Tcp::endpoint endpoint, std::string_view kind, const LinkKnobs& knobs) {
  Socket socket(attempt.strand());
  error_code error;
  socket.open(endpoint.protocol(), error);
  if (error) co_return fail(ErrorKind::io, "cannot open a socket: {}", error.message());
  set_congestion_control(socket.native_handle(), knobs.congestion_control);
  attempt.set_breaker([&socket] {
    error_code ignored;
    socket.close(ignored);
  });
  std::tie(error) = co_await socket.async_connect(endpoint, as_values);
  attempt.set_breaker({});
  if (attempt.aborted()) co_return std::unexpected(*attempt.aborted());
  if (error) co_return fail(ErrorKind::unavailable, "{}; is the peer up, and the address right?", error.message());
  attempt.set_pipe(std::make_unique<TcpPipe>(std::move(socket), to_text(endpoint), kind));
  co_return Result<>();
}

asio::awaitable<Result<>> add_web_tls(Attempt& attempt, const Address& address, const LinkKnobs& knobs) {
  attempt.enter("the TLS handshake with the web server");
  auto ssl = make_web_tls(address.endpoint.host, knobs.web_ca_file);
  if (!ssl) co_return pass(ssl);
  auto pipe = std::make_unique<WebTlsPipe>(attempt.take_pipe(), std::move(*ssl));
  WebTlsPipe& tls = *pipe;
  attempt.set_pipe(std::move(pipe));
  auto done = co_await tls.handshake(address.endpoint.host);
  if (!done) co_return attempt.broken(done.error());
  co_return Result<>();
}

}  // namespace

asio::awaitable<Result<>> connect_pipe(Attempt& attempt, const Address& address, Tcp::endpoint endpoint, const LinkKnobs& knobs) {
  const std::string_view kind = scheme_name(address.scheme);
  if (auto connected = co_await connect_tcp(attempt, endpoint, kind, knobs); !connected) co_return connected;
  if (address.carrier == Scheme::wss) {
    if (auto added = co_await add_web_tls(attempt, address, knobs); !added) co_return added;
  }
  if (address.in_websocket()) co_return co_await open_websocket(attempt, address, knobs);
  co_return Result<>();
}

}  // namespace linkcpp::net
