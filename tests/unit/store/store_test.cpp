#include "store/store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "store/content_hash.h"

namespace linkcpp::store {
namespace {

namespace fs = std::filesystem;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    std::string pattern = (fs::temp_directory_path() / "linkcpp-store-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    store_ = *Store::open(folder_);
  }
  ~StoreTest() override { fs::remove_all(folder_); }
  static Bytes random_bytes(std::size_t n, unsigned seed = 1) {
    std::mt19937 random(seed);
    Bytes bytes(n);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  fs::path partial(const Digest& digest) const { return folder_ / "partial" / wire::to_hex(digest); }
  Bytes stored(const Digest& digest, std::size_t n) const {
    Bytes back(n);
    EXPECT_TRUE(store_->read(digest, 0, back));
    return back;
  }
  fs::path folder_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, ReceivesInPiecesSmallAndLarge) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{100'000}, std::size_t{20} << 20}) {
    const Bytes bytes = random_bytes(n);
    const Digest digest = content_hash(bytes);
    EXPECT_FALSE(store_->has(digest, n));
    auto incoming = store_->receive(digest, n);
    ASSERT_TRUE(incoming) << incoming.error().message;
    for (std::size_t at = 0; at < n; at += 777'777) {
      EXPECT_EQ((*incoming)->have(), at);
      ASSERT_TRUE((*incoming)->append(ByteSpan(bytes).subspan(at, std::min<std::size_t>(777'777, n - at))));
    }
    EXPECT_FALSE(store_->has(digest, n));
    ASSERT_TRUE((*incoming)->commit());
    EXPECT_TRUE(store_->has(digest, n));
    EXPECT_EQ(stored(digest, n), bytes);
    EXPECT_FALSE(fs::exists(partial(digest)));
    EXPECT_TRUE(store_->verify(digest, n));
  }
  EXPECT_EQ(store_->usage().objects, 3u);
}

TEST_F(StoreTest, ResumesWhereItWasLeftAndNeedsAllBytes) {
  const Bytes bytes = random_bytes(9 << 20);
  const Digest digest = content_hash(bytes);
  {
    auto incoming = store_->receive(digest, bytes.size());
    ASSERT_TRUE((*incoming)->append(ByteSpan(bytes).first(5'000'001)));
    EXPECT_EQ((*incoming)->commit().error().kind, ErrorKind::unavailable);
  }
  auto incoming = store_->receive(digest, bytes.size());
  ASSERT_EQ((*incoming)->have(), 5'000'001u);
  ASSERT_TRUE((*incoming)->append(ByteSpan(bytes).subspan(5'000'001)));
  ASSERT_TRUE((*incoming)->commit());
  EXPECT_EQ(stored(digest, bytes.size()), bytes);
}

TEST_F(StoreTest, SurvivesKillAtAnyByte) {
  const Bytes bytes = random_bytes(3 << 20);
  const Digest digest = content_hash(bytes);
  std::mt19937 random(7);
  std::uint64_t sent = 0;
  for (int attempt = 0; attempt < 200 && !store_->has(digest, bytes.size()); ++attempt) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const std::size_t stop_after = random() % (1 << 20);
    const pid_t child = ::fork();
    if (child == 0) {
      auto incoming = store_->receive(digest, bytes.size());
      std::size_t at = static_cast<std::size_t>((*incoming)->have());
      const std::size_t end = std::min(bytes.size(), at + stop_after);
      while (at < end) {
        const std::size_t n = std::min<std::size_t>(4096, end - at);
        (void)!(*incoming)->append(ByteSpan(bytes).subspan(at, n));
        at += n;
        (void)!::write(pipe[1], &n, sizeof n);
      }
      if (at == bytes.size()) (void)!(*incoming)->commit();
      ::kill(::getpid(), SIGKILL);
    }
    ::close(pipe[1]);
    std::size_t n = 0;
    while (::read(pipe[0], &n, sizeof n) == sizeof n) sent += n;
    ::close(pipe[0]);
    ::waitpid(child, nullptr, 0);
  }
  ASSERT_TRUE(store_->has(digest, bytes.size()));
  EXPECT_EQ(sent, bytes.size());
  EXPECT_EQ(stored(digest, bytes.size()), bytes);
}

TEST_F(StoreTest, ThrowsWrongBytesAway) {
  const Bytes bytes = random_bytes(9 << 20), other = random_bytes(9 << 20, 2);
  const Digest digest = content_hash(bytes);
  auto incoming = store_->receive(digest, bytes.size());
  ASSERT_TRUE((*incoming)->append(other));
  EXPECT_EQ((*incoming)->append(ByteSpan(bytes).first(1)).error().kind, ErrorKind::invalid_input) << "more than the slice has";
  EXPECT_EQ((*incoming)->commit().error().kind, ErrorKind::invalid_input);
  EXPECT_FALSE(fs::exists(partial(digest)));
  EXPECT_FALSE(store_->has(digest, bytes.size()));
}

TEST_F(StoreTest, OneWriterAtATime) {
  const Bytes bytes = random_bytes(1000);
  const Digest digest = content_hash(bytes);
  auto first = store_->receive(digest, bytes.size());
  auto other_store = *Store::open(folder_);
  EXPECT_EQ(other_store->receive(digest, bytes.size()).error().kind, ErrorKind::unavailable);
  ASSERT_TRUE((*first)->append(bytes));
  ASSERT_TRUE((*first)->commit());
  auto second = other_store->receive(digest, bytes.size());
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)->have(), bytes.size());
  EXPECT_TRUE((*second)->commit());
}

TEST_F(StoreTest, TruncatedObjectsAndDamagedOnes) {
  const Bytes bytes = random_bytes(1000);
  const Digest digest = content_hash(bytes);
  const auto put = [&] {
    auto incoming = store_->receive(digest, bytes.size());
    ASSERT_TRUE((*incoming)->append(bytes));
    ASSERT_TRUE((*incoming)->commit());
  };
  put();
  fs::resize_file(store_->path_of(digest), 999);
  EXPECT_FALSE(store_->has(digest, bytes.size()));
  EXPECT_FALSE(fs::exists(store_->path_of(digest)));
  put();
  std::fstream(store_->path_of(digest), std::ios::in | std::ios::out | std::ios::binary).write("wrong", 5);
  EXPECT_EQ(store_->verify(digest, bytes.size()).error().kind, ErrorKind::invalid_input);
  EXPECT_FALSE(store_->has(digest, bytes.size()));
  // A partial file that is longer than the object is not of it.
  std::ofstream(partial(digest)) << std::string(2000, 'x');
  put();
  EXPECT_EQ(stored(digest, bytes.size()), bytes);
}

TEST_F(StoreTest, FullDiskIsSaidBeforeAnythingIsWritten) {
  auto careful = *Store::open(folder_, {.reserve_bytes = std::uint64_t{1} << 62});
  auto incoming = careful->receive(content_hash({}), 1000);
  ASSERT_FALSE(incoming);
  EXPECT_EQ(incoming.error().kind, ErrorKind::io);
  EXPECT_NE(incoming.error().message.find("needs 1000 more bytes"), std::string::npos) << incoming.error().message;
  EXPECT_EQ(careful->usage().partials, 0u);
  EXPECT_EQ(store_->receive(content_hash({}), 0).error().kind, ErrorKind::invalid_input);
  EXPECT_EQ(store_->receive(content_hash({}), max_slice_bytes + 1).error().kind, ErrorKind::invalid_input);
}

TEST_F(StoreTest, Indexes) {
  ASSERT_TRUE(store_->put_index("some text"));
  ASSERT_TRUE(store_->put_index("some text"));
  EXPECT_EQ(*store_->index(index_digest("some text")), "some text");
  EXPECT_EQ(store_->index(index_digest("other")).error().kind, ErrorKind::not_found);
}

}  // namespace
}  // namespace linkcpp::store
