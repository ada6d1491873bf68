#include "cli/child.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <string_view>
#include <thread>

#include "serve/text.h"

namespace linkcpp::cli {

using namespace std::chrono_literals;

serve::Command clean_command(std::vector<std::string> argv) {
  serve::Command result{.argv = std::move(argv)};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto name = text.substr(0, text.find('='));
    if (name.starts_with("LINKCPP_") || name.starts_with("LLAMA_ARG_") || name == "GGML_BACKEND_PATH")
      result.env[std::string(name)] = std::nullopt;
  }
  result.env["OMP_WAIT_POLICY"] = "passive";
  return result;
}

Result<Child> Child::start(serve::Command command, const std::filesystem::path& log) {
  serve::Fd file(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) return fail(ErrorKind::io, "cannot write {}", log.string());
  const int raised = fcntl(file.get(), F_DUPFD_CLOEXEC, 10);  // above the descriptors that the child is given
  file = serve::Fd(raised);
  command.output = file.get();
  command.parent_death_signal = SIGTERM;  // so that it stops its own children, too
  auto process = serve::Process::start(command);
  if (!process) return pass(process);
  return Child(std::move(*process), log);
}

Child::~Child() {
  if (process_.pid() > 0) process_.stop(12s);
}

Result<> Child::check(const std::string& what) {
  if (const auto ended = process_.poll()) return failure(what, *ended);
  return {};
}

std::unexpected<Error> Child::failure(const std::string& what, const serve::ExitStatus& ended) const {
  return fail(ErrorKind::unavailable, "{} {}; the end of its log ({}):\n{}", what, ended.describe(), log_.string(), tail());
}

std::string Child::tail() const {
  std::ifstream in(log_);
  std::deque<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back("  | " + serve::printable(line));
    if (lines.size() > 12) lines.pop_front();
  }
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

int shared_threads(int given, int processes) {
  return given > 0 ? given : std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / processes);
}

Result<std::vector<Child>> start_workers(const LocalWorkers& workers) {
  std::vector<Child> started;
  for (int i = 1; i <= workers.count; ++i) {
    const auto name = std::format("{}-{}", workers.prefix, i);
    auto command = clean_command({workers.program.string(), "worker", "--model", workers.model.string(), "--experts",
                                  std::format("{}/{}", i, workers.count), "--name", name, "--home", (workers.folder / name).string(),
                                  "--threads", std::to_string(workers.threads)});
    command.argv.insert(command.argv.end(), workers.extra.begin(), workers.extra.end());
    command.env["LINKCPP_TOKEN"] = workers.token;  // not an argument, which everybody on the machine could read
    command.env["TMPDIR"] = workers.folder.string();
    auto child = Child::start(std::move(command), workers.folder / (name + ".log"));
    if (!child) return pass(child);
    started.push_back(std::move(*child));
  }
  return started;
}

Result<> check_workers(std::vector<Child>& workers) {
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (auto alive = workers[i].check(std::format("worker {}", i + 1)); !alive) return alive;
  }
  return {};
}

}  // namespace linkcpp::cli
