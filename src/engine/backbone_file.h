// The backbone without experts, as two files that the engine loads like any split model:
//
//   backbone-00001-of-00002.gguf   all metadata and every tensor but the routed experts, as in the model
//   backbone-00002-of-00002.gguf   the routed expert tensors: a header, then one hole. It costs no disk, and the first file
//                                  says how to make it again
//
// docs/slices.md is the specification.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "engine/anatomy.h"

namespace linkcpp::engine {

inline constexpr std::string_view key_model_digest = "linkcpp.model_digest";  ///< text, hex: of the model that was cut
inline constexpr std::string_view key_index_digest = "linkcpp.index_digest";  ///< text, hex: of the slice index; may be missing
inline constexpr std::string_view key_holes_header = "linkcpp.holes.header";  ///< array of u8: the first bytes of the second file
inline constexpr std::string_view key_holes_bytes = "linkcpp.holes.bytes";    ///< u64: length of the second file

inline constexpr std::string_view backbone_file_name = "backbone-00001-of-00002.gguf";
inline constexpr std::string_view holes_file_name = "backbone-00002-of-00002.gguf";

/// Called now and then with bytes done and of all; false cancels.
using CopyProgress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

/// Bytes that write_backbone() puts on the disk, but for its headers.
std::uint64_t backbone_bytes(const Anatomy& anatomy);

/// Writes both files into a folder, each under a temporary name until it is whole. Metadata is copied as it is encoded, but for the keys
/// of splitting. Fails with `io` (disk full, say), `unavailable` if cancelled, `invalid_input` if the model is a backbone already.
Result<> write_backbone(const Anatomy& anatomy, const std::filesystem::path& folder, const std::optional<wire::Digest>& index,
                        const CopyProgress& progress);

/// Makes the file of holes that belongs to a backbone's first file, if it is missing or of the wrong length; true if it had to.
/// Does nothing for other models. Fails with `invalid_input` if what the first file says cannot be.
Result<bool> restore_holes(const std::filesystem::path& backbone);

/// Files of an anatomy whose bytes are holes: those of which a mapping must not be made resident. Empty unless experts_absent.
std::vector<std::filesystem::path> hole_files(const Anatomy& anatomy);

}  // namespace linkcpp::engine
