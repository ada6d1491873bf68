// Progress for people: one line that is rewritten in place on a terminal, or a line at each change elsewhere.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace linkcpp::serve {

/// Writes to standard error. Quiet ones say nothing.
class Progress {
 public:
  explicit Progress(bool quiet = false);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The current state. Shown in place on a terminal; elsewhere only if it differs from the last one and is not a mere tick.
  void state(std::string_view text, bool tick = false);
  /// A line that stays.
  void line(std::string_view text);
  /// Ends the line that is shown in place, leaving nothing of it.
  void clear();

 private:
  bool quiet_;
  bool terminal_;
  bool shown_ = false;
  std::string last_;
};

}  // namespace linkcpp::serve
