#include "serve/status.h"

#include <gtest/gtest.h>

#include "serve/account_view.h"
#include "serve/lines.h"
#include "serve/plugin_config.h"
#include "serve/statistics.h"
#include "serve/temp_dir.h"
#include "serve/text.h"
#include "swarm/config.h"

namespace linkcpp::serve {
namespace {

Json event(const char* text) { return Json::parse(text); }

TEST(SwarmStatus, FollowsTheEvents) {
  SwarmStatus status;
  status.apply(event(R"({"event":"listening","address":"0.0.0.0:7101"})"));
  status.apply(event(R"({"event":"coverage","complete":false,"missing":"layer 0: experts 3-5"})"));
  EXPECT_FALSE(status.complete());
  EXPECT_EQ(status.missing(), "layer 0: experts 3-5");
  status.apply(event(
      R"({"event":"worker_joined","name":"w","key":"k","endpoint":"1.2.3.4:5","transport":"tcp","device":"CPU","experts":"all","held":96})"));
  status.apply(event(R"({"event":"coverage","complete":true,"missing":""})"));
  status.apply(event(R"({"event":"ready"})"));
  EXPECT_TRUE(status.complete());
  EXPECT_TRUE(status.engine_ready());
  EXPECT_EQ(status.live_workers(), 1u);
  status.apply(event(R"({"event":"worker_draining","name":"w"})"));
  EXPECT_EQ(status.workers().at("w").state, "draining");
  status.apply(event(R"({"event":"account","passes":3,"total":{"steps":12}})"));
  EXPECT_EQ(status.account()["passes"], 3);
  status.apply(event(R"({"event":"worker_left","name":"w","reason":"connection reset"})"));
  EXPECT_EQ(status.live_workers(), 0u);
  const auto json = status.to_json();
  EXPECT_EQ(json["workers"][0]["reason"], "connection reset");
  EXPECT_EQ(json["workers"][0]["held"], 96);
  EXPECT_EQ(json["listen"], "0.0.0.0:7101");
}

TEST(SwarmStatus, RestartForgetsWhatThatEngineHad) {
  SwarmStatus status;
  status.apply(event(R"({"event":"worker_joined","name":"w"})"));
  status.apply(event(R"({"event":"coverage","complete":true})"));
  status.restarted();
  EXPECT_FALSE(status.complete());
  EXPECT_EQ(status.live_workers(), 0u);
}

TEST(SwarmStatus, WrongTypesAndStrangersAreIgnored) {
  SwarmStatus status;
  for (const char* text : {R"({"event":"coverage","complete":"yes","missing":7})", R"({"event":"worker_left","name":"nobody"})",
                           R"({"event":"worker_joined","name":3,"held":-1})", R"({"event":"something new"})", R"({"event":"listening"})"}) {
    status.apply(event(text));
  }
  EXPECT_FALSE(status.complete());
  EXPECT_EQ(status.to_json()["coverage"]["missing"], "");
}

TEST(SwarmStatus, WorkersThatComeAndGoDoNotFillMemory) {
  SwarmStatus status;
  for (int i = 0; i < 20'000; ++i) {
    const auto name = std::to_string(i);
    status.apply({{"event", "worker_joined"}, {"name", name}});
    status.apply({{"event", "worker_left"}, {"name", name}});
  }
  EXPECT_LE(status.workers().size(), 4096u);
  status.apply({{"event", "worker_joined"}, {"name", "last"}});
  EXPECT_TRUE(status.workers().contains("last"));
}

TEST(ParseEvent, NamesWhatIsNotOne) {
  EXPECT_TRUE(parse_event(R"({"event":"ready"})"));
  for (const char* text : {"", "{", "[]", "7", R"({"event":1})", R"({"evnt":"ready"})"}) EXPECT_FALSE(parse_event(text)) << text;
  EXPECT_EQ(parse_event("\033[2J").error().message.find('\033'), std::string::npos);
}

TEST(DescribeEvent, DoesNotLetPeersDriveTheTerminal) {
  const auto text = describe_event({{"event", "worker_joined"},
                                    {"name", "\033]0;x\007evil\n"},
                                    {"endpoint", "e"},
                                    {"transport", "quic"},
                                    {"device", "d"},
                                    {"experts", "x"}});
  EXPECT_EQ(text, "worker ?]0;x?evil? joined from e by quic (d; x)");
  EXPECT_EQ(describe_event({{"event", "account"}}), "");
}

TEST(LineCutter, CutsAcrossPiecesAndBoundsLines) {
  LineCutter cutter(5);
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  cutter.feed("ab", take);
  cutter.feed("c\n\nlonger than five\r\nx\r\ny", take);
  cutter.finish(take);
  EXPECT_EQ(lines, (std::vector<std::string>{"abc", "", "longe", "x", "y"}));
}

TEST(Account, DifferenceSubtractsCountersAndKeepsRoundTrips) {
  const auto before = event(R"({"passes":2,"total":{"steps":8},"layers":{"0":{"steps":2}},"workers":{"a":{"steps":5,"rtt_us":100}}})");
  const auto after =
      event(R"({"passes":5,"total":{"steps":20},"layers":{"0":{"steps":5},"1":{"steps":4}},"workers":{"a":{"steps":7,"rtt_us":90}}})");
  const auto difference = account_difference(before, after);
  EXPECT_EQ(difference["passes"], 3);
  EXPECT_EQ(difference["layers"]["0"]["steps"], 3);
  EXPECT_EQ(difference["layers"]["1"]["steps"], 4);
  EXPECT_EQ(difference["workers"]["a"]["steps"], 2);
  EXPECT_EQ(difference["workers"]["a"]["rtt_us"], 90);
  EXPECT_EQ(account_difference(Json(), after)["passes"], 5);
  EXPECT_EQ(account_difference(after, before)["passes"], 2) << "a restarted engine counts from zero";
  EXPECT_TRUE(account_difference(before, Json()).empty());
}

TEST(Account, SummaryDividesByTokensAndSortsLayersByNumber) {
  const auto summary =
      summarize_account(event(R"({"passes":10,"total":{"steps":20,"bytes_out":1000,"bytes_in":3000,"payload_out":900,"payload_in":2900},
    "layers":{"10":{"steps":1,"tokens":1},"2":{"steps":10,"tokens":40,"bytes_out":4000,"bytes_in":8000,"wait_us":400},"32770":{"steps":1,"tokens":0},"3":{"steps":0}},
    "workers":{"a":{"steps":10,"tokens":20,"bytes_out":2000,"compute_us":50,"rtt_us":7}}})"));
  ASSERT_EQ(summary["layers"].size(), 3u) << "layers without steps are left out";
  EXPECT_EQ(summary["layers"][0]["layer"], "2");
  EXPECT_EQ(summary["layers"][0]["bytes_out_per_token"], 100.0);
  EXPECT_EQ(summary["layers"][0]["bytes_back_per_token"], 200.0);
  EXPECT_EQ(summary["layers"][0]["wait_us_per_token"], 10.0);
  EXPECT_EQ(summary["layers"][1]["layer"], "10");
  EXPECT_EQ(summary["layers"][2]["layer"], "2 (chunk)");
  EXPECT_EQ(summary["layers"][2]["bytes_out_per_token"], 0.0) << "no division by zero";
  EXPECT_EQ(summary["workers"][0]["compute_us_per_request"], 5.0);
  EXPECT_EQ(summary["total"]["payload_share"], 0.95);
  const auto tables = account_tables(summary);
  EXPECT_NE(tables.find("2 (chunk)"), std::string::npos);
  EXPECT_TRUE(summarize_account(Json::object())["layers"].empty());
}

TEST(Text, Units) {
  EXPECT_EQ(human_bytes(12), "12 B");
  EXPECT_EQ(human_bytes(12'288), "12.3 KB");
  EXPECT_EQ(human_time_us(1240), "1.24 ms");
  EXPECT_EQ(shell_quote("a b'c"), "'a b'\\''c'");
  EXPECT_EQ(shell_quote("plain-1.0/x"), "plain-1.0/x");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(table({{"a", "bb"}, {"ccc", "d"}}), "a    bb\nccc   d\n");
}

TEST(Quantile, Interpolates) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({3}, 0.95), 3);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1), 4);
}

