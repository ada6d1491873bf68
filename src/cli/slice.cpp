// `linkcpp slice`: cuts a model into expert slices and a backbone without experts, and verifies them.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "engine/backbone_file.h"
#include "serve/progress.h"
#include "serve/text.h"
#include "slice/cutter.h"
#include "slice/files.h"
#include "slice/index_file.h"

namespace linkcpp::cli {
namespace {

struct SliceOptions {
  std::string model, out, index_only, verify, restore, experts = "all";
  bool no_backbone = false, backbone_only = false, json = false;
  int threads = 0;
};

std::string human(std::uint64_t bytes) { return serve::human_bytes(static_cast<double>(bytes)); }

slice::Progress shown_progress(serve::Progress& progress, const char* what) {
  return [&progress, what](std::uint64_t done, std::uint64_t total) {
    const double percent = total == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
    progress.state(std::format("{}: {} of {} ({:.0f} %)", what, human(done), human(total), percent), true);
    return !interrupted();
  };
}

int finish(const SliceOptions& options, const nlohmann::json& facts, const std::string& text) {
  std::printf("%s\n", options.json ? facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str() : text.c_str());
  return 0;
}

std::uint32_t most_experts_of(const engine::Anatomy& anatomy) {
  std::uint32_t most = 0;
  for (const auto& layer : anatomy.layers) most = std::max(most, layer.n_expert);
  return most;
}

Result<int> run_verify(const SliceOptions& options, serve::Progress& progress) {
  auto found = slice::verify(options.verify, options.experts, {options.threads, shown_progress(progress, "verifying")});
  progress.clear();
  if (!found) return pass(found);
  for (const auto& line : found->damaged) progress.line("damaged and removed: " + line);
  if (!found->damaged.empty())
    return fail(ErrorKind::invalid_input, "{} of the slices were damaged (first: {}); run `linkcpp slice` again to write them again",
                found->damaged.size(), found->damaged[0]);
  if (found->missing != 0)
    return fail(ErrorKind::not_found,
                "{} of the wanted slices are missing (first: {}); run `linkcpp slice` again, or name what should be there "
                "with --experts",
                found->missing, found->first_missing);
  return finish(options, {{"slices", found->objects}, {"bytes", found->bytes}, {"damaged", 0}, {"missing", 0}},
                std::format("{}: {} slices, {}, all sound", options.verify, found->objects, human(found->bytes)));
}

Result<int> run_restore(const SliceOptions& options) {
  auto restored = engine::restore_holes(std::filesystem::path(options.restore) / engine::backbone_file_name);
  if (!restored) return pass(restored);
  return finish(options, {{"restored", *restored}},
                *restored ? "the file of holes was made again" : "the file of holes is as it should be");
}

Result<int> run_index(const SliceOptions& options, const engine::Anatomy& anatomy, serve::Progress& progress) {
  auto index = slice::make_index(anatomy, {options.threads, shown_progress(progress, "hashing")});
  progress.clear();
  if (!index) return pass(index);
  const std::string text = store::encode_index(*index);
  if (auto written = slice::write_text(options.index_only, text); !written) return pass(written);
  const std::string digest = wire::to_hex(store::index_digest(text));
  return finish(options, {{"index", options.index_only}, {"digest", digest}}, std::format("{}: index {}", options.index_only, digest));
}

Result<int> run_cut(const SliceOptions& options, const engine::Anatomy& anatomy, serve::Progress& progress) {
  auto ranges = engine::parse_expert_ranges(options.experts, most_experts_of(anatomy));
  if (!ranges) return pass(ranges);
  if (options.backbone_only) {
    if (auto made = slice::make_folder(options.out); !made) return pass(made);
    if (auto written = engine::write_backbone(anatomy, options.out, std::nullopt, shown_progress(progress, "writing the backbone"));
        !written)
      return pass(written);
    progress.clear();
    return finish(options, {{"backbone", (std::filesystem::path(options.out) / engine::backbone_file_name).string()}},
                  std::format("{}: backbone of {}", options.out, human(engine::backbone_bytes(anatomy))));
  }
  auto cut = slice::cut(anatomy, {.folder = options.out, .experts = *ranges, .backbone = !options.no_backbone},
                        {options.threads, shown_progress(progress, "cutting")});
  progress.clear();
  if (!cut) return pass(cut);
  return finish(options,
                {{"out", options.out},
                 {"index", wire::to_hex(cut->digest)},
                 {"written", cut->written},
                 {"written_bytes", cut->written_bytes},
                 {"kept", cut->kept}},
                std::format("{}: {} slices written ({}), {} were there; index {}", options.out, cut->written, human(cut->written_bytes),
                            cut->kept, wire::to_hex(cut->digest)));
}

Result<int> run_slice(const SliceOptions& options) {
  serve::Progress progress(options.json);
  if (!options.verify.empty()) return run_verify(options, progress);
  if (!options.restore.empty()) return run_restore(options);
  if (options.model.empty() || (options.out.empty() && options.index_only.empty()))
    return fail(ErrorKind::invalid_input,
                "name a model and a folder: linkcpp slice MODEL.gguf --out DIR (or --index-only FILE, --verify DIR)");
  auto anatomy = engine::read_anatomy(options.model);
  if (!anatomy) return pass(anatomy);
  return options.index_only.empty() ? run_cut(options, *anatomy, progress) : run_index(options, *anatomy, progress);
}

int run_slice_command(const SliceOptions& options) {
  watch_interrupts();
  const auto code = run_slice(options);
  return code ? *code : report(code.error());
}

}  // namespace

void setup_slice(CLI::App& root, Action& chosen) {
  auto o = std::make_shared<SliceOptions>();
  auto* command = root.add_subcommand("slice", "Cut a model into expert slices and a backbone without experts");
  command->add_option("model", o->model, "GGUF of a Mixture-of-Experts model; any part of a multi-file model");
  command->add_option("--out", o->out, "Folder for slices, index.json and the backbone; an interrupted cut goes on there");
  command->add_option("--experts", o->experts, "Whose slices are written (the language of `linkcpp worker --experts`); the index has all")
      ->capture_default_str();
  command->add_option("--index-only", o->index_only, "Write only the index, to this file");
  command->add_flag("--no-backbone", o->no_backbone, "Write no backbone");
  command->add_flag("--backbone-only", o->backbone_only, "Write only the backbone: quick, the experts are not read");
  command->add_option("--verify", o->verify, "Hash the slices of this folder; damaged ones are named and removed");
  command->add_option("--restore-holes", o->restore, "Make the backbone's second file of this folder again: it is one hole, of no weight");
  command->add_option("-t,--threads", o->threads, "Threads that read and hash; 0: one for each core, at most 8")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  command->add_flag("--json", o->json, "Print one JSON object");
  command->footer(
      "A slice is one expert of one layer, named by the BLAKE3 hash of its bytes. Examples:\n"
      "  linkcpp slice model.gguf --out sliced                 slices, index and backbone\n"
      "  linkcpp slice model.gguf --out half --experts 1/2     the first half of every layer's experts\n"
      "  linkcpp slice --verify sliced                         are all slices as they were?\n"
      "  linkcpp serve --model sliced/backbone-00001-of-00002.gguf    serve without the experts' weight");
  command->callback([o, &chosen] { chosen = [o] { return run_slice_command(*o); }; });
}

}  // namespace linkcpp::cli
