#include "slice/cutter.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "base/bytes.h"
#include "engine/anatomy_file.h"
#include "engine/backbone_file.h"
#include "engine/new_file.h"
#include "slice/files.h"
#include "slice/journal.h"
#include "store/content_hash.h"
#include "store/store.h"
#include "wire/text.h"

namespace linkcpp::slice {
namespace {

namespace fs = std::filesystem;
using store::Digest;
using store::LayerSlices;
using store::SliceIndex;

constexpr std::size_t chunk_bytes = 128u << 10;
constexpr auto report_period = std::chrono::milliseconds(100);
constexpr std::uint64_t spare_bytes = 16u << 20;  // index, headers, the file system's own

std::unexpected<Error> interrupted() {
  return fail(ErrorKind::unavailable, "interrupted; what is done stays, run the same command again to go on");
}

bool has_object(const fs::path& folder, const Digest& digest, std::uint64_t bytes) {
  std::error_code error;
  const auto path = folder / store::object_name(digest);
  return fs::is_regular_file(path, error) && fs::file_size(path, error) == bytes && !error;
}

/// Runs jobs on several threads. The calling thread reports progress and passes on the first error.
class Crew {
 public:
  Crew(int threads, std::uint64_t total_bytes, const Progress& progress) : total_(total_bytes), progress_(progress) {
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    n_threads_ = threads > 0 ? static_cast<unsigned>(threads) : std::min(cores, 8u);
  }
  /// `work`: what one thread does, with its number, until jobs or patience end.
  Result<> run(const std::function<Result<>(unsigned)>& work) {
    unsigned running = n_threads_;
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < n_threads_; ++t) {
      threads.emplace_back([&, t] {
        auto done = work(t);
        const std::scoped_lock lock(mutex_);
        if (!done && !error_) error_ = std::move(done.error());
        if (!done) stop_ = true;
        --running;
        ended_.notify_one();
      });
    }
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, report_period, [&] { return running == 0; })) {
      if (progress_ && !progress_(done_, total_)) stop_ = true;
    }
    lock.unlock();
    threads.clear();
    if (error_) return std::unexpected(std::move(*error_));
    if (stop_) return interrupted();
    if (progress_ && !progress_(done_, total_)) return interrupted();
    return {};
  }
  void add_done(std::uint64_t bytes) { done_ += bytes; }
  [[nodiscard]] bool stopped() const { return stop_; }

 private:
  std::uint64_t total_;
  const Progress& progress_;
  unsigned n_threads_;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Error> error_;
};

/// Reads the bytes of slices of one model. One object a thread.
class SliceReader {
 public:
  SliceReader(const std::vector<fs::path>& paths, std::vector<engine::InputFile> files, Crew& crew)
      : paths_(paths), files_(std::move(files)), crew_(crew), buffer_(chunk_bytes) {}

  /// Hashes a slice, and writes it if `to` is given.
  Result<Digest> read(const LayerSlices& layer, std::uint32_t expert, engine::NewFile* to) {
    store::ContentHash hash;
    std::uint64_t at = 0;
    for (const store::FilePiece& piece : store::pieces_of(layer, expert, 0, layer.slice_bytes())) {
      if (piece.object_offset != at) {
        hash.add_zeros(piece.object_offset - at);
        crew_.add_done(piece.object_offset - at);
        constexpr std::array<std::byte, store::slice_alignment> zeros{};
        if (to != nullptr) {
          if (auto done = to->append(ByteSpan(zeros).first(piece.object_offset - at)); !done) return pass(done);
        }
      }
      if (auto done = copy(piece, hash, to); !done) return pass(done);
      at = piece.object_offset + piece.bytes;
    }
    return hash.finish();
  }

 private:
  Result<> copy(const store::FilePiece& piece, store::ContentHash& hash, engine::NewFile* to) {
    for (std::uint64_t at = 0; at < piece.bytes;) {
      if (crew_.stopped()) return interrupted();
      const auto part = std::span(buffer_).first(static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes, piece.bytes - at)));
      if (!files_[piece.file].read_at(piece.file_offset + at, part))
        return fail(ErrorKind::io, "{} cannot be read at byte {}.", paths_[piece.file].string(), piece.file_offset + at);
      hash.add(part);
      if (to != nullptr) {
        if (auto done = to->append(part); !done) return done;
      }
      at += part.size();
      crew_.add_done(part.size());
    }
    return {};
  }

  const std::vector<fs::path>& paths_;
  std::vector<engine::InputFile> files_;
  Crew& crew_;
  Bytes buffer_;
};

/// A slice of an index that is being filled.
struct Job {
  LayerSlices* layer;
  std::uint32_t expert;
};
std::vector<Job> jobs_of(SliceIndex& index) {
  std::vector<Job> jobs;
  for (LayerSlices& layer : index.layers) {
    for (std::uint32_t e = 0; e < layer.slices.size(); ++e) jobs.push_back({&layer, e});
  }
  return jobs;
}

