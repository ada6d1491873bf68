// An object that is arriving: its partial file, the lock on it, and its hash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "store/store.h"

namespace linkcpp::store {

struct IncomingPaths {
  std::filesystem::path partial, object;
};

/// Takes the partial file, or makes it. `reserve`: StoreOptions.
Result<std::unique_ptr<Incoming>> open_incoming(IncomingPaths paths, const Digest& digest, std::uint64_t bytes, std::uint64_t reserve);
/// One that is whole already.
std::unique_ptr<Incoming> whole_incoming(std::uint64_t bytes);

}  // namespace linkcpp::store
