// Small pieces of text for people: safe to print, with units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace linkcpp::serve {

/// The text with control characters replaced by '?': names and reasons come from peers, and must not drive a terminal.
std::string printable(std::string_view text);

/// "512 B", "12.3 KB", "1.2 MB" (powers of 1000).
std::string human_bytes(double bytes);
/// "850 us", "1.24 ms", "3.1 s".
std::string human_time_us(double microseconds);

/// The argument as a shell would need it typed.
std::string shell_quote(std::string_view argument);

/// Right-aligned columns (the first one left-aligned), two spaces apart, a line a row; the first row is the heading.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace linkcpp::serve
