// `linkcpp inspect`: shows a GGUF's mixture-of-experts anatomy and what serving it costs on the wire.
#include <algorithm>
#include <array>
#include <cstdio>
#include <format>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "engine/anatomy.h"
#include "engine/byte_account.h"
#include "engine/dimensions.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

struct InspectOptions {
  std::string file;
  std::uint32_t workers = 3;
  std::vector<double> budgets{4, 8, 16, 24};
  bool json = false;
};

constexpr double gib = 1024.0 * 1024 * 1024;
constexpr std::array modes{wire::CombineMode::raw, wire::CombineMode::sum};

/// What is inspected: the anatomy of a GGUF, or one made of dimensions.
struct Subject {
  engine::Anatomy anatomy;
  std::optional<engine::Dimensions> dimensions;  ///< its anatomy is moved out
};

using Rows = std::vector<std::vector<std::string>>;

struct Range {
  std::uint64_t least = UINT64_MAX, most = 0;
};

Range expert_bytes(const engine::Anatomy& anatomy) {
  Range range;
  for (const auto& layer : anatomy.layers) {
    range.least = std::min(range.least, layer.expert_bytes());
    range.most = std::max(range.most, layer.expert_bytes());
  }
  return range;
}

std::uint32_t most_experts(const engine::Anatomy& anatomy) {
  return std::ranges::max_element(anatomy.layers, {}, &engine::MoeLayer::n_expert)->n_expert;
}

/// Blocks with experts: a block with a second set of experts counts once.
std::size_t moe_blocks(const engine::Anatomy& anatomy) {
  return static_cast<std::size_t>(std::ranges::count_if(anatomy.layers, [&](const engine::MoeLayer& layer) {
    return (layer.key & engine::chunk_experts_bit) == 0 || anatomy.find(layer.key & ~engine::chunk_experts_bit & 0xFFFF) == nullptr;
  }));
}

/// What a worker with so much memory for weights can hold if it takes the same experts of every layer.
struct Holding {
  double budget_gib = 0;
  std::uint32_t experts = 0;  ///< of every layer
  std::uint64_t bytes = 0;
  std::uint32_t workers = 0;  ///< workers of this size that cover the model; 0 if one expert of every layer is too much
};

std::uint64_t holding_bytes(const engine::Anatomy& anatomy, std::uint32_t experts) {
  std::uint64_t bytes = 0;
  for (const auto& layer : anatomy.layers) bytes += layer.expert_bytes() * std::min(experts, layer.n_expert);
  return bytes;
}

Holding holding(const engine::Anatomy& anatomy, double budget_gib) {
  Holding result{.budget_gib = budget_gib};
  std::uint32_t low = 0, high = most_experts(anatomy);
  const std::uint32_t all = high;
  while (low < high) {
    const std::uint32_t middle = low + (high - low + 1) / 2;
    if (static_cast<double>(holding_bytes(anatomy, middle)) <= budget_gib * gib)
      low = middle;
    else
      high = middle - 1;
  }
  result.experts = low;
  result.bytes = holding_bytes(anatomy, low);
  result.workers = low != 0 ? (all + low - 1) / low : 0;
  return result;
}

/// Shape of the widest layer: the others cost as much or less.
engine::StepShape widest_shape(const engine::Anatomy& anatomy) {
  engine::StepShape shape{.top_k = anatomy.top_k};
  for (const auto& layer : anatomy.layers) {
    shape.n_in = std::max(shape.n_in, layer.n_in());
    shape.n_out = std::max(shape.n_out, layer.n_out());
  }
  if (shape.n_in == 0) shape.n_in = anatomy.n_embd;
  if (shape.n_out == 0) shape.n_out = anatomy.n_embd;
  return shape;
}

/// 1, 2 and N touched workers, without repetition and never more than experts a token.
std::vector<std::uint32_t> worker_counts(const InspectOptions& options, std::uint32_t top_k) {
  std::vector<std::uint32_t> counts{1, 2, options.workers};
  for (auto& count : counts) count = std::min(count, top_k);
  std::ranges::sort(counts);
  const auto repeated = std::ranges::unique(counts);
  counts.erase(repeated.begin(), repeated.end());
  return counts;
}

std::string range_text(const Range& range) {
  const std::string least = serve::human_bytes(static_cast<double>(range.least)),
                    most = serve::human_bytes(static_cast<double>(range.most));
  return range.least == range.most ? least : std::format("{} to {}, by layer", least, most);
}

