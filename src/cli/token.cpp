// `linkcpp token`: prints the token that lets workers join this backbone.
#include "net/token.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "net/endpoint.h"
#include "net/transport.h"
#include "serve/address.h"
#include "serve/text.h"

namespace linkcpp::cli {
namespace {

struct TokenOptions {
  std::string home;
  std::vector<std::string> addresses;
  bool json = false;
};

/// Addresses under which workers elsewhere may reach this machine, at the default port.
std::vector<std::string> guessed_addresses() {
  std::vector<std::string> result;
  for (const auto& host : serve::local_addresses()) result.push_back(serve::HostPort{host, 7101}.text());
  if (result.empty()) result.push_back("127.0.0.1:7101");
  return result;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

void explain(const TokenOptions& options, const std::vector<std::string>& addresses, const std::string& home) {
  std::fprintf(stderr, "\nThis token lets a machine join as a worker: give it only to people whose computers you let compute for you.\n");
  std::fprintf(stderr, "  on the worker:   linkcpp worker --join TOKEN --model FILE.gguf --experts 1/3\n");
  std::fprintf(stderr, "  on this machine: linkcpp serve --model FILE.gguf%s\n",
               options.home.empty() ? "" : (" --home " + serve::shell_quote(options.home)).c_str());
  std::fprintf(stderr, "Workers will dial %s%s.\n", joined(addresses).c_str(),
               options.addresses.empty()
                   ? " (guessed from this machine's interfaces; --address HOST:PORT names another, for example a public one)"
                   : "");
  std::fprintf(stderr, "Key and secret are in %s; whoever has them is this backbone.\n", home.c_str());
}

int run(const TokenOptions& options) {
  for (const auto& address : options.addresses) {
    if (auto parsed = net::parse_address(address); !parsed) return report(parsed.error());
  }
  const auto home = net::home_folder(options.home);
  auto backbone = net::backbone_credentials(home);
  if (!backbone) return report(backbone.error());
  const auto addresses = options.addresses.empty() ? guessed_addresses() : options.addresses;
  const auto token = net::JoinToken{backbone->identity.key(), backbone->secret, addresses}.encode();
  if (options.json) {
    const nlohmann::json json{
        {"token", token}, {"backbone", net::short_name(backbone->identity.key())}, {"addresses", addresses}, {"home", home.string()}};
    std::printf("%s\n", json.dump().c_str());
    return 0;
  }
  std::printf("%s\n", token.c_str());
  std::fflush(stdout);
  explain(options, addresses, home.string());
  return 0;
}

}  // namespace

void setup_token(CLI::App& root, Action& chosen) {
  auto options = std::make_shared<TokenOptions>();
  auto* command = root.add_subcommand("token", "Print the token that lets workers join this backbone (made on first use)");
  command->add_option("--home", options->home, "Folder of this node's key and secret (default: ~/.config/linkcpp)")
      ->envname("LINKCPP_HOME");
  command
      ->add_option("--address", options->addresses,
                   "What workers dial: HOST:PORT, or tcp://, quic://, ws://, wss:// to insist on a transport; may be repeated (default: "
                   "this machine's addresses, port 7101)")
      ->envname("LINKCPP_ADDRESS");
  command->add_flag("--json", options->json, "Print a JSON object: token, backbone, addresses, home");
  command->footer("The token is the only thing on standard output, so that it can be captured: TOKEN=$(linkcpp token)");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace linkcpp::cli
