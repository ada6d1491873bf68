// Identities and secrets in the home folder.
#include "net/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include "net/token.h"

namespace linkcpp::net {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class IdentityTest : public testing::Test {
 protected:
  IdentityTest() {
    std::string name = (fs::temp_directory_path() / "linkcpp-identity-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    home_ = root_ / "deep" / "home";
  }
  ~IdentityTest() override { fs::remove_all(root_); }
  static unsigned mode(const fs::path& path) {
    struct stat status{};
    ::stat(path.c_str(), &status);
    return status.st_mode & 07777;
  }
  void write(const fs::path& path, const std::string& text) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
  }
  fs::path root_, home_;
};

TEST_F(IdentityTest, IsCreatedOncePrivateAndKept) {
  const auto first = Identity::load_or_create(home_);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(mode(home_), 0700u);
  EXPECT_EQ(mode(home_ / "identity.pem"), 0600u);
  const auto second = Identity::load_or_create(home_);
  ASSERT_TRUE(second);
  EXPECT_EQ(first->key(), second->key());
  EXPECT_EQ(std::distance(fs::directory_iterator(home_), {}), 1) << "a temporary file was left";
  EXPECT_NE(first->key(), Identity::generate()->key());
}

TEST_F(IdentityTest, ShortNameIsTheStartOfTheBase32Key) {
  PeerKey key;
  for (std::size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(short_name(key), "aaaqeayeau");
}

TEST_F(IdentityTest, RefusesAFileThatOthersCanRead) {
  ASSERT_TRUE(Identity::load_or_create(home_));
  ::chmod((home_ / "identity.pem").c_str(), 0640);
  const auto identity = Identity::load_or_create(home_);
  ASSERT_FALSE(identity);
  EXPECT_EQ(identity.error().kind, ErrorKind::invalid_input);
  EXPECT_THAT(identity.error().message, HasSubstr("chmod 600"));
}

TEST_F(IdentityTest, RefusesDamagedFiles) {
  ASSERT_TRUE(Identity::load_or_create(home_));
  std::string whole;
  std::getline(std::ifstream(home_ / "identity.pem"), whole, '\0');
  const std::size_t certificate = whole.find("-----BEGIN CERTIFICATE");
  ASSERT_NE(certificate, std::string::npos);
  ASSERT_TRUE(Identity::load_or_create(root_ / "other"));
  std::string other;
  std::getline(std::ifstream(root_ / "other" / "identity.pem"), other, '\0');

  for (const std::string& text :
       {std::string(), std::string("rubbish"), whole.substr(0, 40), whole.substr(0, certificate), whole.substr(certificate),
        whole.substr(0, certificate) + other.substr(other.find("-----BEGIN CERTIFICATE"))}) {
    write(home_ / "identity.pem", text);
    const auto identity = Identity::load_or_create(home_);
    ASSERT_FALSE(identity) << text;
    EXPECT_EQ(identity.error().kind, ErrorKind::invalid_input);
    EXPECT_THAT(identity.error().message, HasSubstr("is damaged"));
  }
  write(home_ / "identity.pem", std::string(100'000, 'x'));
  EXPECT_THAT(Identity::load_or_create(home_).error().message, HasSubstr("too long"));
  write(home_ / "identity.pem", whole);
  EXPECT_TRUE(Identity::load_or_create(home_));
}

TEST_F(IdentityTest, AFolderInPlaceOfTheFileIsAnError) {
  fs::create_directories(home_ / "identity.pem");
  EXPECT_EQ(Identity::load_or_create(home_).error().kind, ErrorKind::invalid_input);
  write(root_ / "file", "");
  EXPECT_EQ(Identity::load_or_create(root_ / "file").error().kind, ErrorKind::io);
}

TEST_F(IdentityTest, ProcessesThatStartAtOnceAgree) {
  for (int round = 0; round < 10; ++round) {
    const fs::path home = root_ / std::format("round{}", round);
    int gate[2], keys[2];
    ASSERT_EQ(::pipe(gate), 0);
    ASSERT_EQ(::pipe(keys), 0);
    constexpr int n_processes = 6;
    for (int i = 0; i < n_processes; ++i) {
      if (::fork() != 0) continue;
      ::close(gate[1]);
      char byte;
      [[maybe_unused]] auto ignored = ::read(gate[0], &byte, 1);  // returns when the parent closes the gate
      PeerKey key;
      if (auto identity = Identity::load_or_create(home)) key = identity->key();
      auto secret = load_or_create_secret(home);
      ignored = ::write(keys[1], key.bytes.data(), key.bytes.size());
      ::_exit(secret ? 0 : 1);
    }
    ::close(gate[0]);
    ::close(gate[1]);
    std::set<PeerKey> seen;
    for (int i = 0; i < n_processes; ++i) {
      PeerKey key;
      ASSERT_EQ(::read(keys[0], key.bytes.data(), key.bytes.size()), 32);
      seen.insert(key);
      int status = 0;
      ::wait(&status);
      EXPECT_EQ(status, 0);
    }
    ::close(keys[0]);
    ::close(keys[1]);
    EXPECT_EQ(seen.size(), 1u);
    EXPECT_FALSE(seen.contains(PeerKey{}));
    EXPECT_EQ(Identity::load_or_create(home)->key(), *seen.begin());
    EXPECT_EQ(std::distance(fs::directory_iterator(home), {}), 2);
  }
}

TEST_F(IdentityTest, SecretIsCreatedOnceAndChecked) {
  const auto first = load_or_create_secret(home_);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(mode(home_ / "swarm.secret"), 0600u);
  EXPECT_EQ(load_or_create_secret(home_).value(), *first);
  EXPECT_NE(load_or_create_secret(root_ / "other").value(), *first);
  for (const char* text :
       {"", "short", "not!base64not!base64not!base64not!base64not", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}) {
    write(home_ / "swarm.secret", text);
    const auto damaged = load_or_create_secret(home_);
    ASSERT_FALSE(damaged) << text;
    EXPECT_EQ(damaged.error().kind, ErrorKind::invalid_input);
    EXPECT_THAT(damaged.error().message, HasSubstr("swarm.secret is damaged"));
  }
}

TEST_F(IdentityTest, HomeFolderFollowsTheOrder) {
  ::setenv("LINKCPP_HOME", "/a", 1);
  ::setenv("XDG_CONFIG_HOME", "/b", 1);
  ::setenv("HOME", "/c", 1);
  EXPECT_EQ(home_folder("/x"), "/x");
  EXPECT_EQ(home_folder(), "/a");
  ::unsetenv("LINKCPP_HOME");
  EXPECT_EQ(home_folder(), "/b/linkcpp");
  ::setenv("XDG_CONFIG_HOME", "relative", 1);
  EXPECT_EQ(home_folder(), "/c/.config/linkcpp");
}

}  // namespace
}  // namespace linkcpp::net