std::string types_text(const std::map<std::string, std::uint64_t>& types) {
  std::string text;
  for (const auto& [type, bytes] : types)
    text += std::format("{}{} {}", text.empty() ? "" : ", ", type, serve::human_bytes(static_cast<double>(bytes)));
  return text.empty() ? "none" : text;
}

std::string plural(std::uint64_t n, std::string_view noun) { return std::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

void print_line(std::string_view label, const std::string& value) {
  std::printf("  %-14s %s\n", std::string(label).c_str(), value.c_str());
}

void print_indented(const Rows& rows) {
  const std::string text = serve::table(rows);
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    std::printf("  %s\n", text.substr(at, end - at).c_str());
    at = end + 1;
  }
}

void print_model(const engine::Anatomy& anatomy) {
  std::printf("%s\n", serve::printable(anatomy.name.empty() ? anatomy.files[0].filename().string() : anatomy.name).c_str());
  print_line("architecture", anatomy.architecture);
  if (!anatomy.files.empty())
    print_line("files", anatomy.files.size() == 1 ? anatomy.files[0].string()
                                                  : std::format("{} parts, {} ...", anatomy.files.size(), anatomy.files[0].string()));
  const std::size_t moe = moe_blocks(anatomy);
  print_line("layers", std::format("{}: {} with experts, {} dense", anatomy.n_layer, moe, anatomy.n_layer - moe));
  print_line("experts", std::format("{} a layer, top {} used a token{}", most_experts(anatomy), anatomy.top_k,
                                    anatomy.layers.size() > moe ? "; some layers have a second set" : ""));
  print_line("shared expert", anatomy.shared_expert ? "yes (stays on the backbone, runs while the workers compute)" : "no");
  print_line("hidden state", plural(anatomy.n_embd, "element"));
  if (!anatomy.files.empty()) print_line("digest", wire::to_hex(anatomy.digest));
}

void print_dimensions(const engine::Dimensions& dimensions, const std::string& file) {
  const auto billions = [](std::uint64_t n) { return std::format("{:.1f} billion", static_cast<double>(n) / 1e9); };
  print_line("dimensions", file + " (no weights; the types are those that it assumes)");
  print_line("parameters", std::format("{} published, {} by these dimensions",
                                       dimensions.published_parameters == 0 ? "none" : billions(dimensions.published_parameters),
                                       dimensions.parameters == 0 ? "not countable (no backbone)" : billions(dimensions.parameters)));
}

/// A GGUF always holds more than experts; dimensions may leave the rest out.
bool knows_backbone(const engine::Anatomy& anatomy) { return anatomy.total_bytes > anatomy.expert_bytes; }

void print_weights(const engine::Anatomy& anatomy) {
  const auto percent = [&](std::uint64_t bytes) {
    return std::format("{} ({:.1f} %)", serve::human_bytes(static_cast<double>(bytes)),
                       100.0 * static_cast<double>(bytes) / static_cast<double>(anatomy.total_bytes));
  };
  std::printf("\nWeights\n");
  print_line("one expert", range_text(expert_bytes(anatomy)));
  if (!knows_backbone(anatomy)) {
    print_line("all experts", serve::human_bytes(static_cast<double>(anatomy.expert_bytes)) + ": " + types_text(anatomy.expert_types));
    print_line("backbone", "not known: the file does not list its matrices");
    return;
  }
  print_line("all experts", percent(anatomy.expert_bytes) + ": " + types_text(anatomy.expert_types));
  print_line("backbone", percent(anatomy.total_bytes - anatomy.expert_bytes) + ": " + types_text(anatomy.backbone_types));
}

void print_holdings(const engine::Anatomy& anatomy, const InspectOptions& options) {
  const std::uint32_t all = most_experts(anatomy);
  Rows rows{{"memory for weights", "experts a layer", "bytes held", "workers to cover all"}};
  auto budgets = options.budgets;
  std::ranges::sort(budgets);
  for (const double budget : budgets) {
    const Holding held = holding(anatomy, budget);
    rows.push_back({std::format("{:g} GiB", budget), held.experts == 0 ? "less than 1" : std::format("{} of {}", held.experts, all),
                    serve::human_bytes(static_cast<double>(held.bytes)),
                    held.workers == 0 ? "hold fewer layers" : std::to_string(held.workers)});
    if (held.experts == all) break;  // more memory holds no more
  }
  std::printf("\nWhat a worker can hold (the same experts of every layer)\n");
  print_indented(rows);
}

