// SIGINT, SIGTERM and SIGHUP for commands that work through something and look up now and then.
#pragma once

namespace linkcpp::cli {

/// From now on those signals only make interrupted() true.
void watch_interrupts();
[[nodiscard]] bool interrupted();

}  // namespace linkcpp::cli
