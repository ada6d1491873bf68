#include "worker/provisioner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "fetch/fetcher.h"
#include "fetch/http_source.h"
#include "fetch/server.h"
#include "net/endpoint.h"
#include "store/source.h"
#include "store/store.h"
#include "worker/slice_layer.h"

namespace linkcpp::worker {
namespace {

using store::SliceIndex;
constexpr const char* current_name = "current";  // in the store's folder: digest of the index that was assigned last
constexpr auto index_retry = std::chrono::seconds(2);
constexpr const char* behind_relay =
    "the backbone is reached through a relay, which carries no slices: name a web server with them on the backbone's side "
    "(linkcpp serve --source URL), or give this worker a model file";
/// What is asked first: web servers that the backbone's operator named spare the backbone's own line.
enum Tier { own_disk, peers, web, the_backbone };

std::vector<wire::LayerHolding> stored_of(const SliceIndex& index, const store::Store& store) {
  std::vector<wire::LayerHolding> stored;
  for (const store::LayerSlices& layer : index.layers) {
    wire::LayerHolding holding = wire::empty_holding(layer.layer, static_cast<std::uint16_t>(layer.slices.size()));
    const std::uint64_t bytes = layer.slice_bytes();
    for (std::uint32_t e = 0; e < layer.slices.size(); ++e) {
      if (store.has(layer.slices[e], bytes)) holding.add(e);
    }
    if (holding.count() > 0) stored.push_back(std::move(holding));
  }
  return stored;
}

/// What is left to arrive of one layer.
struct Pending {
  std::size_t missing = 0;
  ArrivedLayer layer;
};

/// An assignment with everything that it takes to carry it out.
struct Work {
  wire::Assign assign;
  std::string host;
  net::PeerKey backbone;
};

class StoreProvisioner final : public Provisioner {
 public:
  StoreProvisioner(ProvisionOptions options, std::shared_ptr<store::Store> store, std::function<void()> wake)
      : options_(std::move(options)), store_(std::move(store)), wake_(std::move(wake)) {}

  ~StoreProvisioner() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    fetcher_.reset();
  }

  Result<> start() {
    if (!options_.share.empty()) {
      auto server =
          fetch::SliceServer::open({.listen = options_.share, .credentials = credentials(std::nullopt)}, {fetch::provide_store(store_)});
      if (!server) return pass(server);
      server_ = std::move(*server);
      spdlog::info("giving slices to other nodes on {}", server_->address());
    }
    recall();
    thread_ = std::thread([this] { serve(); });
    return {};
  }

  [[nodiscard]] wire::Offer offer() const override {
    wire::Offer offer{.budget = options_.budget, .share_port = server_ ? server_->port() : std::uint16_t{0}};
    const std::lock_guard lock(mutex_);
    if (!index_) return offer;
    offer.model = index_->model;
    offer.stored = stored_of(*index_, *store_);
    return offer;
  }

  void assign(wire::Assign assign, const std::string& host, const net::PeerKey& backbone) override {
    {
      const std::lock_guard lock(mutex_);
      work_ = Work{std::move(assign), host, backbone};
    }
    changed_.notify_all();
  }

  std::optional<ArrivedLayer> take() override {
    const std::lock_guard lock(mutex_);
    if (arrived_.empty()) return std::nullopt;
    ArrivedLayer layer = std::move(arrived_.front());
    arrived_.pop_front();
    return layer;
  }

  [[nodiscard]] std::optional<wire::Digest> model() const override {
    const std::lock_guard lock(mutex_);
    return model_;
  }

  [[nodiscard]] ProvisionProgress progress() const override {
    std::shared_ptr<fetch::Fetcher> fetcher;
    {
      const std::lock_guard lock(mutex_);
      fetcher = fetcher_;
    }
    if (!fetcher) return {};
    const fetch::FetchProgress p = fetcher->progress();
    return {p.bytes_done, p.bytes, p.fetched(), p.bytes_per_second, p.seconds_left};
  }

 private:
  [[nodiscard]] net::Credentials credentials(std::optional<net::PeerKey> peer) const {
    return {options_.identity, options_.secret, peer, false};
  }

  // ---- what was held last -----------------------------------------------------------------------------------------------

  /// The index of the last assignment: what is stored of it is offered first, so that nothing travels twice.
  void recall() {
    std::ifstream in(store_->folder() / current_name);
    std::string hex;
    if (!(in >> hex)) return;
    const auto digest = wire::digest_from_hex(hex);
    if (!digest) return;
    const auto text = store_->index(*digest);
    if (!text) return;
    auto index = store::decode_index(*text);
    if (!index) return;
    index_ = std::make_shared<const SliceIndex>(std::move(*index));
  }

  void remember(const wire::Digest& index) const {
    const std::filesystem::path path = store_->folder() / current_name, fresh = path.string() + ".new";
    std::ofstream(fresh) << wire::to_hex(index) << '\n';
    std::error_code ignored;  // without it the next start offers nothing, and finds the slices all the same
    std::filesystem::rename(fresh, path, ignored);
  }

