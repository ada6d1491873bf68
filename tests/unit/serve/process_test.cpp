#include "serve/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "serve/temp_dir.h"

namespace linkcpp::serve {
namespace {

using namespace std::chrono_literals;

Command shell(const std::string& script) { return {.argv = {"/bin/sh", "-c", script}}; }

TEST(Process, ReportsExitCodesAndSignals) {
  auto process = Process::start(shell("exit 7"));
  ASSERT_TRUE(process) << process.error().message;
  const auto status = process->wait(10s);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 7);
  EXPECT_EQ(status->describe(), "exited with code 7");

  auto killed = Process::start(shell("kill -9 $$"));
  ASSERT_TRUE(killed);
  ASSERT_TRUE(killed->wait(10s));
  EXPECT_EQ(killed->poll()->signal, SIGKILL);
  EXPECT_FALSE(killed->poll()->success());
}

TEST(Process, MissingProgramIsAnError) {
  auto process = Process::start({.argv = {"/no/such/program"}});
  ASSERT_FALSE(process);
  EXPECT_EQ(process.error().kind, ErrorKind::not_found);
  EXPECT_NE(process.error().message.find("/no/such/program"), std::string::npos);
}

TEST(Process, ChildHasOnlyTheDescriptorsItIsGiven) {
  const Fd leaky(::open("/etc/passwd", O_RDONLY));  // without close-on-exec, as libraries do
  ASSERT_TRUE(leaky);
  auto listed = capture(shell("ls /proc/self/fd | tr '\\n' ' '"), 10s);
  ASSERT_TRUE(listed) << listed.error().message;
  EXPECT_EQ(*listed, "0 1 2 3 ");  // 3 is what ls reads the folder with
}

TEST(Process, ExtraDescriptorArrivesAsThree) {
  auto channel = Channel::open();
  ASSERT_TRUE(channel);
  auto command = shell("echo hello >&3");
  command.extra = channel->theirs.get();
  auto process = Process::start(command);
  ASSERT_TRUE(process);
  ASSERT_TRUE(process->wait(10s));
  char buffer[16] = {};
  EXPECT_EQ(read(channel->ours.get(), buffer, sizeof buffer), 6);
  EXPECT_STREQ(buffer, "hello\n");
}

TEST(Process, EnvironmentChangesAreApplied) {
  setenv("LINKCPP_TEST_GONE", "here", 1);
  auto command = shell("echo \"${LINKCPP_TEST_GONE-gone} $LINKCPP_TEST_NEW\"");
  command.env = {{"LINKCPP_TEST_GONE", std::nullopt}, {"LINKCPP_TEST_NEW", "new"}};
  const auto printed = capture(command, 10s);
  ASSERT_TRUE(printed);
  EXPECT_EQ(*printed, "gone new\n");
}

TEST(Process, SignalsAreAtTheirDefaultsInTheChild) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto printed = capture(shell("grep SigIgn /proc/self/status"), 10s);
  ASSERT_TRUE(printed);
  const auto mask = std::strtoull(printed->c_str() + printed->find_first_of("0123456789abcdef", 7), nullptr, 16);
  EXPECT_EQ(mask >> (SIGPIPE - 1) & 1, 0u) << *printed;
}

TEST(Process, StopKillsWhatIgnoresTermination) {
  auto channel = Channel::open();
  ASSERT_TRUE(channel);
  auto command = shell("trap '' TERM; echo deaf; while :; do sleep 0.05; done");
  command.output = channel->theirs.get();
  auto process = Process::start(command);
  ASSERT_TRUE(process);
  char buffer[8];
  ASSERT_EQ(read(channel->ours.get(), buffer, sizeof buffer), 5);
  const auto begin = std::chrono::steady_clock::now();
  const auto status = process->stop(300ms);
  EXPECT_EQ(status.signal, SIGKILL);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 300ms);
}

TEST(Process, TerminatesOnlyOnce) {
  auto channel = Channel::open();
  ASSERT_TRUE(channel);
  auto command = shell("n=0; trap 'n=$((n+1))' TERM; echo on; i=0; while [ $i -lt 20 ]; do sleep 0.02; i=$((i+1)); done; exit $n");
  command.output = channel->theirs.get();
  auto process = Process::start(command);
  ASSERT_TRUE(process);
  char buffer[8];
  ASSERT_EQ(read(channel->ours.get(), buffer, sizeof buffer), 3);
  process->terminate();
  usleep(100'000);
  EXPECT_EQ(process->stop(10s).code, 1) << "llama-server takes a second SIGTERM as an order to drop everything";
}

TEST(Process, DestructionKillsAndReaps) {
  pid_t pid = -1;
  {
    auto process = Process::start(shell("exec sleep 100"));
    ASSERT_TRUE(process);
    pid = process->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0) << "neither running nor a zombie";
}

TEST(Process, ChildDiesWithItsParent) {
  // A grandchild, started by a child that is killed: the kernel must end it.
  const auto folder = TempDir::make("linkcpp-test");
  ASSERT_TRUE(folder);
  const auto pid_file = folder->path() / "pid";
  const pid_t middle = fork();
  if (middle == 0) {
    auto process = Process::start(
        shell("echo $$ >" + pid_file.string() + ".part; mv " + pid_file.string() + ".part " + pid_file.string() + "; exec sleep 100"));
    pause();
    _exit(0);
  }
  for (int i = 0; i < 200 && !std::filesystem::exists(pid_file); ++i) usleep(20'000);
  pid_t grandchild = 0;
  std::ifstream(pid_file) >> grandchild;
  ASSERT_GT(grandchild, 0);
  kill(middle, SIGKILL);
  int status = 0;
  waitpid(middle, &status, 0);
  const auto alive = [&] {
    std::ifstream stat("/proc/" + std::to_string(grandchild) + "/stat");
    std::string line;
    return std::getline(stat, line) && line.find(") Z") == std::string::npos;
  };
  for (int i = 0; i < 200 && alive(); ++i) usleep(20'000);
  EXPECT_FALSE(alive());
}

TEST(Capture, GivesUpAtTheLimitAndBoundsTheText) {
  const auto late = capture(shell("sleep 100"), 200ms);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::timeout);
  const auto much = capture(shell("head -c 1000000 /dev/zero"), 10s);
  ASSERT_TRUE(much);
  EXPECT_EQ(much->size(), 65536u);
}

TEST(TempDir, IsPrivateAndGoesAway) {
  std::filesystem::path path;
  {
    auto folder = TempDir::make("linkcpp-test");
    ASSERT_TRUE(folder);
    path = folder->path();
    struct stat info{};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    ASSERT_TRUE(write_private_file(path / "file", "text"));
    ASSERT_EQ(stat((path / "file").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_FALSE(write_private_file(path / "file", "again")) << "an existing file must not be followed";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace linkcpp::serve
