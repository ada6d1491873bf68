#include "net/name_resolver.h"

#include "net/coroutine.h"

namespace linkcpp::net {

namespace asio = boost::asio;
using boost::system::error_code;

asio::awaitable<Result<std::vector<Tcp::endpoint>>> NameResolver::resolve(Endpoint where, std::chrono::milliseconds limit) {
  error_code error;
  // Numbers need no resolver, whose thread could be busy with a name server that does not answer.
  if (const auto numeric = asio::ip::make_address(where.host, error); !error) co_return std::vector{Tcp::endpoint(numeric, where.port)};
  timer_.expires_after(limit);
  const auto asking = std::make_shared<bool>(true);  // the wait may end after this question
  timer_.async_wait([this, asking = std::weak_ptr(asking)](const error_code& cancelled) {
    if (!cancelled && !asking.expired()) resolver_.cancel();
  });
  const auto [failure, found] = co_await resolver_.async_resolve(where.host, std::to_string(where.port), as_values);
  timer_.cancel();
  if (failure == asio::error::operation_aborted) co_return fail(ErrorKind::timeout, "the name server does not answer");
  if (failure) co_return fail(ErrorKind::unavailable, "the host is not known: {}", failure.message());
  std::vector<Tcp::endpoint> endpoints;
  for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  co_return endpoints;
}

}  // namespace linkcpp::net
