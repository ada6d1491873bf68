#include "serve/account_view.h"

#include <algorithm>
#include <format>
#include <vector>

#include "serve/status.h"
#include "serve/text.h"

namespace linkcpp::serve {
namespace {

double per(double amount, double count) { return count > 0 ? amount / count : 0; }

Json member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : Json::object();
}

/// "7", or "7 (chunk)" for the second set of experts of a layer.
std::string layer_name(const std::string& key) {
  constexpr unsigned long chunk_bit = 0x8000;
  const auto number = std::strtoul(key.c_str(), nullptr, 10);
  return (number & chunk_bit) != 0 ? std::format("{} (chunk)", number & ~chunk_bit) : key;
}

Json layer_summary(const std::string& key, const Json& tally) {
  const double tokens = number_of(tally, "tokens");
  return {{"layer", layer_name(key)},
          {"steps", number_of(tally, "steps")},
          {"tokens", tokens},
          {"bytes_out_per_token", per(number_of(tally, "bytes_out"), tokens)},
          {"bytes_back_per_token", per(number_of(tally, "bytes_in"), tokens)},
          {"wait_us_per_token", per(number_of(tally, "wait_us"), tokens)},
          {"flight_us_per_token", per(number_of(tally, "flight_us"), tokens)},
          {"compute_us_per_token", per(number_of(tally, "compute_us"), tokens)}};
}

Json worker_summary(const std::string& name, const Json& tally) {
  const double tokens = number_of(tally, "tokens"), requests = number_of(tally, "steps");
  return {{"name", name},
          {"requests", requests},
          {"tokens", tokens},
          {"pairs", number_of(tally, "pairs")},
          {"bytes_out", number_of(tally, "bytes_out")},
          {"bytes_back", number_of(tally, "bytes_in")},
          {"bytes_out_per_token", per(number_of(tally, "bytes_out"), tokens)},
          {"bytes_back_per_token", per(number_of(tally, "bytes_in"), tokens)},
          {"compute_us_per_request", per(number_of(tally, "compute_us"), requests)},
          {"queued_us_per_request", per(number_of(tally, "queued_us"), requests)},
          {"rtt_us", number_of(tally, "rtt_us")}};
}

Json total_summary(const Json& difference) {
  const Json total = member(difference, "total");
  const double bytes = number_of(total, "bytes_out") + number_of(total, "bytes_in");
  return {{"passes", number_of(difference, "passes")},
          {"steps", number_of(total, "steps")},
          {"bytes_out", number_of(total, "bytes_out")},
          {"bytes_back", number_of(total, "bytes_in")},
          {"payload_share", per(number_of(total, "payload_out") + number_of(total, "payload_in"), bytes)},
          {"resent_pairs", number_of(total, "resent_pairs")},
          {"failed_steps", number_of(total, "failed_steps")},
          {"wait_us", number_of(total, "wait_us")},
          {"compute_us", number_of(total, "compute_us")}};
}

}  // namespace

Json account_difference(const Json& before, const Json& after) {
  if (!after.is_object()) return Json::object();
  Json result = Json::object();
  for (const auto& [key, value] : after.items()) {
    const Json old = before.is_object() && before.contains(key) ? before[key] : Json();
    if (value.is_object()) {
      result[key] = account_difference(old, value);
    } else if (value.is_number() && old.is_number() && key != "rtt_us" && old.get<double>() <= value.get<double>()) {
      result[key] = value.get<double>() - old.get<double>();
    } else {
      result[key] = value;
    }
  }
  return result;
}

Json summarize_account(const Json& difference) {
  std::vector<std::pair<unsigned long, Json>> layers;
  for (const auto& [key, tally] : member(difference, "layers").items()) {
    if (number_of(tally, "steps") > 0) layers.emplace_back(std::strtoul(key.c_str(), nullptr, 10), layer_summary(key, tally));
  }
  std::ranges::sort(layers, {}, [](const auto& entry) { return entry.first; });
  Json summary{{"layers", Json::array()}, {"workers", Json::array()}, {"total", total_summary(difference)}};
  for (auto& [key, layer] : layers) summary["layers"].push_back(std::move(layer));
  for (const auto& [name, tally] : member(difference, "workers").items()) summary["workers"].push_back(worker_summary(name, tally));
  return summary;
}

std::string account_tables(const Json& summary) {
  std::vector<std::vector<std::string>> layers{
      {"layer", "tokens", "out/token", "back/token", "wait/token", "flight/token", "compute/token"}};
  for (const auto& layer : summary.at("layers")) {
    layers.push_back({text_of(layer, "layer"), std::format("{:.0f}", number_of(layer, "tokens")),
                      human_bytes(number_of(layer, "bytes_out_per_token")), human_bytes(number_of(layer, "bytes_back_per_token")),
                      human_time_us(number_of(layer, "wait_us_per_token")), human_time_us(number_of(layer, "flight_us_per_token")),
                      human_time_us(number_of(layer, "compute_us_per_token"))});
  }
  std::vector<std::vector<std::string>> workers{
      {"worker", "requests", "rows", "out", "back", "out/row", "back/row", "compute/request", "round trip"}};
  for (const auto& worker : summary.at("workers")) {
    workers.push_back({printable(text_of(worker, "name")), std::format("{:.0f}", number_of(worker, "requests")),
                       std::format("{:.0f}", number_of(worker, "tokens")), human_bytes(number_of(worker, "bytes_out")),
                       human_bytes(number_of(worker, "bytes_back")), human_bytes(number_of(worker, "bytes_out_per_token")),
                       human_bytes(number_of(worker, "bytes_back_per_token")), human_time_us(number_of(worker, "compute_us_per_request")),
                       human_time_us(number_of(worker, "rtt_us"))});
  }
  return table(layers) + "\n" + table(workers);
}

}  // namespace linkcpp::serve
