// The plugin's configuration file: every key is read, every mistake is named.
#include "swarm/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace linkcpp::swarm {
namespace {

using testing::HasSubstr;

class ConfigFile : public testing::Test {
 protected:
  Result<Config> read(const std::string& text) {
    std::ofstream(path_) << text;
    return Config::read(path_);
  }
  ~ConfigFile() override { std::filesystem::remove(path_); }
  const std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) / ("config-" + std::to_string(::getpid()) + ".json");
};

TEST_F(ConfigFile, ReadsEveryKey) {
  auto config = read(R"({"model":"/m.gguf","home":"/h","name":"n","listen":"0.0.0.0:1","workers":["a:1","b:2"],"mode":"sum","wire":"f16",
    "base":"Vulkan0","overlap":false,"repack":false,"deadline_ms":5,"resend_floor_ms":6,"keep_warm_ms":7,"status_fd":8})");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->model, "/m.gguf");
  EXPECT_EQ(config->home, "/h");
  EXPECT_THAT(config->listen, testing::ElementsAre("0.0.0.0:1"));
  EXPECT_THAT(config->workers, testing::ElementsAre("a:1", "b:2"));
  EXPECT_EQ(config->mode, wire::CombineMode::sum);
  EXPECT_EQ(config->wire, wire::RowType::f16);
  EXPECT_EQ(config->base, "Vulkan0");
  EXPECT_FALSE(config->overlap);
  EXPECT_FALSE(config->repack);
  EXPECT_EQ(config->deadline.count(), 5);
  EXPECT_EQ(config->resend_floor.count(), 6);
  EXPECT_EQ(config->keep_warm.count(), 7);
  EXPECT_EQ(config->status_fd, 8);
}

TEST_F(ConfigFile, NamesWhatIsWrong) {
  EXPECT_THAT(Config::read("/does/not/exist").error().message, HasSubstr("/does/not/exist"));
  EXPECT_THAT(read("not json").error().message, HasSubstr(path_.string()));
  EXPECT_THAT(read("{}").error().message, HasSubstr("model"));
  EXPECT_THAT(read(R"({"model":"m","colour":"red"})").error().message, HasSubstr("'colour'"));
  EXPECT_THAT(read(R"({"model":"m","mode":"fast"})").error().message, HasSubstr("fast"));
  EXPECT_THAT(read(R"({"model":"m","wire":"f8"})").error().message, HasSubstr("f8"));
  EXPECT_THAT(read(R"({"model":"m","deadline_ms":0})").error().message, HasSubstr("deadline_ms"));
  EXPECT_THAT(read(R"({"model":7})").error().message, HasSubstr("string"));
}

}  // namespace
}  // namespace linkcpp::swarm