/// Gives every job to some thread of the crew, with a reader of that thread's own: a descriptor for each thread keeps the kernel's
/// read-ahead sequential.
Result<> read_all(Crew& crew, const std::vector<fs::path>& paths, const std::vector<Job>& jobs,
                  const std::function<Result<>(const Job&, SliceReader&, unsigned thread)>& use) {
  std::atomic<std::size_t> next = 0;
  return crew.run([&](unsigned thread) -> Result<> {
    auto files = engine::InputFile::open_all(paths);
    if (!files) return pass(files);
    SliceReader reader(paths, std::move(*files), crew);
    for (std::size_t i = next++; i < jobs.size() && !crew.stopped(); i = next++) {
      if (auto done = use(jobs[i], reader, thread); !done) return done;
    }
    return {};
  });
}

/// A line that names the model and the state of its files.
std::string stamp_of(const engine::Anatomy& anatomy) {
  std::string stamp = "linkcpp cut 2 " + wire::to_hex(anatomy.digest);
  for (const auto& path : anatomy.files) {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) continue;
    stamp += std::format(" {}:{}.{:09}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return stamp;
}

/// Refuses a folder that holds something else than this model's slices.
Result<> check_folder(const engine::Anatomy& anatomy, const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return {};
  if (!fs::is_directory(folder, error))
    return fail(ErrorKind::invalid_input, "{} is not a folder; name another with --out.", folder.string());
  if (fs::is_empty(folder, error)) return {};
  if (fs::exists(folder / index_file_name, error)) {
    auto text = read_text(folder / index_file_name, store::max_index_bytes);
    if (!text) return pass(text);
    auto index = store::decode_index(*text);
    if (!index)
      return fail(ErrorKind::invalid_input, "{}: {}; remove the folder, or name another with --out.", (folder / index_file_name).string(),
                  index.error().message);
    if (index->model != anatomy.digest)
      return fail(ErrorKind::invalid_input, "{} holds slices of another model ({}); name another folder with --out.", folder.string(),
                  index->name.empty() ? index->architecture : index->name);
    return {};
  }
  if (fs::exists(folder / "cut.journal", error)) {
    auto text = read_text(folder / "cut.journal", 1u << 30);
    if (text && !text->starts_with("linkcpp cut 2 " + wire::to_hex(anatomy.digest)))
      return fail(ErrorKind::invalid_input, "{} holds the beginning of another model's slices; name another folder with --out.",
                  folder.string());
    return {};
  }
  return fail(ErrorKind::invalid_input, "{} is not empty and holds no slices of linkcpp; name a new folder with --out.", folder.string());
}

/// One run of cut().
class Cutting {
 public:
  Cutting(const engine::Anatomy& anatomy, const CutRequest& request, const Options& options, SliceIndex index, Journal journal)
      : anatomy_(anatomy), request_(request), options_(options), index_(std::move(index)), journal_(std::move(journal)) {}

  Result<CutResult> run() {
    take_known();
    if (auto room = check_room(); !room) return pass(room);
    if (auto cut = cut_slices(); !cut) return pass(cut);
    result_.index = store::encode_index(index_);
    result_.digest = store::index_digest(result_.index);
    if (auto written = write_index(); !written) return pass(written);
    if (request_.backbone) {
      if (auto written = engine::write_backbone(anatomy_, request_.folder, result_.digest, options_.progress); !written)
        return pass(written);
    }
    journal_.remove();
    std::error_code ignored;
    fs::remove_all(request_.folder / "cutting", ignored);
    return std::move(result_);
  }

 private:
  /// Leaves only jobs whose digest is not known, or whose object should be there and is not.
  void take_known() {
    for (const Job& job : jobs_of(index_)) {
      const bool write = engine::selects(request_.experts, job.layer->layer, job.expert);
      const auto known = journal_.known().find({job.layer->layer, static_cast<std::uint16_t>(job.expert)});
      const std::uint64_t bytes = job.layer->slice_bytes();
      if (known != journal_.known().end()) {
        job.layer->slices[job.expert] = known->second;
        const bool there = has_object(request_.folder, known->second, bytes);
        if (there && write) ++result_.kept;
        if (there || !write) continue;
      }
      jobs_.push_back(job);
      read_bytes_ += bytes;
      if (write) write_bytes_ += bytes;
    }
  }

  Result<> check_room() const {
    std::error_code error;
    const auto room = fs::space(request_.folder, error);
    const std::uint64_t needed = write_bytes_ + (request_.backbone ? engine::backbone_bytes(anatomy_) : 0) + spare_bytes;
    if (error || room.available >= needed) return {};
    return fail(
        ErrorKind::io,
        "the disk of {} is too full: {} MB are needed ({} MB of slices, {} MB of backbone), {} MB are free; make room, name a folder "
        "elsewhere with --out, or cut fewer experts with --experts.",
        request_.folder.string(), needed / 1'000'000, write_bytes_ / 1'000'000,
        request_.backbone ? engine::backbone_bytes(anatomy_) / 1'000'000 : 0, room.available / 1'000'000);
  }

  Result<> cut_slices() {
    Crew crew(options_.threads, read_bytes_, options_.progress);
    std::error_code ignored;
    fs::remove_all(request_.folder / "cutting", ignored);
    if (auto made = make_folder(request_.folder / "cutting"); !made) return made;
    return read_all(crew, anatomy_.files, jobs_,
                    [this](const Job& job, SliceReader& reader, unsigned thread) { return one(job, reader, thread); });
  }

  Result<> one(const Job& job, SliceReader& reader, unsigned thread) {
    std::optional<engine::NewFile> object;
    if (engine::selects(request_.experts, job.layer->layer, job.expert)) {
      auto created = engine::NewFile::create(request_.folder / "cutting" / std::to_string(thread));
      if (!created) return pass(created);
      object.emplace(std::move(*created));
    }
    auto digest = reader.read(*job.layer, job.expert, object ? &*object : nullptr);
    if (!digest) return pass(digest);
    const std::uint64_t bytes = job.layer->slice_bytes();
    const bool there = object && has_object(request_.folder, *digest, bytes);  // experts may be equal
    if (object && !there) {
      const fs::path path = request_.folder / store::object_name(*digest);
      if (auto made = make_folder(path.parent_path()); !made) return made;
      if (auto named = object->name(path); !named) return named;
    }
    const std::scoped_lock lock(mutex_);
    if (object && !there) ++result_.written, result_.written_bytes += bytes;
    if (there) ++result_.kept;
    job.layer->slices[job.expert] = *digest;
    journal_.add({job.layer->layer, static_cast<std::uint16_t>(job.expert)}, *digest);
    return {};
  }

  /// index.json, and the same under its digest where a store looks for indexes.
  Result<> write_index() {
    const fs::path indexes = request_.folder / "indexes";
    if (auto made = make_folder(indexes); !made) return made;
    if (auto done = write_text(indexes / (wire::to_hex(result_.digest) + ".json"), result_.index); !done) return done;
    return write_text(request_.folder / index_file_name, result_.index);
  }

  const engine::Anatomy& anatomy_;
  const CutRequest& request_;
  const Options& options_;
  SliceIndex index_;
  Journal journal_;
  std::vector<Job> jobs_;
  std::uint64_t read_bytes_ = 0, write_bytes_ = 0;
  std::mutex mutex_;
  CutResult result_;
};

store::SlicePart part_of(const engine::ExpertTensor& tensor, std::uint64_t object_offset) {
  return {.tensor = tensor.name,
          .type = tensor.type_name,
          .n_in = tensor.n_in,
          .n_out = tensor.n_out,
          .bytes = tensor.slice_bytes,
          .file = tensor.file,
          .file_offset = tensor.offset,
          .object_offset = object_offset};
}

/// Hashes an object; false if its bytes are not those that its name says.
Result<bool> is_sound(const fs::path& path, std::uint64_t bytes, const Digest& digest, Crew& crew, Bytes& buffer) {
  auto file = engine::InputFile::open(path);
  if (!file) return pass(file);
  if (file->size() != bytes) return false;
  store::ContentHash hash;
  for (std::uint64_t at = 0; at < bytes;) {
    if (crew.stopped()) return interrupted();
    const auto part = std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes, bytes - at)));
    if (!file->read_at(at, part)) return fail(ErrorKind::io, "{} cannot be read at byte {}.", path.string(), at);
    hash.add(part);
    at += part.size();
    crew.add_done(part.size());
  }
  return hash.finish() == digest;
}

}  // namespace

