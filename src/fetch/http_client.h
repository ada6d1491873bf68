// One HTTP/1.1 connection that is kept, and GETs over it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

#include "fetch/http_source.h"
#include "fetch/stream.h"
#include "fetch/url.h"

namespace linkcpp::fetch {

/// Threading: get() from one thread at a time, cancel() from any.
class HttpClient {
 public:
  using Sink = std::function<Result<>(ByteSpan)>;
  HttpClient(HttpKnobs knobs, std::optional<net::Credentials> credentials) : knobs_(knobs), credentials_(std::move(credentials)) {}

  /// Bytes [offset, offset + bytes) of what is at `url`, in order. Errors as SliceSource::read; exactly that many bytes came on success.
  Result<> get_range(const Url& url, std::uint64_t offset, std::uint64_t bytes, const Sink& sink);
  /// All of it.
  Result<std::string> get_all(const Url& url, std::uint64_t max_bytes);
  void cancel() noexcept;

 private:
  struct Request {
    std::optional<std::pair<std::uint64_t, std::uint64_t>> range;  ///< offset, bytes
    std::uint64_t max_bytes = 0;
  };
  Result<> get(Url url, const Request& request, const Sink& sink);
  Result<std::optional<Url>> attempt(const Url& url, const Request& request, const Sink& sink, bool& heard);
  Result<std::optional<Url>> answer(const Url& url, const Request& request, const Sink& sink, bool& heard);
  Result<> connect(const Url& url);
  Result<> adopt(std::unique_ptr<Stream> stream, const Url& url);
  void drop();

  HttpKnobs knobs_;
  std::optional<net::Credentials> credentials_;
  std::string connected_to_;
  std::string authorization_;
  Bytes buffer_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;  ///< of stream_ against cancel()
  std::unique_ptr<Stream> stream_;
};

}  // namespace linkcpp::fetch
