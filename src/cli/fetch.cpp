// `linkcpp fetch`: downloads slices into a folder, and `linkcpp share`: gives slices to other nodes.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "fetch/fetcher.h"
#include "fetch/http_source.h"
#include "fetch/server.h"
#include "serve/progress.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

using namespace std::chrono_literals;

struct FetchOptions {
  std::string index, store, join, home;
  std::vector<std::string> from, experts;
  unsigned parallel = 4;
  int rounds = 3;
  double stall = 15;
  std::uint64_t reserve = 64u << 20;
  bool json = false, quiet = false;
};

struct ShareOptions {
  std::string index, store, home, listen = "0.0.0.0:7102";
  std::vector<std::string> model;
};

bool is_url(const std::string& text) { return text.contains("://"); }

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorKind::not_found, "cannot read the slice index {}", path);
  std::string text;
  for (std::string block(1u << 20, '\0'); file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0;) {
    text.append(block, 0, static_cast<std::size_t>(file.gcount()));
    if (text.size() > store::max_index_bytes) return fail(ErrorKind::invalid_input, "{} is too large for a slice index", path);
  }
  return text;
}

Result<std::optional<net::Credentials>> credentials_of(const FetchOptions& options) {
  if (options.join.empty()) return std::optional<net::Credentials>();
  auto token = net::JoinToken::decode(options.join);
  if (!token) return pass(token);
  auto identity = net::Identity::load_or_create(net::home_folder(options.home));
  if (!identity) return pass(identity);
  return std::optional(net::Credentials{std::move(*identity), token->secret, std::nullopt, false});
}

/// "LAYER", "LAYER:EXPERT" or "LAYER:FIRST-LAST"; nothing is everything.
Result<std::vector<store::Wanted>> wanted_of(const store::SliceIndex& index, const std::vector<std::string>& texts) {
  struct Choice {
    unsigned layer, first, last;
  };
  std::vector<Choice> choices;
  for (const auto& text : texts) {
    Choice choice{0, 0, UINT16_MAX};
    int end = 0;
    const auto whole = [&] { return end == static_cast<int>(text.size()); };
    bool fine = std::sscanf(text.c_str(), "%5u%n", &choice.layer, &end) == 1 && whole();
    if (!fine && std::sscanf(text.c_str(), "%5u:%5u%n", &choice.layer, &choice.first, &end) == 2 && whole()) {
      choice.last = choice.first;
      fine = true;
    }
    if (!fine) fine = std::sscanf(text.c_str(), "%5u:%5u-%5u%n", &choice.layer, &choice.first, &choice.last, &end) == 3 && whole();
    if (!fine || choice.last < choice.first) {
      return fail(ErrorKind::invalid_input, "--experts '{}' is none of LAYER, LAYER:EXPERT, LAYER:FIRST-LAST", text);
    }
    choices.push_back(choice);
  }
  std::vector<store::Wanted> wanted;
  for (const auto& layer : index.layers) {
    for (std::size_t e = 0; e < layer.slices.size(); ++e) {
      const bool chosen = choices.empty() || std::ranges::any_of(choices, [&](const Choice& c) {
                            return c.layer == layer.layer && e >= c.first && e <= c.last;
                          });
      if (chosen) wanted.push_back({{layer.layer, static_cast<std::uint16_t>(e)}, layer.slices[e], layer.slice_bytes()});
    }
  }
  if (wanted.empty()) return fail(ErrorKind::not_found, "the model has none of these experts");
  return wanted;
}

Result<fetch::Source> source_of(const std::string& text, const FetchOptions& options, std::shared_ptr<const store::SliceIndex> index,
                                const std::optional<net::Credentials>& credentials) {
  using Reader = std::unique_ptr<store::SliceSource>;
  if (is_url(text)) {
    fetch::HttpKnobs knobs;
    knobs.stall_limit = std::chrono::milliseconds(static_cast<int>(options.stall * 1000));
    if (auto possible = fetch::http_source(text, knobs, index, credentials); !possible) return pass(possible);
    const int tier = text.starts_with("lks://") ? 1 : 3;
    return fetch::Source{text, tier, [=] { return fetch::http_source(text, knobs, index, credentials); }, 0};
  }
  if (text.ends_with(".gguf")) {
    std::vector<std::filesystem::path> paths;
    for (const auto& file : index->files) paths.push_back(std::filesystem::path(text).parent_path() / file.name);
    if (paths.size() == 1) paths[0] = text;
    if (auto possible = store::gguf_source(index, paths); !possible) return pass(possible);
    return fetch::Source{text, 0, [=] { return store::gguf_source(index, paths); }, 0};
  }
  if (!std::filesystem::is_directory(text)) {
    return fail(ErrorKind::not_found, "--from '{}' is no folder, no .gguf file and no http://, https:// or lks:// URL", text);
  }
  auto folder = store::Store::open(text);
  if (!folder) return pass(folder);
  const std::shared_ptr<const store::Store> shared = std::move(*folder);
  return fetch::Source{text, 0, [=] { return Result<Reader>(store::store_source(shared)); }, 0};
}