TEST(PluginConfig, IsReadByThePluginAsItWasMeant) {
  PluginConfig config;
  config.model = "/models/m.gguf";
  config.home = "/home/x";
  config.name = "the backbone";
  config.listen = {"127.0.0.1:7101", "relay://127.0.0.1:7103"};
  config.workers = {"a:1", "[::1]:2"};
  config.mode = "sum";
  config.wire = "f16";
  config.base = "Vulkan0";
  config.overlap = config.repack = false;
  config.deadline_ms = 1234;
  config.resend_floor_ms = 77;
  config.status_fd = 3;
  const auto folder = TempDir::make("linkcpp-test");
  ASSERT_TRUE(folder);
  ASSERT_TRUE(write_private_file(folder->path() / "plugin.json", to_json(config).dump()));
  const auto read = swarm::Config::read(folder->path() / "plugin.json");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->model, config.model);
  EXPECT_EQ(read->home, config.home);
  EXPECT_EQ(read->name, config.name);
  EXPECT_EQ(read->listen, config.listen);
  EXPECT_EQ(read->workers, config.workers);
  EXPECT_EQ(read->mode, wire::CombineMode::sum);
  EXPECT_EQ(read->wire, wire::RowType::f16);
  EXPECT_EQ(read->base, "Vulkan0");
  EXPECT_FALSE(read->overlap);
  EXPECT_FALSE(read->repack);
  EXPECT_EQ(read->deadline.count(), 1234);
  EXPECT_EQ(read->resend_floor.count(), 77);
  EXPECT_EQ(read->status_fd, 3);
}

}  // namespace
}  // namespace linkcpp::serve
