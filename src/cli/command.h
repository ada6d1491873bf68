// The subcommands of `linkcpp`. One file a subcommand; each adds itself to the parser and leaves its action in `chosen`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace linkcpp::cli {

/// Runs the chosen subcommand; returns the process's exit code.
using Action = std::function<int()>;

void setup_token(CLI::App& root, Action& chosen);
void setup_worker(CLI::App& root, Action& chosen);
/// `passed_on`: the arguments behind "--", which llama-server gets as they are; lives as long as `root`.
void setup_serve(CLI::App& root, Action& chosen, const std::vector<std::string>& passed_on);
void setup_demo(CLI::App& root, Action& chosen);
void setup_inspect(CLI::App& root, Action& chosen);
void setup_slice(CLI::App& root, Action& chosen);
void setup_fetch(CLI::App& root, Action& chosen);
void setup_share(CLI::App& root, Action& chosen);
void setup_relay(CLI::App& root, Action& chosen);
void setup_doctor(CLI::App& root, Action& chosen);
void setup_bench(CLI::App& root, Action& chosen);
void setup_gate(CLI::App& root, Action& chosen);
/// Hidden: one run of the gate, in a process of its own.
void setup_gate_run(CLI::App& root, Action& chosen);

/// 0 done, 1 internal, 2 wrong usage or input, 3 something is missing or not there now, 4 refused, 5 incompatible, 6 deadline, 7
/// input/output.
int exit_code(ErrorKind kind);
/// Prints "linkcpp: error: ..." to standard error and returns the exit code.
int report(const Error& error);

}  // namespace linkcpp::cli
