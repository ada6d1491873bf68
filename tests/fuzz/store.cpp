// Fuzzes the slice store: a program of receiving, losing, damaging, restarting. Whatever happened, what the store calls an object has the
// bytes of its name unless somebody damaged it afterwards, and an error leaves the store usable.
#include "store/store.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "require.h"
#include "store/content_hash.h"
#include "support/gguf_builder.h"

namespace {

namespace fs = std::filesystem;
using linkcpp::Bytes;
using linkcpp::ByteSpan;
using linkcpp::fuzz::require;
using namespace linkcpp::store;

constexpr std::size_t n_objects = 4;

/// The bytes of a program, taken one after the other; zeros behind its end.
class Tape {
 public:
  explicit Tape(ByteSpan bytes) : bytes_(bytes) {}
  [[nodiscard]] bool done() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (done()) return 0;
    const auto value = std::to_integer<std::uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }
  ByteSpan take(std::size_t n) {
    const auto part = bytes_.first(std::min(n, bytes_.size()));
    bytes_ = bytes_.subspan(part.size());
    return part;
  }

 private:
  ByteSpan bytes_;
};

struct Object {
  Bytes content;
  Digest digest{};
  bool damaged = false;  ///< by us, since it was committed
  std::unique_ptr<Incoming> incoming;
};

Bytes content_of(std::size_t number) {
  Bytes content(number == 0 ? 1 : 97 * number * number);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * (2 * number + 1) + number);
  return content;
}

class World {
 public:
  World() {
    for (std::size_t i = 0; i < n_objects; ++i) {
      objects_[i].content = content_of(i);
      objects_[i].digest = content_hash(objects_[i].content);
    }
    open();
  }

  void step(std::uint8_t operation, Tape& tape) {
    Object& object = objects_[operation / 16 % n_objects];
    switch (operation % 16) {
      case 0:
        return receive(object);
      case 1:
        return append(object, sound_part(object, tape.byte()));
      case 2:
        return append(object, tape.take(tape.byte()));  // of anything
      case 3:
        return commit(object);
      case 4:
        if (object.incoming) object.incoming->discard();
        return;
      case 5:
        object.incoming.reset();
        return;
      case 6:
        return restart();
      case 7:
        if (!object.incoming) damage(partial(object), tape);  // nobody else may write what is locked
        return;
      case 8:
        return damage_object(object, tape);
      case 9:
        return verify(object);
      case 10:
        return remove(object);
      case 11:
        return read(object, tape.byte(), tape.byte());
      case 12:
        return put_index(tape);
      case 13:
        return stray(tape);
      case 14:
        return everything(object);
      default:
        (void)store_->usage();
    }
  }

  void check() {
    for (Object& object : objects_) {
      const bool there = store_->has(object.digest, object.content.size());
      if (there && !object.damaged) require(bytes_of(store_->path_of(object.digest)) == object.content, "an object has its bytes");
    }
  }

