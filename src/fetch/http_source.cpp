#include "fetch/http_source.h"

#include <algorithm>
#include <array>

#include "fetch/http_client.h"

namespace linkcpp::fetch {
namespace {

using store::Wanted;

/// A web server or node that has whole objects.
class ObjectSource final : public store::SliceSource {
 public:
  ObjectSource(Url base, HttpKnobs knobs, std::optional<net::Credentials> credentials)
      : base_(std::move(base)), client_(knobs, std::move(credentials)) {}
  [[nodiscard]] std::string describe() const override { return base_.text(); }

  Result<> read(const Wanted& wanted, std::uint64_t offset, const Sink& sink) override {
    if (offset >= wanted.bytes) return {};
    Url url = base_;
    if (base_.scheme == "lks") {
      url.target = "/v1/slices/" + wire::to_hex(wanted.digest);
    } else {
      const std::string path = base_.path();
      url.target = path + (path.ends_with('/') ? "" : "/") + store::object_name(wanted.digest) + base_.target.substr(path.size());
    }
    return client_.get_range(url, offset, wanted.bytes - offset, sink);
  }
  void cancel() noexcept override { client_.cancel(); }

 private:
  Url base_;
  HttpClient client_;
};

/// A web server that has the model's own files: objects are put together from ranges of them.
class GgufWebSource final : public store::SliceSource {
 public:
  GgufWebSource(Url base, HttpKnobs knobs, std::shared_ptr<const store::SliceIndex> index)
      : base_(std::move(base)), knobs_(knobs), index_(std::move(index)), client_(knobs, std::nullopt) {}
  [[nodiscard]] std::string describe() const override { return base_.text(); }

  Result<> read(const Wanted& wanted, std::uint64_t offset, const Sink& sink) override {
    const store::LayerSlices* layer = store::layer_with(*index_, wanted);
    if (layer == nullptr) return fail(ErrorKind::not_found, "slice {} is not one of this model's", wire::to_hex(wanted.digest));
    if (offset >= wanted.bytes) return {};
    const auto pieces = pieces_of(*layer, wanted.key.expert, offset, wanted.bytes - offset);
    std::uint64_t at = offset;
    for (std::size_t i = 0; i < pieces.size();) {
      std::size_t end = i + 1;  // pieces [i, end) come in one request
      while (end < pieces.size() && pieces[end].file == pieces[i].file && follows(pieces[end - 1], pieces[end])) ++end;
      if (auto got = fetch(std::span(pieces).subspan(i, end - i), at, sink); !got) return got;
      i = end;
    }
    return zeros(at, wanted.bytes, sink);
  }
  void cancel() noexcept override { client_.cancel(); }

 private:
  [[nodiscard]] bool follows(const store::FilePiece& a, const store::FilePiece& b) const {
    const std::uint64_t end = a.file_offset + a.bytes;
    return b.file_offset >= end && b.file_offset - end <= knobs_.coalesce_gap;
  }

  [[nodiscard]] Url url_of(std::uint32_t file) const {
    Url url = base_;
    if (index_->files.size() == 1) return url;  // whatever it is called there
    const std::string path = base_.path();
    url.target = path.substr(0, path.rfind('/') + 1) + encode_component(index_->files[file].name) + base_.target.substr(path.size());
    return url;
  }

  /// Delivers pieces of one file, with the zeros before each.
  Result<> fetch(std::span<const store::FilePiece> pieces, std::uint64_t& at, const Sink& sink) {
    const std::uint64_t first = pieces.front().file_offset, last = pieces.back().file_offset + pieces.back().bytes;
    std::uint64_t file_at = first;
    std::size_t current = 0;
    return client_.get_range(url_of(pieces.front().file), first, last - first, [&](ByteSpan part) -> Result<> {
      while (!part.empty() && current < pieces.size()) {
        const auto& piece = pieces[current];
        if (file_at < piece.file_offset) {  // between two pieces
          const auto skip = static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), piece.file_offset - file_at));
          part = part.subspan(skip);
          file_at += skip;
          continue;
        }
        if (auto filled = zeros(at, std::max(at, piece.object_offset), sink); !filled) return filled;
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), piece.file_offset + piece.bytes - file_at));
        if (auto taken = sink(part.first(n)); !taken) return taken;
        part = part.subspan(n);
        file_at += n;
        at += n;
        if (file_at == piece.file_offset + piece.bytes) ++current;
      }
      return {};
    });
  }

  static Result<> zeros(std::uint64_t& at, std::uint64_t until, const Sink& sink) {
    static constexpr std::array<std::byte, 4096> block{};
    while (at < until) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), until - at));
      if (auto taken = sink(ByteSpan(block).first(n)); !taken) return taken;
      at += n;
    }
    return {};
  }

  Url base_;
  HttpKnobs knobs_;
  std::shared_ptr<const store::SliceIndex> index_;
  HttpClient client_;
};

}  // namespace

Result<std::unique_ptr<store::SliceSource>> http_source(const std::string& url, HttpKnobs knobs,
                                                        std::shared_ptr<const store::SliceIndex> index,
                                                        std::optional<net::Credentials> credentials) {
  auto parsed = parse_url(url);
  if (!parsed) return pass(parsed);
  if (parsed->scheme == "lks" && !credentials) {
    return fail(ErrorKind::invalid_input, "{} is a node of a swarm: the join token is needed to ask it", url);
  }
  if (parsed->scheme != "lks" && parsed->path().ends_with(".gguf")) {
    if (!index) return fail(ErrorKind::invalid_input, "slices come out of {} only with the model's slice index", url);
    return std::make_unique<GgufWebSource>(std::move(*parsed), knobs, std::move(index));
  }
  return std::make_unique<ObjectSource>(std::move(*parsed), knobs, std::move(credentials));
}

Result<std::string> http_get(const std::string& url, std::uint64_t max_bytes, HttpKnobs knobs,
                             std::optional<net::Credentials> credentials) {
  auto parsed = parse_url(url);
  if (!parsed) return pass(parsed);
  return HttpClient(knobs, std::move(credentials)).get_all(*parsed, max_bytes);
}

}  // namespace linkcpp::fetch
