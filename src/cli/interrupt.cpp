#include "cli/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace linkcpp::cli {
namespace {

volatile std::sig_atomic_t caught = 0;  // a signal handler can reach nothing else

}  // namespace

void watch_interrupts() {
  struct sigaction action{};
  action.sa_handler = [](int) { caught = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

bool interrupted() { return caught != 0; }

}  // namespace linkcpp::cli
