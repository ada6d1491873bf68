// Keeps a port open on the router until it gets a signal; one JSON object a line for what happens. For tests with a real router program.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "net/port_mapper.h"
#include "net/socket.h"

namespace {

using namespace linkcpp;

void print(const nlohmann::json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

net::FindRouter finder(const std::string& protocol) {
  using Find = Result<std::unique_ptr<net::Router>> (*)(const std::stop_token&, std::chrono::milliseconds);
  if (protocol == "natpmp") return static_cast<Find>(net::find_natpmp_router);
  if (protocol == "upnp") return net::find_upnp_router;
  return net::find_any_router;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Keeps a port open on the router"};
  std::uint16_t port = 7101;
  int lease_s = 3600;
  std::string protocol = "any";
  app.add_option("--port", port);
  app.add_option("--lease", lease_s);
  app.add_option("--protocol", protocol)->check(CLI::IsMember({"any", "natpmp", "upnp"}));
  CLI11_PARSE(app, argc, argv);
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  {
    const net::PortMapper mapper(
        port,
        [](const net::PortMapper::Mapped& mapped) {
          print({{"event", "mapped"},
                 {"at", net::to_text(mapped.candidate.at)},
                 {"tcp_port", mapped.tcp_port},
                 {"by", mapped.by},
                 {"lease_s", mapped.lease.count()}});
        },
        [](const Error& error) { print({{"event", "trouble"}, {"why", error.message}}); }, {.lease = std::chrono::seconds(lease_s)},
        finder(protocol));
    int signal = 0;
    sigwait(&ending, &signal);
  }
  print({{"event", "ended"}});
  return 0;
}
