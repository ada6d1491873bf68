// The record of a gate run: which settings a model passed, on which engine and kinds of devices, signed by the backbone that ran it.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gate/verdict.h"
#include "net/identity.h"

namespace linkcpp::gate {

struct Record {
  struct Row {
    Setting setting;
    Figures figures;
    bool passed = false;
    std::string misses;  ///< why not
  };

  wire::Digest model{};
  std::string model_name;
  std::string engine;                ///< engine::engine_version()
  std::vector<std::string> devices;  ///< kinds of devices that computed experts, sorted, each once
  std::string text_sha256;           ///< of the text that was evaluated
  std::string date;                  ///< UTC, "2026-12-02T09:00:00Z"
  Thresholds thresholds;
  std::vector<Row> rows;
};

/// mode, wire, figures, passed, misses
nlohmann::json to_json(const Record::Row& row);
/// The record as a JSON text with the signer's key and signature, to be kept as it is.
Result<std::string> seal(const Record& record, const net::Identity& identity);
/// Fails with `invalid_input` if it is damaged, with `unauthorized` if another key than `trusted` signed it or anything was changed.
Result<Record> unseal(std::string_view text, const net::PeerKey& trusted);

/// Where a backbone keeps its records: HOME/gates.
std::filesystem::path records_folder(const std::filesystem::path& home);
/// The file of a record in that folder: named by model, engine and devices, so that a later run with the same ones replaces it.
std::string record_name(const Record& record);
/// Writes a sealed record, whole or not at all.
Result<> save(const std::filesystem::path& folder, const Record& record, const net::Identity& identity);

/// Records of one model and engine. What cannot be used is named in `problems`, a sentence each, and does not spoil the rest.
struct Found {
  std::vector<Record> records;
  std::vector<std::string> problems;
};
Found find_records(const std::filesystem::path& folder, const wire::Digest& model, const std::string& engine, const net::PeerKey& trusted);

/// The record that counts: the one of the last run. Null if there is none.
const Record* latest(std::span<const Record> records);

/// The row type that sends the fewest bytes among those which `mode` passed in the latest record, with that record. None: f32 is to be
/// used.
struct Choice {
  wire::RowType type = wire::RowType::f32;
  const Record* record = nullptr;
};
std::optional<Choice> choose(std::span<const Record> records, wire::CombineMode mode);

/// The kind of a device as a worker describes it: "Vulkan" of "Vulkan0 (Some Card), 8 threads", "CPU" of "CPU (Some Processor)", which is
/// an x86-64 one, and "CPU arm64" of "CPU arm64 (Some Processor)".
std::string device_kind(std::string_view description);
/// Whether the record says anything about this kind of device.
bool covers(const Record& record, std::string_view kind);

}  // namespace linkcpp::gate
