#include "gate/record.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "net/encoding.h"
#include "net/signature.h"

namespace linkcpp::gate {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Bounds what a signature can be mistaken for.
constexpr std::string_view purpose = "linkcpp gate record v1\n";
constexpr std::size_t max_record_bytes = 1u << 20;
/// Of the digest, in a file's name: enough to tell models apart at a glance. The digest inside decides.
constexpr std::size_t name_digits = 16;
/// Row length for comparing row types by size.
constexpr std::size_t typical_row = 4096;

Json to_json(const Record& record) {
  Json rows = Json::array();
  for (const auto& row : record.rows) rows.push_back(gate::to_json(row));
  return {{"model", wire::to_hex(record.model)},
          {"model_name", record.model_name},
          {"engine", record.engine},
          {"devices", record.devices},
          {"text_sha256", record.text_sha256},
          {"date", record.date},
          {"thresholds", gate::to_json(record.thresholds)},
          {"rows", std::move(rows)}};
}

Result<std::string> text_at(const Json& json, const char* name) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  if (!json.is_object() || found == json.end() || !found->is_string())
    return fail(ErrorKind::invalid_input, "'{}' is missing or not a text", name);
  return found->get<std::string>();
}

Result<Record::Row> row_from_json(const Json& json) {
  Record::Row row;
  auto mode_name = text_at(json, "mode"), type_name = text_at(json, "wire"), misses = text_at(json, "misses");
  for (auto* text : {&mode_name, &type_name, &misses}) {
    if (!*text) return pass(*text);
  }
  auto mode = wire::parse_combine_mode(*mode_name);
  if (!mode) return pass(mode);
  auto type = wire::parse_row_type(*type_name);
  if (!type) return pass(type);
  auto figures = figures_from_json(json.value("figures", Json()));
  if (!figures) return pass(figures);
  const auto passed = json.find("passed");
  if (passed == json.end() || !passed->is_boolean()) return fail(ErrorKind::invalid_input, "'passed' is missing or neither true nor false");
  return Record::Row{{*mode, *type}, *figures, passed->get<bool>(), std::move(*misses)};
}

Result<Record> record_from_json(const Json& json) {
  Record record;
  auto model_text = text_at(json, "model");
  if (!model_text) return pass(model_text);
  auto model = wire::digest_from_hex(*model_text);
  if (!model) return pass(model);
  record.model = *model;
  for (const auto& [name, member] : {std::pair{"model_name", &Record::model_name}, std::pair{"engine", &Record::engine},
                                     std::pair{"text_sha256", &Record::text_sha256}, std::pair{"date", &Record::date}}) {
    auto text = text_at(json, name);
    if (!text) return pass(text);
    record.*member = std::move(*text);
  }
  const Json devices = json.value("devices", Json()), rows = json.value("rows", Json());
  if (!devices.is_array() || !rows.is_array()) return fail(ErrorKind::invalid_input, "'devices' or 'rows' is missing or not a list");
  for (const Json& device : devices) {
    if (!device.is_string()) return fail(ErrorKind::invalid_input, "'devices' holds something else than texts");
    record.devices.push_back(device.get<std::string>());
  }
  auto thresholds = thresholds_from_json(json.value("thresholds", Json()));
  if (!thresholds) return pass(thresholds);
  record.thresholds = *thresholds;
  for (const Json& row : rows) {
    auto parsed = row_from_json(row);
    if (!parsed) return pass(parsed);
    record.rows.push_back(std::move(*parsed));
  }
  return record;
}

/// What is signed: the record's JSON in its one canonical form (keys in order, no spaces).
std::string signed_text(const Json& record) { return std::string(purpose) + record.dump(); }
ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Result<std::string> read_bounded(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text(max_record_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (!in.eof() && in.fail()) || !in.is_open()) return fail(ErrorKind::io, "cannot be read");
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > max_record_bytes) return fail(ErrorKind::invalid_input, "is longer than any gate record");
  return text;
}

}  // namespace

Json to_json(const Record::Row& row) {
  return {{"mode", wire::to_string(row.setting.mode)},
          {"wire", wire::to_string(row.setting.type)},
          {"figures", to_json(row.figures)},
          {"passed", row.passed},
          {"misses", row.misses}};
}

