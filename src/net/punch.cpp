#include "net/punch.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <span>

#include "net/hmac.h"

namespace linkcpp::net {
namespace {

constexpr std::array<std::byte, 5> opening{std::byte{0x10}, std::byte{'L'}, std::byte{'K'}, std::byte{'P'}, std::byte{1}};
constexpr std::size_t tag_bytes = 16;
constexpr std::size_t tagged_bytes = probe_bytes - tag_bytes;
constexpr std::size_t max_questions = 16;  // of one candidate, whose answers are still awaited
constexpr std::size_t max_answers = 64;    // waiting to be sent

/// Zeros, which no authentic probe has, where OpenSSL is broken.
Hmac mac_of(ByteSpan bytes, const PunchKey& key) { return hmac_sha256(key, bytes).value_or(Hmac{}); }

}  // namespace

std::uint64_t punch_key_name(const PunchKey& key) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(key.data(), key.size(), digest.data());
  std::uint64_t name = 0;
  std::memcpy(&name, digest.data(), sizeof name);
  return name;
}

Bytes encode_probe(const Probe& probe, const PunchKey& key) {
  Bytes bytes;
  bytes.reserve(probe_bytes);
  ByteWriter out(bytes);
  out.raw(opening);
  out.put(static_cast<std::uint8_t>(probe.kind));
  out.put(static_cast<std::uint8_t>(probe.from_dialer ? 1 : 0));
  out.put(std::uint8_t{0});
  out.put(punch_key_name(key));
  out.put(probe.nonce);
  out.put(probe.echo);
  const auto mac = mac_of(bytes, key);
  out.raw(std::as_bytes(std::span(mac)).first(tag_bytes));
  return bytes;
}

std::optional<std::uint64_t> probe_key_name(ByteSpan datagram) {
  if (datagram.size() != probe_bytes || !std::ranges::equal(datagram.first(opening.size()), opening)) return std::nullopt;
  ByteReader in(datagram.subspan(8));
  return in.get<std::uint64_t>();
}

std::optional<Probe> decode_probe(ByteSpan datagram, const PunchKey& key) {
  if (!probe_key_name(datagram)) return std::nullopt;
  const auto mac = mac_of(datagram.first(tagged_bytes), key);
  if (CRYPTO_memcmp(mac.data(), datagram.data() + tagged_bytes, tag_bytes) != 0) return std::nullopt;
  ByteReader in(datagram.subspan(opening.size()));
  Probe probe;
  const auto kind = in.get<std::uint8_t>();
  if (kind != static_cast<std::uint8_t>(Probe::Kind::question) && kind != static_cast<std::uint8_t>(Probe::Kind::answer))
    return std::nullopt;
  probe.kind = static_cast<Probe::Kind>(kind);
  probe.from_dialer = in.get<std::uint8_t>() != 0;
  in.get<std::uint8_t>();
  in.get<std::uint64_t>();
  probe.nonce = in.get<std::uint64_t>();
  probe.echo = in.get<std::uint64_t>();
  return probe;
}

Puncher::Puncher(PunchKey key, bool dialer, std::uint64_t seed, Time now, Knobs knobs)
    : key_(key), dialer_(dialer), state_(seed | 1), begun_(now), knobs_(knobs) {}

/// Unpredictable only to those who do not have the seed; that a probe is genuine is the tag's business.
std::uint64_t Puncher::nonce() {
  state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
  return state_;
}

Puncher::Candidate* Puncher::candidate(const Endpoint& at, Time now) {
  const auto found = std::ranges::find(candidates_, at, &Candidate::at);
  if (found != candidates_.end()) return &*found;
  if (candidates_.size() >= knobs_.max_candidates || at.port() == 0) return nullptr;
  candidates_.push_back({.at = at, .next = now, .pause = knobs_.first_pause});
  return &candidates_.back();
}

bool Puncher::received(ByteSpan datagram, const Endpoint& from, Time now) {
  const auto probe = decode_probe(datagram, key_);
  if (!probe || probe->from_dialer == dialer_) return false;
  Candidate* at = candidate(from, now);
  if (probe->kind == Probe::Kind::question) {
    if (answers_.size() < max_answers) {
      answers_.push_back({from, encode_probe({Probe::Kind::answer, dialer_, nonce(), probe->nonce}, key_)});
    }
    return true;
  }
  if (at == nullptr) return true;
  const auto question = at->questions.find(probe->echo);
  if (question == at->questions.end()) return true;  // late, or of another address
  if (!std::exchange(at->answered, true)) found_.push_back({from, now - question->second});
  return true;
}

std::vector<Puncher::Send> Puncher::due(Time now) {
  std::vector<Send> sends = std::exchange(answers_, {});
  if (over(now)) return sends;
  for (Candidate& at : candidates_) {
    if (at.answered || at.next > now) continue;
    const std::uint64_t question = nonce();
    if (at.questions.size() >= max_questions)
      at.questions.erase(std::ranges::min_element(at.questions, {}, &std::pair<const std::uint64_t, Time>::second));
    at.questions[question] = now;
    sends.push_back({at.at, encode_probe({Probe::Kind::question, dialer_, question, 0}, key_)});
    at.next = now + at.pause;
    at.pause = std::min<Time>(at.pause * 3 / 2, knobs_.longest_pause);
  }
  return sends;
}

Puncher::Time Puncher::next() const {
  if (!answers_.empty()) return Time(0);
  Time next = begun_ + knobs_.deadline;
  for (const Candidate& at : candidates_) {
    if (!at.answered) next = std::min(next, at.next);
  }
  return next;
}

std::vector<Puncher::Found> Puncher::found() { return std::exchange(found_, {}); }

}  // namespace linkcpp::net
