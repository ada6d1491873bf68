#include "doctor/examine.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>
#include <utility>

#include "doctor/relay_check.h"
#include "doctor/swarm_view.h"
#include "doctor/way.h"
#include "net/name_resolver.h"
#include "net/nat_probe.h"
#include "net/path_offer.h"
#include "net/router.h"
#include "serve/http_client.h"

namespace linkcpp::doctor {
namespace {

namespace asio = boost::asio;
using asio::awaitable;

/// Where STUN is asked: the UDP ports of nodes and relays. Web proxies have none.
std::optional<net::Endpoint> udp_side(const net::Address& address) {
  if (address.in_websocket()) return std::nullopt;
  return address.endpoint;
}

RouterFinding ask_router(const std::stop_token& stop, std::chrono::milliseconds limit) {
  const auto router = net::find_any_router(stop, std::min(limit, std::chrono::milliseconds(2000)));
  if (!router) return {.protocol = {}, .where = {}, .outside = {}, .error = router.error().message};
  RouterFinding finding{.protocol = std::string((*router)->protocol()), .where = (*router)->where(), .outside = {}, .error = {}};
  if (const auto outside = (*router)->outside()) finding.outside = *outside;
  return finding;
}

/// One examination. Coroutines of one thread write into the findings.
class Examiner {
 public:
  explicit Examiner(const Questions& questions) : questions_(questions) {}

  Result<Examination> run() {
    for (const net::Candidate& own : net::host_candidates(0, true)) {
      own_.push_back(own.at.address());
      findings_.own_addresses.push_back(own.at.address().to_string());
    }
    if (auto read = read_addresses(); !read) return pass(read);
    std::optional<RouterFinding> router;
    std::jthread asking;
    if (questions_.ask_router) {
      asking = std::jthread([&](const std::stop_token& stop) { router = ask_router(stop, questions_.limit); });
    }
    ask_all();
    context_.run();
    if (asking.joinable()) asking.join();
    findings_.router = std::move(router);
    judge();
    return std::move(findings_);
  }

 private:
  Result<> read_addresses() {
    for (const auto& [texts, destinations] :
         {std::pair(&questions_.token, &findings_.token), std::pair(&questions_.workers, &findings_.workers)}) {
      for (const std::string& text : *texts) {
        auto address = net::parse_address(text);
        if (!address) return pass(address);
        add_destination(text, std::move(*address), *destinations);
      }
    }
    for (const std::string& text : questions_.relays) {
      auto address = net::parse_address(text);
      if (!address) return pass(address);
      if (address->scheme != net::Scheme::relay) {
        return fail(ErrorKind::invalid_input, "'{}' is no relay's address: those begin with relay://", text);
      }
      add_relay(std::move(*address));
    }
    for (const std::string& text : questions_.stun) {
      auto endpoint = net::parse_endpoint(text);
      if (!endpoint) return pass(endpoint);
      add_server(*endpoint);
    }
    return {};
  }

  void add_destination(const std::string& text, net::Address address, std::vector<Destination>& destinations) {
    Destination& to = destinations.emplace_back();
    to.address = text;
    to.any_transport = text.find("://") == std::string::npos;
    boost::system::error_code no_number;
    const auto number = asio::ip::make_address(address.endpoint.host, no_number);
    to.global = no_number || net::is_global(number);
    if (const auto server = udp_side(address)) add_server(*server);
    if (address.scheme == net::Scheme::relay) add_relay(address);
    auto& list = ways_.emplace_back(&destinations, destinations.size() - 1, std::vector<net::Address>{}).addresses;
    list.push_back(address);
    if (!to.any_transport) return;
    address.scheme = net::Scheme::quic;
    list.push_back(std::move(address));
  }

  void add_relay(net::Address address) {
    address.key.reset();
    if (const auto server = udp_side(address)) add_server(*server);
    if (std::ranges::find(relays_, address) == relays_.end()) relays_.push_back(std::move(address));
  }

  void add_server(const net::Endpoint& server) {
    if (std::ranges::find(servers_, server) == servers_.end()) servers_.push_back(server);
  }

  template <class Task>
  void spawn(Task task) {
    asio::co_spawn(context_, std::move(task), [](const std::exception_ptr& failed) {
      if (failed) std::rethrow_exception(failed);
    });
  }

  void ask_all() {
    for (const Ways& ways : ways_) {
      Destination& to = (*ways.destinations)[ways.index];
      to.ways.resize(ways.addresses.size());
      for (std::size_t i = 0; i < ways.addresses.size(); ++i) spawn(try_one(ways.addresses[i], to.ways[i]));
    }
    findings_.relays.resize(relays_.size());
    for (std::size_t i = 0; i < relays_.size(); ++i) spawn(try_relay(relays_[i], findings_.relays[i]));
    spawn(ask_stun());
    if (questions_.backbone) spawn(ask_backbone());
  }

  awaitable<void> try_one(net::Address address, Way& into) {
    into = co_await try_way(context_, std::move(address), *questions_.credentials, questions_.limit);
  }
  awaitable<void> try_relay(net::Address address, RelayFinding& into) {
    into = co_await check_relay(context_, std::move(address), questions_.credentials, questions_.limit);
  }

  awaitable<void> ask_stun() {
    const auto strand = asio::make_strand(context_);
    std::vector<net::Udp::endpoint> v4, v6;
    for (const net::Endpoint& server : servers_) {
      net::NameResolver resolver(strand);
      const auto endpoints = co_await resolver.resolve(server, questions_.limit);
      if (!endpoints) continue;  // whoever needs the name says so
      for (const net::Tcp::endpoint& at : *endpoints) (at.address().is_v6() ? v6 : v4).emplace_back(at.address(), at.port());
    }
    for (auto* servers : {&v4, &v6}) {
      if (servers->empty()) continue;
      net::NatProbeKnobs knobs;
      knobs.limit = std::min(knobs.limit, questions_.limit);
      const auto answers = co_await net::probe_nat(strand, *servers, knobs);
      if (!answers) continue;
      findings_.families.push_back({.v6 = servers == &v6, .nat = {}, .sights = answers->sights});
      ports_.push_back(answers->local_port);
    }
  }

  awaitable<void> ask_backbone() {
    SwarmFinding finding;
    finding.url = "http://" + questions_.backbone->text();
    finding.asked_for = questions_.backbone_named;
    auto swarm = co_await serve::http_json(*questions_.backbone, "/v1/swarm", "", questions_.limit);
    if (swarm) {
      read_swarm(*swarm, finding);
    } else {
      finding.error = swarm.error();
    }
    if (swarm || finding.asked_for) findings_.swarm = std::move(finding);
  }

  /// When the router has said what it has outside.
  void judge() {
    for (std::size_t i = 0; i < findings_.families.size(); ++i) {
      FamilyFinding& family = findings_.families[i];
      const auto outside = findings_.router && !family.v6 ? findings_.router->outside : std::nullopt;
      family.nat = net::judge_nat(family.sights, own_, ports_[i], outside);
    }
  }

  struct Ways {
    std::vector<Destination>* destinations;
    std::size_t index;
    std::vector<net::Address> addresses;
  };

  const Questions& questions_;
  asio::io_context context_{1};
  Examination findings_;
  std::vector<asio::ip::address> own_;
  std::vector<Ways> ways_;
  std::vector<net::Address> relays_;
  std::vector<net::Endpoint> servers_;
  std::vector<std::uint16_t> ports_;  ///< of the sockets that asked, one for each family
};

}  // namespace

Result<Examination> examine(const Questions& questions) { return Examiner(questions).run(); }

}  // namespace linkcpp::doctor
