#include "cli/wire_choice.h"

#include <algorithm>
#include <format>

#include "engine/anatomy.h"

namespace linkcpp::cli {
namespace {

constexpr const char* run_it = "run `linkcpp gate MODEL`";

/// What a record says about a type that was asked for by name; empty if it passed or loses nothing.
std::string objection(const gate::Setting& setting, std::span<const gate::Record> records) {
  if (is_exact(setting)) return {};
  const gate::Record* latest = gate::latest(records);
  if (latest == nullptr) return std::format("no gate record says what {} costs this model; {} to know", to_string(setting), run_it);
  const auto row = std::ranges::find(latest->rows, setting, &gate::Record::Row::setting);
  if (row == latest->rows.end()) return std::format("the gate of {} did not try {}; {} again", latest->date, to_string(setting), run_it);
  if (!row->passed) return std::format("{} did not pass the gate of {}: {}", to_string(setting), latest->date, row->misses);
  return {};
}

}  // namespace

std::string WireChoice::doubt(const std::string& worker, const std::string& device) const {
  if (type == wire::RowType::f32 || !record || gate::covers(*record, gate::device_kind(device))) return {};
  return std::format("worker {} computes on {}, which the gate record for wire type {} does not cover; {} with such a worker", worker,
                     device, wire::to_string(type), run_it);
}

Result<WireChoice> choose_wire(const std::string& requested, wire::CombineMode mode, const wire::Digest& model,
                               const std::filesystem::path& home) {
  auto identity = net::Identity::load_or_create(home);
  if (!identity) return pass(identity);
  auto found = gate::find_records(gate::records_folder(home), model, engine::engine_version(), identity->key());
  WireChoice choice{.notes = std::move(found.problems)};
  if (requested != "auto") {
    auto type = wire::parse_row_type(requested);
    if (!type) return pass(type);
    choice.type = *type;
    if (const auto text = objection({mode, *type}, found.records); !text.empty()) choice.notes.push_back(text);
    return choice;
  }
  const auto best = gate::choose(found.records, mode);
  if (!best) {
    choice.notes.push_back(std::format("wire type f32: there is no gate record of this model and engine; {} to send fewer bytes", run_it));
    return choice;
  }
  choice.type = best->type;
  choice.record = *best->record;
  choice.notes.push_back(std::format("wire type {}: the smallest that passed in mode {} at the gate of {}", wire::to_string(best->type),
                                     wire::to_string(mode), best->record->date));
  return choice;
}

}  // namespace linkcpp::cli
