// `linkcpp bench`: measures a running swarm through its OpenAI endpoint and its account.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <vector>

#include "cli/command.h"
#include "net/coroutine.h"
#include "serve/account_view.h"
#include "serve/http_client.h"
#include "serve/progress.h"
#include "serve/statistics.h"
#include "serve/status.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using serve::Json;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct BenchOptions {
  std::string http = "http://127.0.0.1:8080", admin = "http://127.0.0.1:7102";
  int clients = 1, requests = 4, tokens = 64, prompt_tokens = 64;
  int limit_s = 600;
  bool json = false;
};

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// One request, as its client saw it.
struct Sample {
  double ttft_s = 0;  ///< request sent to first token
  double total_s = 0;
  double tokens = 0;
  double tokens_per_s = 0;  ///< after the first token
};

/// A number of clients that send requests one after another.
struct Phase {
  int clients = 0;
  std::vector<Sample> samples;
  int failed = 0;
  std::string error;
  double elapsed_s = 0;
  [[nodiscard]] double tokens() const {
    double sum = 0;
    for (const auto& sample : samples) sum += sample.tokens;
    return sum;
  }
};

Json to_json(const Phase& phase) {
  std::vector<double> ttft, rate;
  for (const auto& sample : phase.samples) {
    ttft.push_back(sample.ttft_s * 1e3);
    rate.push_back(sample.tokens_per_s);
  }
  return {
      {"clients", phase.clients},
      {"requests", phase.samples.size()},
      {"failed", phase.failed},
      {"error", phase.error},
      {"seconds", phase.elapsed_s},
      {"ttft_ms", {{"p50", serve::quantile(ttft, 0.5)}, {"p95", serve::quantile(ttft, 0.95)}}},
      {"tokens_per_s", {{"p50", serve::quantile(rate, 0.5)}, {"p95", serve::quantile(rate, 0.95)}, {"slowest", serve::quantile(rate, 0)}}},
      {"aggregate_tokens_per_s", phase.elapsed_s > 0 ? phase.tokens() / phase.elapsed_s : 0}};
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), progress_(false) {}

  Result<Json> run(serve::HostPort http, std::optional<serve::HostPort> admin) {
    http_ = std::move(http);
    admin_ = std::move(admin);
    Result<Json> result;
    asio::co_spawn(context_, all(), [&](const std::exception_ptr& failed, Result<Json> ended) {
      result = failed ? Result<Json>(fail(ErrorKind::internal, "the measurement failed")) : std::move(ended);
    });
    context_.run();
    progress_.clear();
    return result;
  }

 private:
  awaitable<Result<Json>> all() {
    if (auto text = co_await tokenize(); !text) co_return pass(text);
    Json json{{"http", options_.http}, {"tokens", options_.tokens}, {"prompt_tokens", options_.prompt_tokens}, {"phases", Json::array()}};
    auto before = co_await settled_account();
    if (!before) co_return pass(before);
    double elapsed = 0;
    for (const int clients : options_.clients > 1 ? std::vector{1, options_.clients} : std::vector{1}) {
      const auto phase = co_await measure(clients);
      elapsed += phase.elapsed_s;
      json["phases"].push_back(to_json(phase));
      if (phase.samples.empty()) co_return fail(ErrorKind::unavailable, "every request failed: {}", phase.error);
    }
    auto after = co_await settled_account();
    if (!after) co_return pass(after);
    if (admin_) {
      json["swarm"] = serve::summarize_account(serve::account_difference((*before)["account"], (*after)["account"]));
      json["swarm"]["wait_share"] = serve::number_of(json["swarm"]["total"], "wait_us") / (elapsed * 1e6);
      json["mode"] = (*after)["mode"];
      json["wire"] = (*after)["wire"];
    }
    co_return json;
  }

  /// Token ids for prompts of an exact length.
  awaitable<Result<>> tokenize() {
    constexpr const char* sentence =
        "The rain had stopped before morning, and the road to the mill lay bright between its hedges; "
        "a cart went by with seven sacks of barley, two dogs behind it, and nobody spoke until the bridge. ";
    std::string text;
    for (int i = 0; i < options_.prompt_tokens / 16 + 2; ++i) text += sentence;
    auto json = co_await serve::http_json(http_, "/tokenize", Json{{"content", text}}.dump(), 30s);
    if (!json) co_return fail(json.error().kind, "{} (is a swarm served there? linkcpp serve, or --http URL)", json.error().message);
    ids_ = json->value("tokens", std::vector<int>());
    if (ids_.size() < static_cast<std::size_t>(options_.prompt_tokens)) {
      co_return fail(ErrorKind::incompatible, "{}/tokenize gave {} tokens where {} were needed", options_.http, ids_.size(),
                     options_.prompt_tokens);
    }
    co_return Result<>{};
  }

  awaitable<Result<Json>> settled_account() {
    if (!admin_) co_return Json::object();
    asio::steady_timer timer(context_);
    auto last = co_await serve::http_json(*admin_, "/v1/swarm", "", 10s);
    for (int quiet = 0; last && quiet < 14;) {
      timer.expires_after(100ms);
      co_await timer.async_wait(net::as_values);
      auto next = co_await serve::http_json(*admin_, "/v1/swarm", "", 10s);
      if (!next) co_return next;
      quiet = (*next)["account"] == (*last)["account"] ? quiet + 1 : 0;
      last = std::move(next);
      progress_.state("waiting for the account to settle", true);
    }
    if (!last)
      co_return fail(last.error().kind, "{} (the swarm's account; --admin URL, or --admin none to do without)", last.error().message);
    co_return last;
  }

  awaitable<Phase> measure(int clients) {
    Phase phase{.clients = clients};
    const int total = clients * options_.requests;
    int running = clients;
    asio::steady_timer done(context_, asio::steady_timer::time_point::max());
    const auto begin = Clock::now();
    for (int client = 0; client < clients; ++client) {
      asio::co_spawn(context_, send_requests(client, total, phase), [&](const std::exception_ptr&) {
        if (--running == 0) done.cancel();
      });
    }
    co_await done.async_wait(net::as_values);
    phase.elapsed_s = seconds(Clock::now() - begin);
    progress_.line(std::format("{} client(s): {:.1f} tokens/s together, {} of {} requests answered", clients,
                               phase.tokens() / phase.elapsed_s, phase.samples.size(), total));
    co_return phase;
  }

  awaitable<void> send_requests(int client, int total, Phase& phase) {
    for (int i = 0; i < options_.requests; ++i) {
      auto sample = co_await send_request(client * options_.requests + i);
      if (sample) {
        phase.samples.push_back(*sample);
      } else {
        ++phase.failed;
        phase.error = sample.error().message;
      }
      progress_.state(std::format("{} client(s): {} of {} requests", phase.clients,
                                  phase.samples.size() + static_cast<std::size_t>(phase.failed), total),
                      true);
    }
  }

  awaitable<Result<Sample>> send_request(int number) {
    const auto offset = static_cast<std::size_t>(number) % (ids_.size() - static_cast<std::size_t>(options_.prompt_tokens) + 1);
    const std::vector<int> prompt(ids_.begin() + static_cast<std::ptrdiff_t>(offset),
                                  ids_.begin() + static_cast<std::ptrdiff_t>(offset) + options_.prompt_tokens);
    const Json body{{"prompt", prompt},   {"max_tokens", options_.tokens}, {"temperature", 0}, {"stream", true},
                    {"ignore_eos", true}, {"cache_prompt", false}};
    Sample sample;
    const auto begin = Clock::now();
    auto first = begin;
    auto streamed = co_await serve::http_event_stream(http_, "/v1/completions", body.dump(), std::chrono::seconds(options_.limit_s),
                                                      [&](std::string_view data) {
                                                        if (first == begin) first = Clock::now();
                                                        const auto event = Json::parse(data, nullptr, false);
                                                        if (event.is_object() && event.contains("usage"))
                                                          sample.tokens = serve::number_of(event["usage"], "completion_tokens");
                                                      });
    if (!streamed) co_return pass(streamed);
    if (sample.tokens < 1) co_return fail(ErrorKind::incompatible, "the stream ended without saying how many tokens were generated");
    sample.total_s = seconds(Clock::now() - begin);
    sample.ttft_s = seconds(first - begin);
    sample.tokens_per_s = sample.tokens > 1 ? (sample.tokens - 1) / (sample.total_s - sample.ttft_s) : 0;
    co_return sample;
  }

  const BenchOptions& options_;
  serve::Progress progress_;
  asio::io_context context_{1};
  serve::HostPort http_;
  std::optional<serve::HostPort> admin_;
  std::vector<int> ids_;
};

