#include "serve/slice_giver.h"

#include <chrono>

#include "serve/text.h"
#include "slice/files.h"
#include "slice/index_file.h"
#include "store/store.h"

namespace linkcpp::serve {

Result<std::unique_ptr<SliceGiver>> SliceGiver::open(engine::Anatomy anatomy, SliceGiverOptions options, Said said) {
  std::unique_ptr<SliceGiver> giver(new SliceGiver(std::move(anatomy), std::move(options), std::move(said)));
  if (giver->options_.listen.empty()) return giver;
  auto server = fetch::SliceServer::open({.listen = giver->options_.listen, .credentials = giver->options_.credentials});
  if (!server) return pass(server);
  giver->server_ = std::move(*server);
  return giver;
}

SliceGiver::~SliceGiver() {
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
}

void SliceGiver::prepare() {
  if (!thread_.joinable()) thread_ = std::thread([this] { make(); });
}

void SliceGiver::make() {
  if (auto made = try_make(); !made && !cancelled_) said_("workers get no slices: " + made.error().message);
}

Result<> SliceGiver::try_make() { return anatomy_.experts_absent ? use_folder() : use_model(); }

/// The folder beside a backbone file is a store with its index.
Result<> SliceGiver::use_folder() {
  const std::filesystem::path folder = anatomy_.files[0].parent_path();
  auto text = slice::read_text(folder / slice::index_file_name, store::max_index_bytes);
  if (!text) return pass(text);
  auto store = store::Store::open(folder);
  if (!store) return pass(store);
  if (auto kept = (*store)->put_index(*text); !kept) return kept;
  if (server_) server_->add(fetch::provide_store(std::shared_ptr<const store::Store>(std::move(*store))));
  return slice::write_text(options_.index, *text);
}

Result<> SliceGiver::use_model() {
  auto last = std::chrono::steady_clock::now();
  slice::Options options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last > std::chrono::seconds(5)) {
      last = now;
      said_(std::format("hashing the experts, once for this model: {} of {}", human_bytes(static_cast<double>(done)),
                        human_bytes(static_cast<double>(total))));
    }
    return !cancelled_.load();
  };
  auto file = slice::load_or_make_index(anatomy_, options);
  if (!file) return pass(file);
  if (server_) {
    auto provider = fetch::provide_gguf(std::make_shared<const store::SliceIndex>(file->index), anatomy_.files);
    if (!provider) return pass(provider);
    server_->add(std::move(*provider));
  }
  return slice::write_text(options_.index, file->text);
}

}  // namespace linkcpp::serve
