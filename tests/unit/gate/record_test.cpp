// Gate records: what is signed comes back; what was changed, cut or signed by others does not; the choice is the smallest that passed.
#include "gate/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gate/recording.h"

namespace linkcpp::gate {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

Record sample() {
  Record record{.model_name = "tiny", .engine = "ggml 0.27.0", .devices = {"CPU"}, .text_sha256 = "ab", .date = "2026-12-02T10:00:00Z"};
  record.model.fill(7);
  const auto row = [&](wire::CombineMode mode, wire::RowType type, bool passed) {
    record.rows.push_back({{mode, type}, {.rows = 100, .mean_kld = 1e-4}, passed, passed ? "" : "mean KLD too large"});
  };
  row(wire::CombineMode::raw, wire::RowType::f32, true);
  row(wire::CombineMode::sum, wire::RowType::f32, true);
  row(wire::CombineMode::sum, wire::RowType::f16, true);
  row(wire::CombineMode::sum, wire::RowType::int8, true);
  row(wire::CombineMode::sum, wire::RowType::fp8, false);
  return record;
}

class GateRecord : public ::testing::Test {
 protected:
  GateRecord() : mine_(*net::Identity::generate()), other_(*net::Identity::generate()) {
    folder_ = fs::path(::testing::TempDir()) /
              ("gates-" + std::to_string(::getpid()) + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  ~GateRecord() override { fs::remove_all(folder_); }
  net::Identity mine_, other_;
  fs::path folder_;
};

TEST_F(GateRecord, SealedComesBackWhole) {
  const auto text = seal(sample(), mine_);
  ASSERT_TRUE(text.has_value());
  const auto back = unseal(*text, mine_.key());
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->model, sample().model);
  EXPECT_EQ(back->devices, sample().devices);
  ASSERT_EQ(back->rows.size(), 5u);
  EXPECT_EQ(back->rows[3].setting, (Setting{wire::CombineMode::sum, wire::RowType::int8}));
  EXPECT_EQ(back->rows[3].figures.mean_kld, 1e-4);
  EXPECT_FALSE(back->rows[4].passed);
  EXPECT_EQ(back->rows[4].misses, "mean KLD too large");
}

TEST_F(GateRecord, ForeignAndChangedOnesAreRefused) {
  const std::string text = *seal(sample(), mine_);
  EXPECT_EQ(unseal(text, other_.key()).error().kind, ErrorKind::unauthorized);
  std::string changed = text;
  const auto at = changed.find("\"passed\": false");
  ASSERT_NE(at, std::string::npos);
  changed.replace(at, 15, "\"passed\": true ");
  EXPECT_THAT(unseal(changed, mine_.key()).error().message, HasSubstr("changed after it was signed"));
}

TEST_F(GateRecord, NoDamageIsAcceptedOrCrashes) {
  const std::string text = *seal(sample(), mine_);
  for (std::size_t n = 0; n < text.size() - 2; n += 3) EXPECT_FALSE(unseal(text.substr(0, n), mine_.key()).has_value()) << n;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const auto back = unseal(changed, mine_.key());
    if (back) {  // white space alone may differ
      EXPECT_EQ(back->rows[4].passed, false) << i;
    }
  }
  for (const char* odd : {"", "[]", "null", "{\"record\":1}", "{\"record\":{},\"key\":1,\"signature\":2}", "\xff\xfe"}) {
    EXPECT_FALSE(unseal(odd, mine_.key()).has_value()) << odd;
  }
}

TEST_F(GateRecord, FilesAreFoundByModelAndEngine) {
  ASSERT_TRUE(save(folder_, sample(), mine_).has_value());
  Record later = sample();
  later.devices = {"CPU", "Vulkan0"};
  later.date = "2026-12-03T10:00:00Z";
  ASSERT_TRUE(save(folder_, later, mine_).has_value());
  Record foreign = sample();
  foreign.devices = {"Metal"};
  ASSERT_TRUE(save(folder_, foreign, other_).has_value());
  Record newer = sample();
  newer.engine = "ggml 0.28.0";
  ASSERT_TRUE(save(folder_, newer, mine_).has_value());
  const Found found = find_records(folder_, sample().model, "ggml 0.27.0", mine_.key());
  EXPECT_EQ(found.records.size(), 2u);
  ASSERT_EQ(found.problems.size(), 1u);
  EXPECT_THAT(found.problems[0], HasSubstr("another backbone"));
  EXPECT_TRUE(find_records(folder_ / "nowhere", sample().model, "ggml 0.27.0", mine_.key()).records.empty());
  wire::Digest another{};
  EXPECT_TRUE(find_records(folder_, another, "ggml 0.27.0", mine_.key()).records.empty());
}

TEST_F(GateRecord, TheSmallestThatPassedInThisModeIsChosen) {
  const std::vector<Record> records{sample()};
  EXPECT_EQ(choose(records, wire::CombineMode::sum)->type, wire::RowType::int8) << "fp8 is smaller, but failed";
  EXPECT_EQ(choose(records, wire::CombineMode::raw)->type, wire::RowType::f32);
  EXPECT_FALSE(choose({}, wire::CombineMode::sum).has_value());
  std::vector<Record> two{sample(), sample()};
  two[1].date = "2026-12-03T10:00:00Z";
  for (auto& row : two[1].rows) row.passed = false;
  EXPECT_EQ(choose(two, wire::CombineMode::sum)->type, wire::RowType::f32) << "the latest record decides";
}

TEST_F(GateRecord, CoverageIsByKindOfDevice) {
  EXPECT_EQ(device_kind("CPU (AMD EPYC), 1 threads"), "CPU");
  EXPECT_EQ(device_kind("Vulkan0 (Some Card), 8 threads"), "Vulkan");
  EXPECT_EQ(device_kind("RPC0[192.0.2.1:50052]"), "RPC0[192.0.2.1:50052]");
  EXPECT_EQ(device_kind("CPU arm64 (Some Processor), 2 threads"), "CPU arm64");
  EXPECT_EQ(device_kind("Vulkan12 arm64 (A Card)"), "Vulkan arm64");
  EXPECT_EQ(device_kind("CPU arm64"), "CPU arm64");
  EXPECT_EQ(device_kind("7"), "7");
  EXPECT_EQ(device_kind(""), "");
  EXPECT_TRUE(covers(sample(), "CPU"));
  EXPECT_FALSE(covers(sample(), "Vulkan"));
  EXPECT_FALSE(covers(sample(), "CPU arm64"));
}

TEST_F(GateRecord, NamesAreSafeFileNames) {
  Record odd = sample();
  odd.devices = {"../../x", "a b"};
  EXPECT_EQ(record_name(odd).find('/'), std::string::npos);
  EXPECT_TRUE(record_name(odd).ends_with(".json"));
}

TEST_F(GateRecord, RecordingsCompareAndRefuseWhatDoesNotFit) {
  fs::create_directories(folder_);
  const std::string path = (folder_ / "a.logits").string();
  const std::vector<float> row{1, 2, 3};
  auto recorder = Recorder::create(path, 3, "{}");
  ASSERT_TRUE(recorder.has_value());
  ASSERT_TRUE((*recorder)->group("chunk 0", 2).has_value());
  for (const int target : {1, 2}) ASSERT_TRUE((*recorder)->row(target, row).has_value());
  ASSERT_TRUE((*recorder)->finish().has_value());
  const auto compare = [&](const std::string& label, std::uint32_t n_rows, std::int32_t target) -> Result<Figures> {
    auto comparer = Comparer::open(path, 3);
    if (!comparer) return pass(comparer);
    if (auto begun = (*comparer)->group(label, n_rows); !begun) return pass(begun);
    for (std::uint32_t i = 0; i < n_rows; ++i) {
      if (auto taken = (*comparer)->row(target + static_cast<std::int32_t>(i), row); !taken) return pass(taken);
    }
    if (auto done = (*comparer)->finish(); !done) return pass(done);
    return (*comparer)->comparison().figures();
  };
  EXPECT_TRUE(compare("chunk 0", 2, 1)->identical());
  EXPECT_THAT(compare("chunk 1", 2, 1).error().message, HasSubstr("no group 'chunk 1'"));
  EXPECT_THAT(compare("chunk 0", 2, 0).error().message, HasSubstr("text differs"));
  EXPECT_THAT(Comparer::open(path, 4).error().message, HasSubstr("vocabulary of 3"));
  for (std::uintmax_t n = 0; n < fs::file_size(path); ++n) {  // cut off anywhere
    fs::resize_file(path, fs::file_size(path) - 1);
    EXPECT_FALSE(compare("chunk 0", 2, 1).has_value());
  }
}

}  // namespace
}  // namespace linkcpp::gate