void print(const Json& result) {
  std::vector<std::vector<std::string>> rows{
      {"clients", "requests", "failed", "first token p50", "p95", "tokens/s each p50", "slowest", "together"}};
  for (const auto& phase : result["phases"]) {
    rows.push_back({std::to_string(phase["clients"].get<int>()), std::to_string(phase["requests"].get<int>()),
                    std::to_string(phase["failed"].get<int>()), std::format("{:.1f} ms", phase["ttft_ms"]["p50"].get<double>()),
                    std::format("{:.1f} ms", phase["ttft_ms"]["p95"].get<double>()),
                    std::format("{:.1f}", phase["tokens_per_s"]["p50"].get<double>()),
                    std::format("{:.1f}", phase["tokens_per_s"]["slowest"].get<double>()),
                    std::format("{:.1f}", phase["aggregate_tokens_per_s"].get<double>())});
  }
  std::printf("prompts of %d tokens, answers of %d\n\n%s", result["prompt_tokens"].get<int>(), result["tokens"].get<int>(),
              serve::table(rows).c_str());
  if (!result.contains("swarm")) return;
  std::printf("\n%s\nwaiting for workers: %.0f %% of the time (mode %s, wire %s)\n", serve::account_tables(result["swarm"]).c_str(),
              100 * result["swarm"]["wait_share"].get<double>(), serve::text_of(result, "mode").c_str(),
              serve::text_of(result, "wire").c_str());
}