void print_wire(const engine::Anatomy& anatomy, const InspectOptions& options) {
  const engine::StepShape shape = widest_shape(anatomy);
  const auto counts = worker_counts(options, anatomy.top_k);
  std::vector<std::string> heading{"mode, rows"};
  for (const auto count : counts) {
    heading.push_back(plural(count, "worker") + ": out");
    heading.push_back("back");
  }
  Rows rows{heading};
  for (const auto mode : modes) {
    for (const auto type : wire::all_row_types) {
      std::vector<std::string> row{std::format("{} {}", wire::to_string(mode), wire::to_string(type))};
      for (const auto count : counts) {
        const engine::StepBytes bytes = engine::token_bytes(shape, count, mode, type);
        row.push_back(serve::human_bytes(static_cast<double>(bytes.dispatch)));
        row.push_back(serve::human_bytes(static_cast<double>(bytes.combine)));
      }
      rows.push_back(std::move(row));
    }
  }
  std::printf("\nBytes a layer and token, all touched workers together (frames with their headers, before encryption)\n");
  print_indented(rows);
  std::printf(
      "  raw: every expert's row comes back, bit-identical to local; sum: one partial sum a touched worker.\n"
      "  A token passes %s with experts, one after the other.\n",
      plural(moe_blocks(anatomy), "layer").c_str());
  if (options.workers > anatomy.top_k)
    std::printf("  A token touches at most %u workers, since it uses %u experts.\n", anatomy.top_k, anatomy.top_k);
}

nlohmann::json layers_json(const engine::Anatomy& anatomy) {
  auto layers = nlohmann::json::array();
  for (const auto& layer : anatomy.layers) {
    auto tensors = nlohmann::json::array();
    for (const auto& tensor : layer.tensors) {
      tensors.push_back({{"name", tensor.name},
                         {"type", tensor.type_name},
                         {"n_in", tensor.n_in},
                         {"n_out", tensor.n_out},
                         {"bytes_per_expert", tensor.slice_bytes},
                         {"file", tensor.file},
                         {"offset", tensor.offset}});
    }
    layers.push_back({{"layer", layer.key & ~engine::chunk_experts_bit},
                      {"chunk_experts", (layer.key & engine::chunk_experts_bit) != 0},
                      {"experts", layer.n_expert},
                      {"bytes_per_expert", layer.expert_bytes()},
                      {"tensors", std::move(tensors)}});
  }
  return layers;
}

nlohmann::json wire_json(const engine::Anatomy& anatomy, const InspectOptions& options) {
  auto rows = nlohmann::json::array();
  const engine::StepShape shape = widest_shape(anatomy);
  for (const auto mode : modes) {
    for (const auto type : wire::all_row_types) {
      for (const auto count : worker_counts(options, anatomy.top_k)) {
        const engine::StepBytes bytes = engine::token_bytes(shape, count, mode, type);
        rows.push_back({{"mode", wire::to_string(mode)},
                        {"row_type", wire::to_string(type)},
                        {"workers", count},
                        {"dispatch_bytes", bytes.dispatch},
                        {"combine_bytes", bytes.combine},
                        {"dispatch_row_bytes", bytes.dispatch_rows},
                        {"combine_row_bytes", bytes.combine_rows}});
      }
    }
  }
  return rows;
}

/// Null for what dimensions do not tell.
nlohmann::json parameters_json(const engine::Dimensions& dimensions) {
  const auto given = [](std::uint64_t n) { return n == 0 ? nlohmann::json() : nlohmann::json(n); };
  return {{"published", given(dimensions.published_parameters)}, {"computed", given(dimensions.parameters)}};
}