Result<SliceIndex> plan_index(const engine::Anatomy& anatomy) {
  if (anatomy.experts_absent)
    return fail(ErrorKind::invalid_input, "{} is a backbone without experts: there is nothing to cut; name the whole model.",
                anatomy.files[0].string());
  SliceIndex index{.model = anatomy.digest,
                   .architecture = anatomy.architecture,
                   .name = wire::plain_text(anatomy.name, wire::max_name_bytes),
                   .n_layer = anatomy.n_layer,
                   .n_embd = anatomy.n_embd,
                   .n_expert = anatomy.n_expert,
                   .top_k = anatomy.top_k,
                   .n_vocab = anatomy.n_vocab,
                   .shared_expert = anatomy.shared_expert,
                   .files = {},
                   .layers = {}};
  for (const auto& path : anatomy.files) {
    std::error_code error;
    index.files.push_back({path.filename().string(), fs::file_size(path, error)});
    if (error) return fail(ErrorKind::io, "{} cannot be read: {}.", path.string(), error.message());
  }
  for (const engine::MoeLayer& layer : anatomy.layers) {
    LayerSlices slices{.layer = layer.key, .parts = {}, .slices = {}};
    std::uint64_t end = 0;
    for (const engine::ExpertTensor& tensor : layer.tensors) {
      if (tensor.slice_bytes == 0 || tensor.slice_bytes != engine::slice_bytes_of(tensor))
        return fail(ErrorKind::invalid_input, "{} cannot be cut into slices: an expert of \"{}\" is no whole number of blocks of type {}.",
                    anatomy.files[0].string(), tensor.name, tensor.type_name);
      const std::uint64_t at = (end + store::slice_alignment - 1) / store::slice_alignment * store::slice_alignment;
      slices.parts.push_back(part_of(tensor, at));
      end = at + tensor.slice_bytes;
    }
    slices.slices.resize(layer.n_expert);
    index.layers.push_back(std::move(slices));
  }
  // The rules that a reader of the index will check; the text is of the right size and form, its digests are still zero.
  auto checked = store::decode_index(store::encode_index(index));
  if (!checked)
    return fail(ErrorKind::invalid_input, "{} cannot be cut into slices: {}.", anatomy.files[0].string(), checked.error().message);
  return index;
}

