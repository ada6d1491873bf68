#include "serve/status.h"

#include <algorithm>

#include "serve/text.h"

namespace linkcpp::serve {
namespace {

/// Workers that left are kept for the view, but a peer that comes and goes under ever new names must not fill memory.
constexpr std::size_t most_workers = 4096;

}  // namespace

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

Result<Json> parse_event(std::string_view line) {
  auto event = Json::parse(line, nullptr, false);
  if (!event.is_object() || text_of(event, "event").empty()) {
    return fail(ErrorKind::invalid_input, "the plugin's status line is not an event: '{}'", printable(line.substr(0, 80)));
  }
  return event;
}

void SwarmStatus::apply(const Json& event) {
  const auto kind = text_of(event, "event");
  if (kind == "listening") {
    listening_ = text_of(event, "address");
  } else if (kind == "worker_joined") {
    if (workers_.size() >= most_workers) std::erase_if(workers_, [](const auto& entry) { return entry.second.state == "left"; });
    if (workers_.size() >= most_workers) return;
    const auto held = event.find("held");
    workers_[text_of(event, "name")] = {text_of(event, "name"),
                                        text_of(event, "key"),
                                        text_of(event, "endpoint"),
                                        text_of(event, "transport"),
                                        text_of(event, "device"),
                                        text_of(event, "experts"),
                                        held != event.end() && held->is_number_unsigned() ? held->get<std::uint64_t>() : 0,
                                        "joined",
                                        ""};
  } else if (kind == "worker_holds") {
    const auto worker = workers_.find(text_of(event, "name"));
    if (worker == workers_.end()) return;
    worker->second.experts = text_of(event, "experts");
    worker->second.held = static_cast<std::uint64_t>(number_of(event, "held"));
  } else if (kind == "worker_suspended" || kind == "worker_resumed") {
    const auto worker = workers_.find(text_of(event, "name"));
    if (worker == workers_.end() || worker->second.state == "left") return;
    worker->second.out_of_touch = kind == "worker_suspended";
  } else if (kind == "worker_paths") {
    const auto worker = workers_.find(text_of(event, "name"));
    if (worker == workers_.end()) return;
    worker->second.endpoint = text_of(event, "endpoint");
    worker->second.transport = text_of(event, "transport");
    worker->second.why = text_of(event, "why");
    if (const auto paths = event.find("paths"); paths != event.end()) worker->second.paths = *paths;
  } else if (kind == "worker_left" || kind == "worker_draining") {
    const auto worker = workers_.find(text_of(event, "name"));
    if (worker == workers_.end()) return;
    worker->second.state = kind == "worker_left" ? "left" : "draining";
    worker->second.reason = text_of(event, "reason");
  } else if (kind == "coverage") {
    const auto complete = event.find("complete");
    complete_ = complete != event.end() && complete->is_boolean() && complete->get<bool>();
    missing_ = text_of(event, "missing");
  } else if (kind == "account") {
    account_ = event;
    account_.erase("event");
  } else if (kind == "error") {
    last_error_ = text_of(event, "message");
  } else if (kind == "ready") {
    ready_ = true;
  }
}

void SwarmStatus::restarted() {
  complete_ = ready_ = false;
  missing_.clear();
  for (auto& [name, worker] : workers_) {
    if (worker.state != "left") worker.reason = "the engine was restarted";
    worker.state = "left";
  }
}

std::size_t SwarmStatus::live_workers() const {
  return static_cast<std::size_t>(std::ranges::count_if(workers_, [](const auto& entry) { return entry.second.state != "left"; }));
}

Json SwarmStatus::to_json() const {
  Json workers = Json::array();
  for (const auto& [name, worker] : workers_) {
    workers.push_back({{"name", name},
                       {"key", worker.key},
                       {"endpoint", worker.endpoint},
                       {"transport", worker.transport},
                       {"device", worker.device},
                       {"experts", worker.experts},
                       {"held", worker.held},
                       {"state", worker.state},
                       {"out_of_touch", worker.out_of_touch},
                       {"paths", worker.paths},
                       {"why", worker.why},
                       {"reason", worker.reason}});
  }
  return {{"workers", std::move(workers)},
          {"coverage", {{"complete", complete_}, {"missing", missing_}}},
          {"account", account_},
          {"listen", listening_},
          {"last_error", last_error_}};
}

std::string describe_event(const Json& event) {
  const auto kind = text_of(event, "event");
  const auto text = [&](const char* key) { return printable(text_of(event, key)); };
  if (kind == "listening") return std::format("listening for workers on {}", text("address"));
  if (kind == "worker_joined") {
    return std::format("worker {} joined from {} by {} ({}; {})", text("name"), text("endpoint"), text("transport"), text("device"),
                       text("experts"));
  }
  if (kind == "worker_assigned") return std::format("worker {} is to hold {}", text("name"), text("experts"));
  if (kind == "worker_holds" && number_of(event, "bytes") == number_of(event, "bytes_wanted"))
    return std::format("worker {} has its experts: {}", text("name"), text("experts"));
  if (kind == "worker_suspended") return std::format("worker {} is out of touch; waiting for it to come back", text("name"));
  if (kind == "worker_resumed") return std::format("worker {} is back, by {}", text("name"), text("transport"));
  if (kind == "worker_paths" && event.contains("moved"))
    return std::format("worker {} is reached by {} now, at {}{}{}", text("name"), text("transport"), text("endpoint"),
                       text("why").empty() ? "" : ": ", text("why"));
  if (kind == "worker_left") return std::format("worker {} left: {}", text("name"), text("reason"));
  if (kind == "worker_draining") return std::format("worker {} drains: it finishes what it has and leaves", text("name"));
  if (kind == "refused") return std::format("refused {}: {}", text("endpoint"), text("reason"));
  if (kind == "error") return std::format("error: {}", text("message"));
  return {};
}

}  // namespace linkcpp::serve
