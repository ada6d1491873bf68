// One link to a backbone as the worker sees it, and a request that came over it.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/bytes.h"
#include "net/link.h"
#include "wire/messages.h"
#include "wire/program.h"

namespace linkcpp::worker {

using ProgramPtr = std::shared_ptr<const wire::Program>;

/// Touched by event handlers only, except `link`, whose send() may be called from anywhere.
struct Session {
  net::LinkPtr link;
  bool dialled = false;   ///< this side made the connection
  bool admitted = false;  ///< got its welcome
  bool over = false;      ///< refused, or its peer broke the protocol; frames are not looked at any more
  std::unique_ptr<boost::asio::steady_timer> welcome_deadline;
  std::unordered_map<std::uint64_t, ProgramPtr> programs;  ///< by digest; equal programs of all links are one object
  std::size_t queued_requests = 0, queued_bytes = 0;       ///< what waits for the compute thread
};
using SessionPtr = std::shared_ptr<Session>;

/// A request that waits to be computed.
struct Job {
  SessionPtr session;
  std::uint64_t request = 0;
  Bytes body;  ///< of the dispatch frame; `dispatch` points into it
  std::chrono::steady_clock::time_point arrived;
  wire::Dispatch dispatch;
  ProgramPtr program;
};

}  // namespace linkcpp::worker