Result<SliceIndex> make_index(const engine::Anatomy& anatomy, const Options& options) {
  auto index = plan_index(anatomy);
  if (!index) return index;
  const std::vector<Job> jobs = jobs_of(*index);
  Crew crew(options.threads, index->total_bytes(), options.progress);
  auto hashed = read_all(crew, anatomy.files, jobs, [](const Job& job, SliceReader& reader, unsigned) -> Result<> {
    auto digest = reader.read(*job.layer, job.expert, nullptr);
    if (!digest) return pass(digest);
    job.layer->slices[job.expert] = *digest;
    return {};
  });
  if (!hashed) return pass(hashed);
  return index;
}

Result<CutResult> cut(const engine::Anatomy& anatomy, const CutRequest& request, const Options& options) {
  auto index = plan_index(anatomy);
  if (!index) return pass(index);
  if (auto fits = check_folder(anatomy, request.folder); !fits) return pass(fits);
  if (auto made = make_folder(request.folder); !made) return pass(made);
  auto journal = Journal::open(request.folder / "cut.journal", stamp_of(anatomy));
  if (!journal) return pass(journal);
  return Cutting(anatomy, request, options, std::move(*index), std::move(*journal)).run();
}

Result<Verified> verify(const fs::path& folder, const std::string& experts, const Options& options) {
  auto text = read_text(folder / index_file_name, store::max_index_bytes);
  if (!text) return pass(text);
  auto index = store::decode_index(*text);
  if (!index)
    return fail(ErrorKind::invalid_input, "{}: {}; slice the model again.", (folder / index_file_name).string(), index.error().message);
  std::uint32_t n_expert = 0;
  for (const LayerSlices& layer : index->layers) n_expert = std::max(n_expert, static_cast<std::uint32_t>(layer.slices.size()));
  auto ranges = engine::parse_expert_ranges(experts, n_expert);
  if (!ranges) return pass(ranges);
  const std::vector<Job> jobs = jobs_of(*index);
  Crew crew(options.threads, index->total_bytes(), options.progress);
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  Verified result;
  auto done = crew.run([&](unsigned) -> Result<> {
    Bytes buffer(chunk_bytes);
    for (std::size_t i = next++; i < jobs.size() && !crew.stopped(); i = next++) {
      const auto& [layer, expert] = jobs[i];
      const Digest& digest = layer->slices[expert];
      const fs::path path = folder / store::object_name(digest);
      const auto sound = is_sound(path, layer->slice_bytes(), digest, crew, buffer);
      const std::string name = std::format("layer {}, expert {}: {}", layer->layer & ~engine::chunk_experts_bit, expert, path.string());
      if (!sound && sound.error().kind != ErrorKind::not_found) return std::unexpected(sound.error());
      const std::scoped_lock lock(mutex);
      if (!sound) {
        if (!engine::selects(*ranges, layer->layer, expert)) continue;
        if (result.missing++ == 0) result.first_missing = name;
      } else if (*sound) {
        ++result.objects;
        result.bytes += layer->slice_bytes();
      } else {
        result.damaged.push_back(name);
        std::error_code ignored;
        fs::remove(path, ignored);
      }
    }
    return {};
  });
  if (!done) return pass(done);
  return result;
}

}  // namespace linkcpp::slice
