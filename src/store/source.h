// Where slices can be read from: a store, the model's own GGUF files, another node, a web server.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/error.h"
#include "store/index.h"
#include "store/store.h"

namespace linkcpp::store {

/// A slice that is wanted.
struct Wanted {
  SliceKey key;
  Digest digest{};
  std::uint64_t bytes = 0;  ///< of its object
};

/// The wanted slice's layer, if it is one of an index as it is wanted; null otherwise.
const LayerSlices* layer_with(const SliceIndex& index, const Wanted& wanted);

/// Threading: read() from any one thread at a time for each source object; cancel() from any thread.
class SliceSource {
 public:
  /// Takes the next bytes of the object; an error ends the transfer and is passed on.
  using Sink = std::function<Result<>(ByteSpan)>;
  virtual ~SliceSource() = default;
  /// For people: "the store /var/…", "worker bee at 192.0.2.7:41000", "https://example.org/model/".
  [[nodiscard]] virtual std::string describe() const = 0;
  /// Delivers bytes [offset, wanted.bytes) of the object in order. `not_found`: it does not have this slice (another may be there);
  /// `unavailable`, `timeout`, `io`: it failed, what was delivered counts; `invalid_input`, `unauthorized`, `incompatible`: it is of no
  /// use.
  virtual Result<> read(const Wanted& wanted, std::uint64_t offset, const Sink& sink) = 0;
  /// Makes a read() in progress and later ones fail with `unavailable` soon.
  virtual void cancel() noexcept {}
};

/// Slices of another store on this machine, for example a folder that `linkcpp slice` wrote.
std::unique_ptr<SliceSource> store_source(std::shared_ptr<const Store> store);

/// Slices out of the model's own GGUF files; `paths` in the order of index.files. Fails with `not_found` or `invalid_input` if a file is
/// missing or of another size than the index says.
Result<std::unique_ptr<SliceSource>> gguf_source(std::shared_ptr<const SliceIndex> index, std::vector<std::filesystem::path> paths);

}  // namespace linkcpp::store