Result<std::string> seal(const Record& record, const net::Identity& identity) {
  const Json json = to_json(record);
  auto signature = net::sign(identity, bytes_of(signed_text(json)));
  if (!signature) return pass(signature);
  const Json sealed{{"record", json},
                    {"key", net::base64url(std::as_bytes(std::span(identity.key().bytes)))},
                    {"signature", net::base64url(std::as_bytes(std::span(*signature)))}};
  return sealed.dump(2) + "\n";
}

Result<Record> unseal(std::string_view text, const net::PeerKey& trusted) {
  const Json sealed = Json::parse(text, nullptr, false);
  if (!sealed.is_object() || !sealed.contains("record")) return fail(ErrorKind::invalid_input, "is not a gate record");
  auto key_text = text_at(sealed, "key"), signature_text = text_at(sealed, "signature");
  if (!key_text) return pass(key_text);
  if (!signature_text) return pass(signature_text);
  const auto key = net::from_base64url(*key_text), signature_bytes = net::from_base64url(*signature_text);
  net::Signature signature{};
  if (!key || key->size() != trusted.bytes.size() || !signature_bytes || signature_bytes->size() != signature.size()) {
    return fail(ErrorKind::invalid_input, "has a damaged key or signature");
  }
  if (std::memcmp(key->data(), trusted.bytes.data(), key->size()) != 0)
    return fail(ErrorKind::unauthorized, "was signed by another backbone");
  std::memcpy(signature.data(), signature_bytes->data(), signature.size());
  if (!net::is_signed_by(trusted, bytes_of(signed_text(sealed["record"])), signature)) {
    return fail(ErrorKind::unauthorized, "was changed after it was signed");
  }
  return record_from_json(sealed["record"]);
}

fs::path records_folder(const fs::path& home) { return home / "gates"; }

std::string record_name(const Record& record) {
  std::string name = wire::to_hex(record.model).substr(0, name_digits) + "-" + record.engine;
  for (const std::string& device : record.devices) name += "-" + device;
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return name.substr(0, 200) + ".json";
}

Result<> save(const fs::path& folder, const Record& record, const net::Identity& identity) {
  auto text = seal(record, identity);
  if (!text) return pass(text);
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path file = folder / record_name(record);
  fs::path unfinished = file;
  unfinished += ".new";
  {
    std::ofstream out(unfinished, std::ios::binary | std::ios::trunc);
    out << *text;
    out.flush();
    if (!out) return fail(ErrorKind::io, "cannot write '{}'", unfinished.string());
  }
  fs::rename(unfinished, file, error);
  if (error) return fail(ErrorKind::io, "cannot write '{}': {}", file.string(), error.message());
  return {};
}

Found find_records(const fs::path& folder, const wire::Digest& model, const std::string& engine, const net::PeerKey& trusted) {
  Found found;
  std::error_code error;
  const std::string digits = wire::to_hex(model).substr(0, name_digits);
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(digits) || !name.ends_with(".json")) continue;
    auto text = read_bounded(entry->path());
    auto record = text ? unseal(*text, trusted) : Result<Record>(pass(text));
    if (!record) {
      found.problems.push_back(
          std::format("the gate record {} {}; run `linkcpp gate` again", entry->path().string(), record.error().message));
    } else if (record->model == model && record->engine == engine) {
      found.records.push_back(std::move(*record));
    }
  }
  return found;
}

const Record* latest(std::span<const Record> records) {
  const auto last = std::ranges::max_element(records, {}, &Record::date);
  return last == records.end() ? nullptr : &*last;
}

std::optional<Choice> choose(std::span<const Record> records, wire::CombineMode mode) {
  Choice choice{.record = latest(records)};
  if (choice.record == nullptr) return std::nullopt;
  for (const auto& row : choice.record->rows) {
    if (row.setting.mode != mode || !row.passed) continue;
    if (wire::row_bytes(row.setting.type, typical_row) < wire::row_bytes(choice.type, typical_row)) choice.type = row.setting.type;
  }
  return choice;
}

std::string device_kind(std::string_view description) {
  const std::string_view whole = description.substr(0, description.find(" ("));
  std::string_view name = whole.substr(0, whole.find_first_of(" ("));
  const std::string_view architecture = whole.substr(name.size());
  while (name.size() > 1 && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return std::string(name).append(architecture.starts_with(' ') ? architecture : "");
}

bool covers(const Record& record, std::string_view kind) { return std::ranges::find(record.devices, kind) != record.devices.end(); }

}  // namespace linkcpp::gate
