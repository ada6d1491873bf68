// Which row type `linkcpp serve` uses: the one that was asked for, or with "auto" what the gate's record allows.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "gate/record.h"

namespace linkcpp::cli {

struct WireChoice {
  wire::RowType type = wire::RowType::f32;
  std::vector<std::string> notes;      ///< sentences for the operator: what was chosen and why, what is doubtful
  std::optional<gate::Record> record;  ///< that the choice rests on
  /// A sentence if a worker computes on a kind of device that the record does not cover, else empty.
  [[nodiscard]] std::string doubt(const std::string& worker, const std::string& device) const;
};

/// `requested`: a row type or "auto". Reads the records in HOME/gates that are signed by this backbone.
Result<WireChoice> choose_wire(const std::string& requested, wire::CombineMode mode, const wire::Digest& model,
                               const std::filesystem::path& home);

}  // namespace linkcpp::cli
