// Texts that a peer sends end up in terminals, logs and JSON: what may be in them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linkcpp::wire {

/// Whether a text is well-formed UTF-8 without control characters (U+0000–001F, U+007F–009F: they steer terminals and forge log lines).
bool is_plain_text(std::string_view text);

/// A plain text of at most max_bytes: control characters and malformed bytes become '?', and it is cut between characters.
/// A plain text that is short enough stays as it is.
std::string plain_text(std::string_view text, std::size_t max_bytes);

}  // namespace linkcpp::wire
