#include "relay/passed_link.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

namespace linkcpp::relay {

namespace asio = boost::asio;

PassedLink::PassedLink(Side caller, Side called, std::shared_ptr<std::uint64_t> all_bytes)
    : caller_(std::move(caller)),
      called_(std::move(called)),
      all_bytes_(std::move(all_bytes)),
      there_{.from = *caller_.pipe, .to = *called_.pipe, .rate = *caller_.rate, .all = *all_bytes_, .moved = Clock::now()},
      back_{.from = *called_.pipe, .to = *caller_.pipe, .rate = *called_.rate, .all = *all_bytes_, .moved = Clock::now()} {}

void PassedLink::start(std::function<void()> on_end) {
  on_end_ = std::move(on_end);
  running_ = 2;
  run(there_);
  run(back_);
}

void PassedLink::run(Flow& flow) {
  asio::co_spawn(
      flow.from.strand(),
      [self = shared_from_this(), &flow]() -> asio::awaitable<void> {
        if (auto passed = co_await pass_on(flow); !passed) self->close();
        if (--self->running_ > 0) co_return;
        self->close();
        if (const auto hook = std::exchange(self->on_end_, {})) hook();
      },
      asio::detached);
}

void PassedLink::close() {
  caller_.pipe->close();
  called_.pipe->close();
}

}  // namespace linkcpp::relay