std::string bar(const fetch::FetchProgress& p) {
  constexpr int width = 20;
  const double part = p.bytes == 0 ? 1 : static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes);
  const int full = static_cast<int>(part * width);
  std::string text =
      "[" + std::string(static_cast<std::size_t>(full), '#') + std::string(static_cast<std::size_t>(width - full), '.') + "]";
  text += std::format(" {:3.0f} %  {} of {}  {}/{} slices  {}/s", part * 100, serve::human_bytes(static_cast<double>(p.bytes_done)),
                      serve::human_bytes(static_cast<double>(p.bytes)), p.slices_done, p.slices, serve::human_bytes(p.bytes_per_second));
  if (p.seconds_left >= 0) text += std::format("  {} left", serve::human_time_us(p.seconds_left * 1e6));
  return text;
}

int finish(const fetch::FetchProgress& p, const FetchOptions& options, double seconds) {
  if (options.json) {
    nlohmann::json json{{"slices", p.slices}, {"slices_done", p.slices_done}, {"slices_failed", p.slices_failed},
                        {"bytes", p.bytes},   {"bytes_had", p.bytes_had},     {"bytes_fetched", p.fetched()},
                        {"seconds", seconds}, {"store", options.store},       {"sources", nlohmann::json::array()}};
    for (const auto& source : p.sources)
      json["sources"].push_back({{"source", source.name}, {"bytes", source.bytes}, {"slices", source.slices}});
    std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else if (!options.quiet) {
    std::fprintf(stderr, "%llu of %llu slices are in %s; %s fetched in %.1f s\n", static_cast<unsigned long long>(p.slices_done),
                 static_cast<unsigned long long>(p.slices), options.store.c_str(),
                 serve::human_bytes(static_cast<double>(p.fetched())).c_str(), seconds);
  }
  if (p.slices_done == p.slices) return 0;
  if (interrupted()) return report({ErrorKind::unavailable, "stopped; the same command goes on from here"});
  return report(
      {ErrorKind::unavailable, std::format("{} of {} slices could not be fetched{}{}; the same command goes on from here",
                                           p.slices - p.slices_done, p.slices, p.last_problem.empty() ? "" : ": ", p.last_problem)});
}

int run_fetch(const FetchOptions& options) {
  auto credentials = credentials_of(options);
  if (!credentials) return report(credentials.error());
  auto text = is_url(options.index) ? fetch::http_get(options.index, store::max_index_bytes, {}, *credentials) : read_file(options.index);
  if (!text) return report(text.error());
  auto decoded = store::decode_index(*text);
  if (!decoded) return report(decoded.error());
  const auto index = std::make_shared<const store::SliceIndex>(std::move(*decoded));
  auto wanted = wanted_of(*index, options.experts);
  if (!wanted) return report(wanted.error());
  std::vector<fetch::Source> sources;
  for (const auto& from : options.from) {
    auto source = source_of(from, options, index, *credentials);
    if (!source) return report(source.error());
    sources.push_back(std::move(*source));
  }
  auto folder = store::Store::open(options.store, {.reserve_bytes = options.reserve});
  if (!folder) return report(folder.error());
  if (auto kept = (*folder)->put_index(*text); !kept) return report(kept.error());

  watch_interrupts();
  serve::Progress progress(options.quiet || options.json);
  fetch::FetchKnobs knobs;
  knobs.parallel = options.parallel;
  knobs.plan.give_up_rounds = options.rounds;
  const auto begin = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::vector<std::string> problems;
  auto fetcher = fetch::Fetcher::start(std::move(*folder), knobs, {.on_slice = {}, .on_problem = [&](const std::string& problem) {
                                                                     const std::lock_guard lock(mutex);
                                                                     problems.push_back(problem);
                                                                   }});
  const auto show_problems = [&] {
    const std::lock_guard lock(mutex);
    for (const auto& problem : problems) progress.line(problem);
    problems.clear();
  };
  for (auto& source : sources) fetcher->add(std::move(source));
  fetcher->want(*wanted);
  while (!interrupted() && !fetcher->wait(200ms)) {
    show_problems();
    progress.state(bar(fetcher->progress()), true);
  }
  fetcher->stop();
  show_problems();
  progress.clear();
  return finish(fetcher->progress(), options, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

int run_share(const ShareOptions& options) {
  auto credentials = net::backbone_credentials(net::home_folder(options.home));
  if (!credentials) return report(credentials.error());
  std::vector<std::shared_ptr<fetch::SliceProvider>> providers;
  if (!options.store.empty()) {
    auto folder = store::Store::open(options.store);
    if (!folder) return report(folder.error());
    providers.push_back(fetch::provide_store(std::move(*folder)));
  }
  if (!options.model.empty()) {
    if (options.index.empty()) return report({ErrorKind::invalid_input, "--model needs --index: which bytes of it are slices"});
    auto text = read_file(options.index);
    if (!text) return report(text.error());
    auto index = store::decode_index(*text);
    if (!index) return report(index.error());
    auto provider =
        fetch::provide_gguf(std::make_shared<const store::SliceIndex>(std::move(*index)), {options.model.begin(), options.model.end()});
    if (!provider) return report(provider.error());
    providers.push_back(std::move(*provider));
  }
  if (providers.empty()) return report({ErrorKind::invalid_input, "nothing to share: give --store or --model"});
  watch_interrupts();
  auto server = fetch::SliceServer::open({.listen = options.listen, .credentials = std::move(*credentials)}, providers);
  if (!server) return report(server.error());
  std::printf("sharing slices at lks://%s\n", (*server)->address().c_str());
  std::fflush(stdout);
  while (!interrupted()) std::this_thread::sleep_for(100ms);
  return 0;
}

}  // namespace

void setup_fetch(CLI::App& root, Action& chosen) {
  auto options = std::make_shared<FetchOptions>();
  auto* command = root.add_subcommand("fetch", "Download expert slices into a folder");
  command->add_option("--index", options->index, "The model's slice index: a file or URL (index.json)")->required();
  command
      ->add_option("--from", options->from,
                   "Where slices are: a folder that `linkcpp slice` wrote, the model's .gguf file, the URL of either,\n"
                   "or lks://HOST:PORT of another node; may be repeated")
      ->required();
  command->add_option("--store", options->store, "Folder that gets the slices")->required();
  command->add_option("--experts", options->experts, "LAYER, LAYER:EXPERT or LAYER:FIRST-LAST; may be repeated (default: all)");
  command->add_option("--join", options->join, "Join token, for lks:// sources")->envname("LINKCPP_TOKEN");
  command->add_option("--home", options->home, "Folder of this node's key (default: ~/.config/linkcpp)")->envname("LINKCPP_HOME");
  command->add_option("--parallel", options->parallel, "Slices at a time")->check(CLI::Range(1, 64))->capture_default_str();
  command->add_option("--rounds", options->rounds, "How often all sources are asked for a slice; 0: until it comes")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_option("--stall", options->stall, "Seconds after which a source that sends nothing is left")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_option("--reserve", options->reserve, "Bytes of the disk that stay free")->capture_default_str();
  command->add_flag("--json", options->json, "Print a JSON object at the end");
  command->add_flag("--quiet", options->quiet, "No progress");
  command->callback([options, &chosen] { chosen = [options] { return run_fetch(*options); }; });
}

void setup_share(CLI::App& root, Action& chosen) {
  auto options = std::make_shared<ShareOptions>();
  auto* command = root.add_subcommand("share", "Give expert slices to the nodes of this swarm");
  command->add_option("--store", options->store, "Folder with slices");
  command->add_option("--model", options->model, "The model's .gguf files, in order; slices are read out of them");
  command->add_option("--index", options->index, "The model's slice index, for --model");
  command->add_option("--listen", options->listen, "HOST:PORT")->capture_default_str();
  command->add_option("--home", options->home, "Folder of this node's key and secret (default: ~/.config/linkcpp)")
      ->envname("LINKCPP_HOME");
  command->callback([options, &chosen] { chosen = [options] { return run_share(*options); }; });
}

}  // namespace linkcpp::cli
