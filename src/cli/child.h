// Child processes of the subcommands that run a whole swarm: each with its log in a file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "serve/process.h"

namespace linkcpp::cli {

/// A command in our environment without the settings that would change what the children do, and with OpenMP teams that do not spin:
/// several engines share the cores.
serve::Command clean_command(std::vector<std::string> argv);

/// A child with its log in a file; stopped gracefully when it goes.
class Child {
 public:
  static Result<Child> start(serve::Command command, const std::filesystem::path& log);
  Child(Child&&) = default;
  Child& operator=(Child&&) = default;
  ~Child();

  void ask_to_stop() { process_.terminate(); }
  /// How it ended, once it has.
  std::optional<serve::ExitStatus> ended() { return process_.poll(); }
  /// An error, with the end of the log, if it has ended although it should run.
  Result<> check(const std::string& what);
  /// That error.
  [[nodiscard]] std::unexpected<Error> failure(const std::string& what, const serve::ExitStatus& ended) const;

 private:
  Child(serve::Process process, std::filesystem::path log) : process_(std::move(process)), log_(std::move(log)) {}
  [[nodiscard]] std::string tail() const;
  serve::Process process_;
  std::filesystem::path log_;
};

/// Threads of each of `processes` engines that share this machine's cores: `given`, unless that is 0.
int shared_threads(int given, int processes);

/// Workers on this machine that hold a model's experts between them.
struct LocalWorkers {
  std::filesystem::path program, model, folder;  ///< the folder gets a home and a log for each
  std::string prefix;                            ///< of their names: prefix-1, prefix-2, …
  std::string token;
  int count = 1, threads = 1;
  std::vector<std::string> extra;  ///< further arguments of `linkcpp worker`
};
Result<std::vector<Child>> start_workers(const LocalWorkers& workers);
/// An error if one of them has ended.
Result<> check_workers(std::vector<Child>& workers);

}  // namespace linkcpp::cli
