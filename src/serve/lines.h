// Cuts a byte stream into lines of bounded length.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linkcpp::serve {

/// Feed it bytes as they come; it calls back with each whole line, without its end. A line longer than the bound is handed on cut.
class LineCutter {
 public:
  explicit LineCutter(std::size_t longest) : longest_(longest) {}

  template <class OnLine>
  void feed(std::string_view bytes, OnLine&& on_line) {
    while (!bytes.empty()) {
      const auto end = bytes.find('\n');
      append(bytes.substr(0, end));
      if (end == std::string_view::npos) return;
      flush(on_line);
      bytes.remove_prefix(end + 1);
    }
  }
  /// Hands on what is left when the stream has ended.
  template <class OnLine>
  void finish(OnLine&& on_line) {
    if (!line_.empty()) flush(on_line);
  }

 private:
  void append(std::string_view part) { line_.append(part.substr(0, longest_ - line_.size())); }
  template <class OnLine>
  void flush(OnLine& on_line) {
    if (line_.ends_with('\r')) line_.pop_back();
    const std::string whole = std::move(line_);
    line_.clear();
    on_line(std::string_view(whole));
  }

  std::size_t longest_;
  std::string line_;
};

}  // namespace linkcpp::serve
