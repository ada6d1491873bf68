// Gives slices to workers that join with nothing but room: makes the model's slice index when first asked, and serves slices out of the
// model's own files (or out of the folder that `linkcpp slice` wrote).
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/error.h"
#include "engine/anatomy.h"
#include "fetch/server.h"

namespace linkcpp::serve {

struct SliceGiverOptions {
  std::string listen;  ///< "host:port"; empty: other sources give the slices, here is only the index
  net::Credentials credentials;
  std::filesystem::path index;  ///< where the plugin looks for the index; appears when it is made
};

/// Threading: all functions from one thread; `said` is called on a thread of its own.
class SliceGiver {
 public:
  using Said = std::function<void(const std::string& sentence)>;
  /// Listens at once. Fails with `io` or `invalid_input` if it cannot.
  static Result<std::unique_ptr<SliceGiver>> open(engine::Anatomy anatomy, SliceGiverOptions options, Said said);
  /// Cancels making the index.
  ~SliceGiver();

  /// Begins to make (or load) the index, once.
  void prepare();
  /// 0: it does not listen.
  [[nodiscard]] std::uint16_t port() const { return server_ ? server_->port() : std::uint16_t{0}; }
  /// Bytes of slices that were given.
  [[nodiscard]] std::uint64_t bytes() const { return server_ ? server_->counters().bytes() : 0; }

 private:
  SliceGiver(engine::Anatomy anatomy, SliceGiverOptions options, Said said)
      : anatomy_(std::move(anatomy)), options_(std::move(options)), said_(std::move(said)) {}
  void make();
  Result<> try_make();
  Result<> use_folder();
  Result<> use_model();

  engine::Anatomy anatomy_;
  SliceGiverOptions options_;
  Said said_;
  std::unique_ptr<fetch::SliceServer> server_;
  std::atomic<bool> cancelled_{false};
  std::thread thread_;
};

}  // namespace linkcpp::serve
