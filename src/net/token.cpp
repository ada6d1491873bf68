#include "net/token.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "net/encoding.h"
#include "net/endpoint.h"
#include "net/home_file.h"

namespace linkcpp::net {
namespace {

constexpr std::string_view prefix = "lkc1.";
constexpr std::size_t check_bytes = 4;
constexpr std::size_t max_text = 8192;
constexpr const char* secret_file = "swarm.secret";
constexpr const char* ask_again = "ask the backbone's operator for `linkcpp token` and paste the whole line";

std::array<unsigned char, SHA256_DIGEST_LENGTH> digest_of(ByteSpan bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

std::unexpected<Error> wrong(std::string_view what) { return fail(ErrorKind::invalid_input, "{}; {}", what, ask_again); }

/// A token that came in a mail or chat may be wrapped; white space carries no meaning.
std::string without_spaces(const std::string& text) {
  std::string result;
  std::ranges::copy_if(text, std::back_inserter(result), [](unsigned char c) { return c != ' ' && (c < '\t' || c > '\r'); });
  return result;
}

/// "lkc", digits, a dot: a token of some version.
bool other_version(std::string_view text) {
  const std::size_t dot = text.find('.');
  return text.starts_with("lkc") && dot != std::string_view::npos && dot > 3 && dot < 8 &&
         std::ranges::all_of(text.substr(3, dot - 3), [](char c) { return c >= '0' && c <= '9'; });
}

Result<JoinToken> parse_payload(ByteSpan payload) {
  ByteReader in(payload);
  JoinToken token;
  in.get<std::uint16_t>();
  const auto copy = [&in](std::array<std::uint8_t, 32>& to) {
    const ByteSpan from = in.take(to.size());
    if (!from.empty()) std::ranges::transform(from, to.begin(), [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  };
  copy(token.backbone.bytes);
  copy(token.secret);
  const auto count = in.get<std::uint8_t>();
  for (unsigned i = 0; i < count && in.ok(); ++i) {
    std::string address = in.text();
    if (!in.ok()) break;
    if (auto parsed = parse_address(address); !parsed) return wrong(std::format("the join token is malformed: {}", parsed.error().message));
    token.addresses.push_back(std::move(address));
  }
  if (!in.finished()) return wrong("the join token is malformed: its parts do not fit its length");
  return token;
}

}  // namespace

std::string JoinToken::encode() const {
  const std::size_t count = std::min(addresses.size(), max_addresses);
  Bytes payload;
  ByteWriter out(payload);
  out.put<std::uint16_t>(0);
  out.raw(std::as_bytes(std::span(backbone.bytes)));
  out.raw(std::as_bytes(std::span(secret)));
  out.put(static_cast<std::uint8_t>(count));
  for (const std::string& address : std::span(addresses).first(count)) out.text(address);
  // The length comes first, so that a cut-off paste is recognised as such.
  const auto length = static_cast<std::uint16_t>(payload.size());
  std::memcpy(payload.data(), &length, sizeof length);
  const auto digest = digest_of(payload);
  out.raw(std::as_bytes(std::span(digest)).first(check_bytes));
  return std::string(prefix) + base64url(payload);
}

Result<JoinToken> JoinToken::decode(const std::string& pasted) {
  if (pasted.size() > max_text) return wrong("the text is too long to be a join token");
  const std::string text = without_spaces(pasted);
  if (text.empty()) return wrong("the join token is empty");
  if (text.size() < prefix.size() && prefix.starts_with(text)) return wrong("the join token is cut off");
  if (!text.starts_with(prefix)) {
    if (!other_version(text)) return wrong("this is not a join token: one begins with 'lkc1.'");
    return fail(ErrorKind::invalid_input,
                "the join token is of version '{}', this program reads 'lkc1': install the version of linkcpp that the backbone runs",
                text.substr(0, text.find('.')));
  }
  const std::string_view body = std::string_view(text).substr(prefix.size());
  std::string_view whole = body;
  if (whole.size() % 4 == 1) whole.remove_suffix(1);  // half a byte of a cut-off paste
  auto bytes = from_base64url(whole);
  // The last character of a cut-off paste may hold bits of the next byte.
  if (!bytes && whole.size() % 4 != 0) bytes = from_base64url(whole.substr(0, whole.size() - whole.size() % 4));
  if (!bytes) return wrong("the join token is mistyped: it holds a character that cannot be in one");
  ByteReader in(*bytes);
  const std::size_t announced = in.get<std::uint16_t>() + check_bytes;
  if (!in.ok() || bytes->size() < announced) return wrong("the join token is cut off");
  if (bytes->size() > announced || base64url(*bytes) != body) return wrong("something was pasted behind the join token, or it is mistyped");
  const ByteSpan payload = ByteSpan(*bytes).first(announced - check_bytes);
  if (CRYPTO_memcmp(digest_of(payload).data(), bytes->data() + payload.size(), check_bytes) != 0) {
    return wrong("the join token is mistyped: its check does not match");
  }
  return parse_payload(payload);
}

Result<Secret> load_or_create_secret(const std::filesystem::path& home) {
  const auto text = load_or_create_private_file(home, secret_file, []() -> Result<std::string> {
    Secret secret{};
    if (RAND_priv_bytes(secret.data(), static_cast<int>(secret.size())) != 1)
      return fail(ErrorKind::internal, "the system gives no random numbers");
    return base64url(std::as_bytes(std::span(secret))) + '\n';
  });
  if (!text) return std::unexpected(text.error());
  std::string_view line = *text;
  if (line.ends_with('\n')) line.remove_suffix(1);
  const auto bytes = from_base64url(line);
  Secret secret{};
  if (!bytes || bytes->size() != secret.size()) {
    return fail(ErrorKind::invalid_input,
                "{} is damaged; restore it from a backup, or delete it to get a new secret (workers then need a new token)",
                (home / secret_file).string());
  }
  std::memcpy(secret.data(), bytes->data(), secret.size());
  return secret;
}

}  // namespace linkcpp::net