 private:
  void open() {
    auto opened = Store::open(folder_ / "store", {.reserve_bytes = 0});
    require(opened.has_value(), "the store opens, whatever lies in its folder");
    store_ = std::move(*opened);
  }
  void restart() {
    for (Object& object : objects_) object.incoming.reset();
    store_.reset();
    open();
  }
  void receive(Object& object) {
    auto incoming = store_->receive(object.digest, object.content.size());
    if (!incoming) return require(!incoming.error().message.empty(), "an error has a message");
    require((*incoming)->have() <= object.content.size(), "no more is there than the object has");
    object.incoming = std::move(*incoming);
  }
  [[nodiscard]] static ByteSpan sound_part(const Object& object, std::size_t n) {
    if (!object.incoming) return {};
    const auto rest = ByteSpan(object.content).subspan(static_cast<std::size_t>(object.incoming->have()));
    return rest.first(std::min(n, rest.size()));
  }
  static void append(Object& object, ByteSpan bytes) {
    if (!object.incoming) return;
    const std::uint64_t before = object.incoming->have();
    const bool fits = bytes.size() <= object.content.size() - before;
    const auto done = object.incoming->append(bytes);
    if (!fits) require(!done, "more bytes than the object has are refused");
    require(object.incoming->have() == before + (done ? bytes.size() : 0), "what was taken is counted");
  }
  void commit(Object& object) {
    if (!object.incoming) return;
    const bool was_there = fs::exists(store_->path_of(object.digest));
    const auto done = object.incoming->commit();
    object.incoming.reset();
    if (!done) return;
    require(store_->has(object.digest, object.content.size()) || was_there, "a committed object is there");
    if (!was_there) object.damaged = false;
  }
  void everything(Object& object) {
    object.incoming.reset();
    receive(object);
    append(object, sound_part(object, object.content.size()));
    commit(object);
  }
  [[nodiscard]] fs::path partial(const Object& object) const {
    return store_->folder() / "partial" / store_->path_of(object.digest).filename();
  }
  /// Cuts a file, or changes bytes of it, or puts something else in its place.
  static bool damage(const fs::path& path, Tape& tape) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return false;
    const std::uint8_t how = tape.byte(), at = tape.byte();
    const std::uint64_t size = fs::file_size(path);
    if (how % 3 == 0) {
      fs::resize_file(path, how % 2 == 0 ? size * at / 256 : size + at);
    } else {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(size * at / 256));
      file.put(static_cast<char>(how));
    }
    return true;
  }
  void damage_object(Object& object, Tape& tape) {
    if (damage(store_->path_of(object.digest), tape)) object.damaged = true;
  }
  void verify(Object& object) {
    const bool right = bytes_of(store_->path_of(object.digest)) == object.content;
    const auto done = store_->verify(object.digest, object.content.size());
    require(done.has_value() == right, "verifying tells sound objects from others");
    if (!done) require(!store_->has(object.digest, object.content.size()), "a damaged object is removed");
    object.damaged = false;
  }
  void remove(Object& object) {
    if (store_->remove(object.digest)) require(!store_->has(object.digest, object.content.size()), "a removed object is gone");
    object.damaged = false;
  }
  void read(const Object& object, std::size_t offset, std::size_t n) {
    Bytes to(n);
    const auto done = store_->read(object.digest, offset, to);
    if (!done || object.damaged || n == 0) return;
    require(offset + n <= object.content.size(), "nothing behind an object's end is read");
    require(std::equal(to.begin(), to.end(), object.content.begin() + static_cast<std::ptrdiff_t>(offset)), "what is read is the object's");
  }
  void put_index(Tape& tape) {
    const ByteSpan bytes = tape.take(tape.byte());
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!store_->put_index(text)) return;
    const auto found = store_->index(index_digest(text));
    require(found && *found == text, "an index that was put is found");
  }
  /// Things that are not ours lie in the folder.
  void stray(Tape& tape) {
    const std::string name = std::string(tape.byte() % 2 == 0 ? "partial/" : "objects/") + static_cast<char>('a' + tape.byte() % 16);
    std::error_code error;
    if (tape.byte() % 2 == 0)
      fs::create_directories(store_->folder() / name, error);
    else
      std::ofstream(store_->folder() / name) << "stray";
  }
  [[nodiscard]] static std::optional<Bytes> bytes_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(text));
    return Bytes(bytes.begin(), bytes.end());
  }

  linkcpp::test::ScratchFolder folder_;
  std::unique_ptr<Store> store_;
  Object objects_[n_objects];
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const auto program = [](std::initializer_list<int> bytes) {
    Bytes result;
    for (const int byte : bytes) result.push_back(static_cast<std::byte>(byte));
    return result;
  };
  const linkcpp::fuzz::SeedFolder seeds;
  seeds.add("whole", program({0x1e, 0x19, 0x1b, 0, 90, 0x18, 1, 40, 0x19, 0x1e}));
  seeds.add("resumed", program({0x20, 0x21, 200, 0x25, 0x06, 0x20, 0x21, 255, 0x23, 0x29}));
  seeds.add("damaged", program({0x30, 0x31, 255, 0x35, 0x37, 1, 9, 0x30, 0x31, 255, 0x31, 255, 0x31, 255, 0x31, 255, 0x33, 0x3e, 0x39}));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 512) return -1;
  World world;
  Tape tape(std::as_bytes(std::span(data, size)));
  while (!tape.done()) {
    world.step(tape.byte(), tape);
    world.check();
  }
  return 0;
}
