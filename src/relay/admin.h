// Counters of a relay by HTTP, for whoever watches it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"

namespace linkcpp::relay {

/// Answers `GET /metrics` with a text and `GET /health` with "ok"; meant for a loopback address. Ends with the object.
class Admin {
 public:
  /// Asks for the text; must call back once, on any thread.
  using AskText = std::function<void(std::function<void(std::string)> then)>;
  static Result<std::unique_ptr<Admin>> open(boost::asio::io_context& context, const std::string& address, AskText ask);
  ~Admin();
  Admin(const Admin&) = delete;
  Admin& operator=(const Admin&) = delete;
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  class State;
  Admin(std::shared_ptr<State> state, std::string address);
  std::shared_ptr<State> state_;
  std::string address_;
};

}  // namespace linkcpp::relay
