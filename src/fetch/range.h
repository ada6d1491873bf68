// The Range header of HTTP (RFC 9110, 14): one range of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace linkcpp::fetch {

struct ByteRange {
  std::uint64_t offset = 0, bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

enum class RangeVerdict { whole, part, unsatisfiable };

/// What of an object of `size` bytes a Range header asks for. Headers that are malformed or ask for several ranges count as none, as the
/// RFC allows.
RangeVerdict parse_range(std::string_view header, std::uint64_t size, ByteRange& range);

}  // namespace linkcpp::fetch