nlohmann::json to_json(const Subject& subject, const InspectOptions& options) {
  const engine::Anatomy& anatomy = subject.anatomy;
  auto files = nlohmann::json::array();
  for (const auto& file : anatomy.files) files.push_back(file.string());
  auto holdings = nlohmann::json::array();
  for (const double budget : options.budgets) {
    const Holding held = holding(anatomy, budget);
    holdings.push_back(
        {{"memory_gib", budget}, {"experts_per_layer", held.experts}, {"bytes", held.bytes}, {"workers_to_cover", held.workers}});
  }
  const Range expert = expert_bytes(anatomy);
  const bool whole = knows_backbone(anatomy);
  const auto if_whole = [&](std::uint64_t bytes) { return whole ? nlohmann::json(bytes) : nlohmann::json(); };
  nlohmann::json all = {{"name", anatomy.name},
                        {"architecture", anatomy.architecture},
                        {"files", std::move(files)},
                        {"digest", subject.dimensions ? nlohmann::json() : nlohmann::json(wire::to_hex(anatomy.digest))},
                        {"layers", anatomy.n_layer},
                        {"moe_layers", moe_blocks(anatomy)},
                        {"experts", most_experts(anatomy)},
                        {"top_k", anatomy.top_k},
                        {"shared_expert", anatomy.shared_expert},
                        {"n_embd", anatomy.n_embd},
                        {"n_vocab", anatomy.n_vocab},
                        {"context_length", anatomy.context_length},
                        {"bytes",
                         {{"total", if_whole(anatomy.total_bytes)},
                          {"experts", anatomy.expert_bytes},
                          {"backbone", if_whole(anatomy.total_bytes - anatomy.expert_bytes)},
                          {"expert_min", expert.least},
                          {"expert_max", expert.most}}},
                        {"types", {{"experts", anatomy.expert_types}, {"backbone", anatomy.backbone_types}}},
                        {"holdings", std::move(holdings)},
                        {"wire", wire_json(anatomy, options)},
                        {"expert_layers", layers_json(anatomy)}};
  if (subject.dimensions) all["parameters"] = parameters_json(*subject.dimensions);
  return all;
}

Result<Subject> read_subject(const std::filesystem::path& file) {
  if (file.extension() == ".json") {
    auto dimensions = engine::read_dimensions(file);
    if (!dimensions) return pass(dimensions);
    engine::Anatomy anatomy = std::move(dimensions->anatomy);
    return Subject{std::move(anatomy), std::move(*dimensions)};
  }
  auto anatomy = engine::read_anatomy(file);
  if (!anatomy) return pass(anatomy);
  return Subject{std::move(*anatomy), std::nullopt};
}

int run(const InspectOptions& options) {
  const auto subject = read_subject(options.file);
  if (!subject) return report(subject.error());
  if (options.json) {
    // Names come from the file and need not be UTF-8.
    std::printf("%s\n", to_json(*subject, options).dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return 0;
  }
  print_model(subject->anatomy);
  if (subject->dimensions) print_dimensions(*subject->dimensions, options.file);
  print_weights(subject->anatomy);
  print_holdings(subject->anatomy, options);
  print_wire(subject->anatomy, options);
  return 0;
}

}  // namespace

void setup_inspect(CLI::App& root, Action& chosen) {
  auto options = std::make_shared<InspectOptions>();
  auto* command = root.add_subcommand("inspect", "Show a model's experts: how many, how heavy, and what they cost on the wire");
  command->add_option("file", options->file, "GGUF file (of a model in several parts, any part), or a .json file of dimensions")
      ->required()
      ->envname("LINKCPP_MODEL");
  command->add_option("--workers", options->workers, "Also calculate the bytes for so many touched workers (1 and 2 are always shown)")
      ->check(CLI::Range(1u, 65535u))
      ->capture_default_str();
  command->add_option("--memory", options->budgets, "Memory for weights, in GiB, of workers to calculate for; may be repeated")
      ->allow_extra_args(false)  // "--memory 12 FILE" must leave the file alone
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object, with every expert tensor");
  const auto formatter = std::make_shared<CLI::Formatter>();
  formatter->enable_footer_formatting(false);  // examples keep their lines
  command->formatter(formatter);
  command->footer(
      "Reads the header, the routers and samples of the experts; nothing is loaded. Examples:\n"
      "  linkcpp inspect model.gguf                       the whole page\n"
      "  linkcpp inspect big-00001-of-00009.gguf          a model in parts: all parts are found and checked\n"
      "  linkcpp inspect models/dimensions/kimi-k3.json   a model that is not here, from its dimensions\n"
      "  linkcpp inspect model.gguf --memory 12 --memory 80   can these two machines hold a useful share?\n"
      "  linkcpp inspect model.gguf --json | jq '.wire[] | select(.mode == \"sum\")'\n"
      "A dense model (without routed experts) is refused: there is nothing to hand out.");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace linkcpp::cli