int run(const BenchOptions& options) {
  auto http = serve::parse_http_url(options.http);
  if (!http) return report(http.error());
  std::optional<serve::HostPort> admin;
  if (options.admin != "none") {
    auto parsed = serve::parse_http_url(options.admin);
    if (!parsed) return report(parsed.error());
    admin = *parsed;
  }
  auto result = Bench(options).run(*http, admin);
  if (!result) return report(result.error());
  if (options.json) {
    std::printf("%s\n", result->dump(2).c_str());
  } else {
    print(*result);
  }
  return 0;
}

}  // namespace

void setup_bench(CLI::App& root, Action& chosen) {
  auto o = std::make_shared<BenchOptions>();
  auto* command = root.add_subcommand("bench", "Measure a running swarm: speed, bytes and waiting");
  command->add_option("--http", o->http, "The OpenAI endpoint")->envname("LINKCPP_BENCH_HTTP")->capture_default_str();
  command->add_option("--admin", o->admin, "The admin endpoint, for bytes and times; or 'none'")
      ->envname("LINKCPP_BENCH_ADMIN")
      ->capture_default_str();
  command->add_option("--clients", o->clients, "Clients at once (one alone is measured first)")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--requests", o->requests, "Requests of each client")->check(CLI::Range(1, 100'000))->capture_default_str();
  command->add_option("--tokens", o->tokens, "Tokens to generate a request")->check(CLI::Range(1, 100'000))->capture_default_str();
  command->add_option("--prompt-tokens", o->prompt_tokens, "Tokens of each prompt")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  command->add_option("--limit", o->limit_s, "Seconds for one request")->check(CLI::Range(1, 86'400))->capture_default_str();
  command->add_flag("--json", o->json, "Print a JSON object: phases, swarm {layers, workers, total, wait_share}");
  command->footer(
      "The prompt cache is switched off for these requests, and the end of text is ignored, so that every request does the same work.");
  command->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace linkcpp::cli
