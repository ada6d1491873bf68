// `linkcpp doctor`: what can be reached from here, how, and what to do about the rest.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "doctor/advice.h"
#include "doctor/examine.h"
#include "doctor/show.h"
#include "net/token.h"
#include "serve/http_client.h"

namespace linkcpp::cli {
namespace {

struct DoctorOptions {
  std::string token, token_file, home, backbone = "http://127.0.0.1:7102";
  std::vector<std::string> addresses, workers, relays, stun;
  bool backbone_named = false, no_router = false, json = false;
  double timeout_s = 5;
};

/// The node's own identity if it has one: looking must not make one.
Result<net::Identity> identity_of(const std::filesystem::path& home) {
  return std::filesystem::exists(home / "identity.pem") ? net::Identity::load_or_create(home) : net::Identity::generate();
}

Result<std::string> token_text(const DoctorOptions& options) {
  if (!options.token.empty() || options.token_file.empty()) return options.token;
  std::string text;
  std::ifstream in(options.token_file);
  if (!in || !(in >> text)) return fail(ErrorKind::not_found, "cannot read a join token from '{}'", options.token_file);
  return text;
}

Result<> be_worker(const DoctorOptions& options, const std::string& text, doctor::Questions& questions) {
  auto token = net::JoinToken::decode(text);
  if (!token) return pass(token);
  auto identity = identity_of(net::home_folder(options.home));
  if (!identity) return pass(identity);
  questions.token = options.addresses.empty() ? token->addresses : options.addresses;
  questions.credentials = net::Credentials{.identity = std::move(*identity), .secret = token->secret, .expected_peer = token->backbone};
  return {};
}

Result<> be_backbone(const DoctorOptions& options, doctor::Questions& questions) {
  const auto home = net::home_folder(options.home);
  if (!std::filesystem::exists(home / "swarm.secret")) {
    if (options.workers.empty()) return {};
    return fail(ErrorKind::invalid_input, "--worker checks what a backbone dials, and there is none in {}; name its folder with --home",
                home.string());
  }
  auto credentials = net::backbone_credentials(home);
  if (!credentials) return pass(credentials);
  questions.credentials = std::move(*credentials);
  return {};
}

Result<doctor::Questions> questions_of(const DoctorOptions& options) {
  doctor::Questions questions;
  auto text = token_text(options);
  if (!text) return pass(text);
  if (!text->empty() && !options.workers.empty()) {
    return fail(ErrorKind::invalid_input, "--token checks as a worker, --worker as a backbone: one at a time");
  }
  if (text->empty() && !options.addresses.empty()) {
    return fail(ErrorKind::invalid_input, "--address replaces a token's addresses: give the token as well, with --token");
  }
  if (auto who = text->empty() ? be_backbone(options, questions) : be_worker(options, *text, questions); !who) return pass(who);
  questions.workers = options.workers;
  questions.relays = options.relays;
  questions.stun = options.stun;
  questions.ask_router = !options.no_router;
  questions.limit = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
  if (options.backbone != "none") {
    auto url = serve::parse_http_url(options.backbone);
    if (!url) return pass(url);
    questions.backbone = *url;
    questions.backbone_named = options.backbone_named;
  }
  return questions;
}

int run(const DoctorOptions& options) {
  auto questions = questions_of(options);
  if (!questions) return report(questions.error());
  auto findings = doctor::examine(*questions);
  if (!findings) return report(findings.error());
  if (questions->credentials && questions->credentials->expected_peer) {
    findings->backbone = net::short_name(*questions->credentials->expected_peer);
  }
  const auto advice = doctor::advise(*findings);
  const std::string text = options.json
                               ? doctor::to_json(*findings, advice).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                               : doctor::to_text(*findings, advice);
  std::fputs(text.c_str(), stdout);
  return doctor::something_broken(advice) ? 1 : 0;
}

}  // namespace

void setup_doctor(CLI::App& root, Action& chosen) {
  auto o = std::make_shared<DoctorOptions>();
  auto* command = root.add_subcommand("doctor", "Say what can be reached from here, how and why, and what to do about the rest");
  command->add_option("--token,--join", o->token, "Join token: checks each of its addresses as a worker would dial it")
      ->envname("LINKCPP_TOKEN");
  command->add_option("--token-file", o->token_file, "Read the join token from this file");
  command->add_option("--address", o->addresses, "Check this instead of the token's addresses; may be repeated");
  command->add_option("--worker", o->workers,
                      "On a backbone: a worker that listens, as `linkcpp serve --worker` dials it; may be repeated");
  command->add_option("--relay", o->relays, "relay://HOST:PORT to check; may be repeated. Those of the token are checked anyway")
      ->envname("LINKCPP_DOCTOR_RELAY");
  command
      ->add_option("--stun", o->stun, "HOST:PORT of a STUN server (UDP); may be repeated. Relays and nodes of the token are asked anyway")
      ->envname("LINKCPP_DOCTOR_STUN");
  auto* backbone =
      command
          ->add_option("--backbone", o->backbone,
                       "The backbone's admin endpoint: shows how its workers are connected; or 'none'. The default may be absent")
          ->envname("LINKCPP_DOCTOR_BACKBONE")
          ->capture_default_str();
  command->add_flag("--no-router", o->no_router, "Do not ask the router whether it opens ports (takes up to some seconds)");
  command->add_option("--home", o->home, "Folder of this node's key (default: $LINKCPP_HOME, else ~/.config/linkcpp)")
      ->envname("LINKCPP_HOME");
  command->add_option("--timeout", o->timeout_s, "Seconds for each question")->check(CLI::Range(0.1, 120.0))->capture_default_str();
  command->add_flag("--json", o->json,
                    "Print a JSON object: ok, addresses, nat, router, token, workers, relays, choice, expect, swarm, advice");
  command->footer(
      "  linkcpp doctor --token TOKEN                     on a worker that cannot join: which address fails, and why\n"
      "  linkcpp doctor --relay relay://A:7103 --relay relay://B:7103    which NAT is before this machine\n"
      "  linkcpp doctor --worker relay://A:7103/KEY       on a backbone: whether a worker that listens can be reached\n"
      "  linkcpp doctor                                   on a backbone that serves: by which transport each worker is connected\n\n"
      "Everything is tried with this node's real key, up to an authenticated link, and let go again; nothing is changed, here or there.\n\n"
      "UDP and NAT. Nodes far away use QUIC, and meet directly by hole punching; both need UDP. A NAT that shows all others the same port\n"
      "(cone) can be punched through. One that shows each another port (symmetric) only towards public peers and some cones; two of them\n"
      "meet at a relay. Telling these apart takes two servers at different addresses: relays, backbones that listen, or any STUN server.\n"
      "What a filter lets in, and whether a firewall before a public address is open, cannot be seen from here; the output says so.\n\n"
      "Exit code 0: everything that was asked about works (of a token's addresses one is enough). 1: something is broken: no address of\n"
      "the token works, a worker or relay is not reachable, somebody with another key answers, experts are missing, or the backbone that "
      "was\n"
      "named does not answer. UDP that is blocked, or a NAT that cannot be punched through, is a hint, not a failure: links then use TCP "
      "or\n"
      "a relay. 2: wrong usage.");
  command->callback([o, backbone, &chosen] {
    o->backbone_named = backbone->count() > 0 && o->backbone != "none";
    chosen = [o] { return run(*o); };
  });
}

}  // namespace linkcpp::cli