  // ---- carrying out -------------------------------------------------------------------------------------------------------

  void serve() {
    for (;;) {
      Work work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || work_.has_value(); });
        if (stopping_) return;
        work = std::move(*std::exchange(work_, std::nullopt));
      }
      if (auto done = carry_out(work); !done) {
        spdlog::error("the assignment cannot be carried out: {}", done.error().message);
      }
    }
  }

  /// True if a new assignment has come or everything ends.
  bool interrupted(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, wait, [this] { return stopping_ || work_.has_value(); });
  }

  Result<> carry_out(const Work& work) {
    auto index = obtain_index(work);
    if (!index) return pass(index);
    if (!*index) return {};
    if ((*index)->model != work.assign.model)
      return fail(ErrorKind::invalid_input, "the slice index is that of another model than the backbone's");
    std::vector<store::Wanted> wanted;
    std::map<wire::Digest, std::vector<std::uint16_t>> awaited;
    std::map<std::uint16_t, Pending> pending;
    if (auto planned = plan(work.assign, **index, wanted, awaited, pending); !planned) return planned;
    remember(work.assign.index);
    std::shared_ptr<fetch::Fetcher> former;
    {
      const std::lock_guard lock(mutex_);
      model_ = work.assign.model;
      index_ = *index;
      pending_ = std::move(pending);
      awaited_ = std::move(awaited);
      former = std::exchange(fetcher_, nullptr);
    }
    former.reset();
    begin(work, *index, wanted);
    return {};
  }

  void begin(const Work& work, const std::shared_ptr<const SliceIndex>& index, const std::vector<store::Wanted>& wanted) {
    std::shared_ptr<fetch::Fetcher> fetcher =
        fetch::Fetcher::start(store_, {.parallel = options_.parallel, .plan = {}},
                              {.on_slice = [this](const store::Wanted& slice) { on_slice(slice); },
                               .on_problem = [](const std::string& problem) { spdlog::warn("fetching: {}", problem); }});
    for (fetch::Source& source : sources(work, index)) fetcher->add(std::move(source));
    fetcher->want(wanted);
    const std::lock_guard lock(mutex_);
    fetcher_ = std::move(fetcher);
  }

  /// From the store, else from whoever has it; asks again until it is there. Null if something newer has come meanwhile.
  Result<std::shared_ptr<const SliceIndex>> obtain_index(const Work& work) {
    if (auto text = store_->index(work.assign.index)) return decoded(*text);
    std::string said;
    do {
      for (const wire::SliceSourceAddress& source : work.assign.sources) {
        auto text = index_from(source, work);
        if (text && store::index_digest(*text) == work.assign.index) {
          if (auto kept = store_->put_index(*text); !kept) return pass(kept);
          return decoded(*text);
        }
        const std::string why = text ? source.url + " has another slice index than the backbone's" : text.error().message;
        if (why != said) spdlog::warn("no slice index yet: {}", why);
        said = why;
      }
    } while (!interrupted(index_retry));
    return std::shared_ptr<const SliceIndex>();
  }

  Result<std::string> index_from(const wire::SliceSourceAddress& source, const Work& work) const {
    const std::string url = located(source, work.host);
    if (url.empty()) return fail(ErrorKind::unavailable, "{}", behind_relay);
    if (url.starts_with("lks://")) {
      return fetch::http_get(url + "/v1/indexes/" + wire::to_hex(work.assign.index), store::max_index_bytes, {},
                             credentials(net::PeerKey{source.key}));
    }
    if (!url.ends_with("/")) return fail(ErrorKind::not_found, "{} is not a folder of slices", url);
    return fetch::http_get(url + "index.json", store::max_index_bytes);
  }

  static Result<std::shared_ptr<const SliceIndex>> decoded(const std::string& text) {
    auto index = store::decode_index(text);
    if (!index) return pass(index);
    return std::make_shared<const SliceIndex>(std::move(*index));
  }

  /// "lks://:7103" is the backbone itself. Empty: it is behind a relay, where its slices are not.
  static std::string located(const wire::SliceSourceAddress& source, const std::string& host) {
    constexpr std::string_view own = "lks://:";
    if (!source.url.starts_with(own)) return source.url;
    if (host.empty()) return {};
    const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
    return "lks://" + shown + source.url.substr(own.size() - 1);
  }

  Result<> plan(const wire::Assign& assign, const SliceIndex& index, std::vector<store::Wanted>& wanted,
                std::map<wire::Digest, std::vector<std::uint16_t>>& awaited, std::map<std::uint16_t, Pending>& pending) const {
    for (const wire::LayerHolding& all : wire::united(assign.urgent, assign.spare)) {
      const store::LayerSlices* slices = index.find(all.layer);
      if (slices == nullptr || slices->slices.size() != all.n_expert)
        return fail(ErrorKind::invalid_input, "{} experts of layer {} are assigned, which the slice index does not have", all.n_expert,
                    all.layer);
      auto layer = layer_of(*slices);
      if (!layer) return pass(layer);
      Pending& p = pending[all.layer];
      p.layer = {std::move(*layer), all, reader(*slices)};
      for (std::uint32_t e = 0; e < all.n_expert; ++e) {
        if (!all.has(e)) continue;
        std::vector<std::uint16_t>& layers = awaited[slices->slices[e]];
        if (std::ranges::contains(layers, all.layer)) continue;  // equal experts are one object
        layers.push_back(all.layer);
        ++p.missing;
      }
    }
    for (const auto* part : {&assign.urgent, &assign.spare}) {
      for (const wire::LayerHolding& holding : *part) {
        const store::LayerSlices& slices = *index.find(holding.layer);
        for (std::uint16_t e = 0; e < holding.n_expert; ++e) {
          if (holding.has(e)) wanted.push_back({{holding.layer, e}, slices.slices[e], slices.slice_bytes()});
        }
      }
    }
    return {};
  }

  /// Reads out of the objects of one layer.
  engine::SliceReader reader(const store::LayerSlices& slices) const {
    return [store = store_, digests = slices.slices](const engine::ExpertTensor& tensor, std::uint32_t expert, std::span<std::byte> to) {
      return store->read(digests.at(expert), tensor.offset, to);
    };
  }

  std::vector<fetch::Source> sources(const Work& work, const std::shared_ptr<const SliceIndex>& index) const {
    std::vector<fetch::Source> sources;
    if (auto own = own_file(index)) sources.push_back(std::move(*own));
    for (const wire::SliceSourceAddress& address : work.assign.sources) {
      const std::string url = located(address, work.host);
      if (url.empty()) {
        spdlog::warn("{}", behind_relay);
        continue;
      }
      const net::PeerKey key{address.key};
      if (key == options_.identity.key()) continue;
      const bool node = url.starts_with("lks://");
      auto credentials = node ? std::optional(this->credentials(key)) : std::nullopt;
      if (auto possible = fetch::http_source(url, {}, index, credentials); !possible) {
        spdlog::warn("a source of slices cannot be used: {}", possible.error().message);
        continue;
      }
      const int tier = !node ? web : key == work.backbone ? the_backbone : peers;
      sources.push_back({url, tier, [url, index, credentials] { return fetch::http_source(url, {}, index, credentials); }});
    }
    return sources;
  }

  std::optional<fetch::Source> own_file(const std::shared_ptr<const SliceIndex>& index) const {
    if (options_.model.empty()) return std::nullopt;
    auto anatomy = engine::read_anatomy(options_.model);
    if (!anatomy || anatomy->digest != index->model || anatomy->files.size() != index->files.size()) {
      spdlog::warn("'{}' is no source of slices: {}", options_.model.string(), anatomy ? "it is another model" : anatomy.error().message);
      return std::nullopt;
    }
    auto open = [index, files = anatomy->files] { return store::gguf_source(index, files); };
    if (auto possible = open(); !possible) {
      spdlog::warn("'{}' is no source of slices: {}", options_.model.string(), possible.error().message);
      return std::nullopt;
    }
    return fetch::Source{options_.model.string(), own_disk, std::move(open)};
  }

  void on_slice(const store::Wanted& slice) {
    bool complete = false;
    {
      const std::lock_guard lock(mutex_);
      const auto awaited = awaited_.find(slice.digest);
      if (awaited == awaited_.end()) return;
      for (const std::uint16_t layer : awaited->second) {
        const auto pending = pending_.find(layer);
        if (pending == pending_.end() || --pending->second.missing != 0) continue;
        arrived_.push_back(std::move(pending->second.layer));
        pending_.erase(pending);
        complete = true;
      }
      awaited_.erase(awaited);
    }
    if (complete) wake_();
  }

  const ProvisionOptions options_;
  const std::shared_ptr<store::Store> store_;
  const std::function<void()> wake_;
  std::unique_ptr<fetch::SliceServer> server_;

  mutable std::mutex mutex_;  ///< of everything below
  std::condition_variable changed_;
  std::optional<Work> work_;
  std::shared_ptr<const SliceIndex> index_;
  std::optional<wire::Digest> model_;
  std::map<std::uint16_t, Pending> pending_;
  std::map<wire::Digest, std::vector<std::uint16_t>> awaited_;  ///< layers that an object is missing from
  std::deque<ArrivedLayer> arrived_;
  std::shared_ptr<fetch::Fetcher> fetcher_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Provisioner>> Provisioner::open(ProvisionOptions options, std::function<void()> wake) {
  auto store = store::Store::open(options.store);
  if (!store) return pass(store);
  auto provisioner =
      std::make_unique<StoreProvisioner>(std::move(options), std::shared_ptr<store::Store>(std::move(*store)), std::move(wake));
  if (auto started = provisioner->start(); !started) return pass(started);
  return provisioner;
}

}  // namespace linkcpp::worker
