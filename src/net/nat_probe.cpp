#include "net/nat_probe.h"

#include <openssl/rand.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "net/coroutine.h"
#include "net/stun.h"

namespace linkcpp::net {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

/// The questions of one socket. Handlers of the socket hold it weakly.
class Questions : public std::enable_shared_from_this<Questions> {
 public:
  Questions(Strand strand, std::shared_ptr<UdpSocket> socket, const std::vector<Udp::endpoint>& servers)
      : socket_(std::move(socket)), changed_(std::move(strand)) {
    for (const Udp::endpoint& server : servers) {
      Question& question = questions_.emplace_back();
      question.sight.server = server;
      RAND_bytes(question.id.data(), static_cast<int>(question.id.size()));
    }
  }

  asio::awaitable<NatProbeAnswers> ask(NatProbeKnobs knobs) {
    read();
    const auto end = Clock::now() + knobs.limit;
    for (Clock::duration pause = knobs.first_pause; !all_answered() && Clock::now() < end; pause += pause / 2) {
      send();
      co_await answers_until(std::min(end, Clock::now() + pause));
    }
    socket_->cancel();
    NatProbeAnswers answers{.local_port = socket_->local().port()};
    for (const Question& question : questions_) answers.sights.push_back(question.sight);
    co_return answers;
  }

 private:
  struct Question {
    StunId id{};
    std::optional<Clock::time_point> sent;  ///< the last time
    StunSight sight;
  };

  [[nodiscard]] bool all_answered() const {
    return std::ranges::all_of(questions_, [](const Question& question) { return question.sight.seen.has_value(); });
  }

  void send() {
    for (Question& question : questions_) {
      if (question.sight.seen) continue;
      const Bytes request = make_stun_request(question.id);
      socket_->send(question.sight.server, request, request.size());
      question.sent = Clock::now();
    }
  }

  asio::awaitable<void> answers_until(Clock::time_point end) {
    while (!all_answered() && Clock::now() < end) {
      changed_.expires_at(end);
      co_await changed_.async_wait(as_values);
    }
  }

  void read() {
    socket_->when_readable([weak = weak_from_this()](bool open) {
      const auto self = weak.lock();
      if (!self || !open) return;
      for (auto datagrams = self->socket_->receive(); !datagrams.empty(); datagrams = self->socket_->receive()) {
        for (const UdpSocket::Datagram& datagram : datagrams) self->received(datagram);
      }
      self->read();
    });
  }

  void received(const UdpSocket::Datagram& datagram) {
    for (Question& question : questions_) {
      if (question.sight.seen || !question.sent || datagram.from != question.sight.server) continue;
      if (const auto seen = parse_stun_answer(datagram.bytes, question.id)) {
        question.sight.seen = *seen;
        question.sight.round_trip = Clock::now() - *question.sent;
        changed_.cancel();
      }
    }
  }

  std::shared_ptr<UdpSocket> socket_;
  asio::steady_timer changed_;
  std::vector<Question> questions_;
};

}  // namespace

asio::awaitable<Result<NatProbeAnswers>> probe_nat(Strand strand, std::vector<Udp::endpoint> servers, NatProbeKnobs knobs) {
  if (servers.empty()) co_return NatProbeAnswers{};
  const bool v6 = servers.front().address().is_v6();
  std::erase_if(servers, [v6](const Udp::endpoint& server) { return server.address().is_v6() != v6; });
  auto socket = UdpSocket::bind(strand, {v6 ? Udp::v6() : Udp::v4(), knobs.port});
  if (!socket) co_return pass(socket);
  const auto questions = std::make_shared<Questions>(std::move(strand), std::move(*socket), servers);
  co_return co_await questions->ask(knobs);
}

}  // namespace linkcpp::net
