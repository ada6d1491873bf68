#include "serve/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace linkcpp::serve {
namespace {

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 10 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { clear(); }

void Progress::state(std::string_view text, bool tick) {
  if (quiet_) return;
  if (terminal_) {
    const auto cut = text.substr(0, terminal_width() - 10);  // a line that wraps could not be rewritten in place
    std::fprintf(stderr, "\r\033[Klinkcpp: %.*s", static_cast<int>(cut.size()), cut.data());
    std::fflush(stderr);
    shown_ = true;
  } else if (!tick && text != last_) {
    std::fprintf(stderr, "linkcpp: %.*s\n", static_cast<int>(text.size()), text.data());
  }
  last_ = text;
}

void Progress::line(std::string_view text) {
  if (quiet_) return;
  clear();
  std::fprintf(stderr, "linkcpp: %.*s\n", static_cast<int>(text.size()), text.data());
}

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace linkcpp::serve
