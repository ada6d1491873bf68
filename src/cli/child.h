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

}  // namespace linkcpp::cli
