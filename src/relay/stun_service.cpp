#include "relay/stun_service.h"

#include "net/stun.h"

namespace linkcpp::relay {
namespace {

constexpr double questions_per_second = 10, question_burst = 40;
/// Addresses that are remembered; then all are forgiven.
constexpr std::size_t max_askers = 8192;

}  // namespace

void StunService::start() {
  socket_->when_readable([self = shared_from_this()](bool open) {
    if (!open || self->stopped_) return;
    for (auto batch = self->socket_->receive(); !batch.empty(); batch = self->socket_->receive()) {
      for (const auto& datagram : batch) self->answer(datagram);
    }
    self->start();
  });
}

void StunService::stop() {
  stopped_ = true;
  socket_->cancel();
}

bool StunService::may_ask(const boost::asio::ip::address& address) {
  if (askers_.size() >= max_askers) askers_.clear();
  return askers_.try_emplace(address, questions_per_second, question_burst).first->second.take(1, Clock::now());
}

void StunService::answer(const net::UdpSocket::Datagram& datagram) {
  const auto id = net::parse_stun_request(datagram.bytes);
  if (!id || !may_ask(datagram.from.address())) {
    ++counters_->stun_ignored;
    return;
  }
  ++counters_->stun_answers;
  const Bytes answer = net::make_stun_answer(*id, datagram.from);
  socket_->send(datagram.from, answer, answer.size());
}

}  // namespace linkcpp::relay
