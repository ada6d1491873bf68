// A small HTTP client over plain TCP, for llama-server and the admin endpoint on this machine or nearby.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "serve/address.h"

namespace linkcpp::serve {

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

/// Parses "http://host[:port][/]"; a bare "host:port" will do. https is not spoken and says so.
Result<HostPort> parse_http_url(const std::string& url);

/// One request on a connection of its own, GET if `body` is empty, else POST of JSON. Answers of any status are results; no answer
/// is an error: `unavailable` (nobody listens, connection lost) or `timeout`. Bodies are bounded to 64 MiB.
boost::asio::awaitable<Result<HttpAnswer>> http_request(HostPort server, std::string target, std::string body,
                                                        std::chrono::milliseconds limit);

/// The JSON of a 200 answer; other statuses are errors that quote the server's message.
boost::asio::awaitable<Result<nlohmann::json>> http_json(HostPort server, std::string target, std::string body,
                                                         std::chrono::milliseconds limit);

/// POSTs JSON and calls `on_data` with each "data:" line of the event stream that comes back, without the prefix, until "[DONE]" or
/// the stream's end. A status other than 200 is an error that quotes the server's message.
boost::asio::awaitable<Result<>> http_event_stream(HostPort server, std::string target, std::string body, std::chrono::milliseconds limit,
                                                   std::function<void(std::string_view)> on_data);

}  // namespace linkcpp::serve
