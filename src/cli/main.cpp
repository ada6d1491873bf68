// Entry point: parses the command line, runs one subcommand.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <format>

#include "cli/command.h"
#include "engine/anatomy.h"

namespace linkcpp::cli {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_input:
      return 2;
    case ErrorKind::not_found:
    case ErrorKind::unavailable:
      return 3;
    case ErrorKind::unauthorized:
      return 4;
    case ErrorKind::incompatible:
      return 5;
    case ErrorKind::timeout:
      return 6;
    case ErrorKind::io:
      return 7;
    case ErrorKind::internal:
      break;
  }
  return 1;
}

int report(const Error& error) {
  std::fprintf(stderr, "linkcpp: error: %s\n", error.message.c_str());
  return exit_code(error.kind);
}

namespace {

/// What stands behind the first "--" is llama-server's and must not meet our parser.
std::vector<std::string> split_passed_on(std::vector<std::string>& arguments) {
  const auto mark = std::ranges::find(arguments, "--");
  if (mark == arguments.end()) return {};
  std::vector<std::string> behind(mark + 1, arguments.end());
  arguments.erase(mark, arguments.end());
  return behind;
}

int run(std::vector<std::string> arguments) {
  const auto passed_on = split_passed_on(arguments);
  CLI::App app{
      "linkcpp serves Mixture-of-Experts models whose experts live on other people's machines.\n"
      "A backbone runs an unmodified llama-server; workers hold the routed experts.\n\n"
      "  linkcpp demo                     the whole swarm on this machine, with the model that comes along\n"
      "  linkcpp token                    on the backbone: print the token that lets a worker join\n"
      "  linkcpp worker --join TOKEN ...  on a worker: hold experts and compute them\n"
      "  linkcpp serve --model FILE       on the backbone: an OpenAI-compatible server over the swarm"};
  app.name("linkcpp");
  // Descriptions and footers hold examples, line by line: the parser must not fill them into paragraphs.
  app.get_formatter()->enable_description_formatting(false);
  app.get_formatter()->enable_footer_formatting(false);
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("linkcpp ") + LINKCPP_VERSION + ", " + engine::engine_version());
  app.set_config("--config", "", "Read options from a TOML file: [subcommand] sections with the long option names")
      ->envname("LINKCPP_CONFIG_FILE");
  app.footer(
      "Every option can also be given in the file of --config. Exit codes: 0 done, 1 internal error, 2 wrong usage or input,\n"
      "3 something is missing, 4 refused, 5 incompatible versions or models, 6 deadline passed, 7 input/output error.");
  Action chosen;
  setup_token(app, chosen);
  setup_worker(app, chosen);
  setup_serve(app, chosen, passed_on);
  setup_demo(app, chosen);
  setup_inspect(app, chosen);
  setup_slice(app, chosen);
  setup_fetch(app, chosen);
  setup_share(app, chosen);
  setup_relay(app, chosen);
  setup_doctor(app, chosen);
  setup_bench(app, chosen);
  setup_gate(app, chosen);
  setup_gate_run(app, chosen);
  // The parser would only say that a subcommand is required.
  if (!arguments.empty() && !arguments[0].starts_with("-") && app.get_subcommand_no_throw(arguments[0]) == nullptr) {
    return report({ErrorKind::invalid_input, std::format("there is no subcommand '{}'; `linkcpp --help` lists them", arguments[0])});
  }
  try {
    std::ranges::reverse(arguments);  // as the parser wants a vector
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  if (!passed_on.empty() && !app.got_subcommand("serve")) {
    return report({ErrorKind::invalid_input, "only 'linkcpp serve' takes arguments behind '--' (they go to llama-server)"});
  }
  return chosen ? chosen() : 2;
}

}  // namespace
}  // namespace linkcpp::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return linkcpp::cli::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    return linkcpp::cli::report({linkcpp::ErrorKind::internal, error.what()});
  }
}
