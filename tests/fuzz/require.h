// What all fuzzers share: promises that end the run when they are broken, and first inputs for the corpus.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <format>
#include <fstream>
#include <string>

#include "base/bytes.h"

namespace linkcpp::fuzz {

/// A broken promise is a finding: the fuzzer keeps the input.
inline void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

/// Writes sound inputs as first members of the corpus into $LINKCPP_FUZZ_SEEDS, if that is set (scripts/fuzz sets it). From these the
/// fuzzer reaches in seconds what it would hardly guess: magic numbers, counts that fit, sources that exist.
/// Call it from LLVMFuzzerInitialize, which runs before the corpus is read.
class SeedFolder {
 public:
  void add(const char* name, const Bytes& input) const {
    const char* folder = std::getenv("LINKCPP_FUZZ_SEEDS");
    if (folder == nullptr) return;
    std::ofstream file(std::format("{}/seed-{}", folder, name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  }
};

}  // namespace linkcpp::fuzz
