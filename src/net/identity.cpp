#include "net/identity.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>

#include <cstdlib>
#include <cstring>

#include "base/bytes.h"
#include "net/encoding.h"
#include "net/home_file.h"
#include "wire/text.h"

namespace linkcpp::net {
namespace {

constexpr const char* file_name = "identity.pem";
constexpr std::size_t short_name_length = 10;

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;
using Bio = std::unique_ptr<BIO, decltype([](BIO* bio) { BIO_free(bio); })>;

std::unexpected<Error> broken(const char* what) {
  return fail(ErrorKind::internal, "OpenSSL cannot {}; is its installation complete?", what);
}

Result<PeerKey> public_key(EVP_PKEY* key) {
  PeerKey result;
  std::size_t length = result.bytes.size();
  if (EVP_PKEY_get_id(key) != EVP_PKEY_ED25519 || EVP_PKEY_get_raw_public_key(key, result.bytes.data(), &length) != 1 ||
      length != result.bytes.size()) {
    return fail(ErrorKind::invalid_input, "not an Ed25519 key");
  }
  return result;
}

/// The certificate carries the key through TLS and says nothing else: peers are pinned by key, so dates and names do not matter.
Certificate self_sign(EVP_PKEY* key, const PeerKey& peer) {
  Certificate certificate(X509_new(), X509_free);
  std::uint64_t serial = 0;
  const std::string name = short_name(peer);
  if (!certificate || RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1) return nullptr;
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const bool made =
      X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1) == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate.get()), "20200101000000Z") == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate.get()), "99991231235959Z") == 1 &&
      X509_set_pubkey(certificate.get(), key) == 1 &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0) == 1 &&
      X509_set_issuer_name(certificate.get(), subject) == 1 && X509_sign(certificate.get(), key, nullptr) > 0;
  return made ? certificate : nullptr;
}

Result<std::string> to_pem(EVP_PKEY* key, X509* certificate) {
  const Bio bio(BIO_new(BIO_s_secmem()));
  if (!bio || PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1 ||
      PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return broken("write a key");
  }
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<std::size_t>(length));
}

/// Never asks for a pass phrase on the terminal: an encrypted key counts as damaged.
int no_pass_phrase(char*, int, int, void*) { return -1; }

struct Parts {
  Key key;
  Certificate certificate;
  PeerKey peer;
};

Result<Parts> from_pem(const std::string& text) {
  Parts parts;
  const Bio key_bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))),
      certificate_bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  if (!key_bio || !certificate_bio) return broken("read a key");
  parts.key = Key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, no_pass_phrase, nullptr), EVP_PKEY_free);
  if (!parts.key) return fail(ErrorKind::invalid_input, "it holds no readable private key");
  parts.certificate = Certificate(PEM_read_bio_X509(certificate_bio.get(), nullptr, no_pass_phrase, nullptr), X509_free);
  if (!parts.certificate) return fail(ErrorKind::invalid_input, "it holds no readable certificate");
  auto peer = public_key(parts.key.get());
  if (!peer) return fail(ErrorKind::invalid_input, "its key is not an Ed25519 key");
  parts.peer = *peer;
  if (X509_check_private_key(parts.certificate.get(), parts.key.get()) != 1) {
    return fail(ErrorKind::invalid_input, "its certificate belongs to another key");
  }
  return parts;
}

Result<Parts> make_parts() {
  Parts parts;
  parts.key = Key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free);
  if (!parts.key) return broken("make an Ed25519 key");
  auto peer = public_key(parts.key.get());
  if (!peer) return pass(peer);
  parts.peer = *peer;
  parts.certificate = self_sign(parts.key.get(), parts.peer);
  if (!parts.certificate) return broken("make a certificate");
  return parts;
}

}  // namespace

std::string short_name(const PeerKey& key) { return key_text(key).substr(0, short_name_length); }

std::string key_text(const PeerKey& key) { return base32(std::as_bytes(std::span(key.bytes))); }

Result<PeerKey> parse_key(std::string_view text) {
  PeerKey key;
  const auto bytes = from_base32(text);
  if (!bytes || bytes->size() != key.bytes.size()) {
    return fail(ErrorKind::invalid_input, "'{}' is not the key of a node: that is 52 letters a-z and digits 2-7",
                wire::plain_text(text, 100));
  }
  std::memcpy(key.bytes.data(), bytes->data(), key.bytes.size());
  return key;
}

Result<Identity> Identity::generate() {
  auto parts = make_parts();
  if (!parts) return pass(parts);
  Identity identity;
  identity.private_key_ = std::move(parts->key);
  identity.certificate_ = std::move(parts->certificate);
  identity.key_ = parts->peer;
  return identity;
}

Result<Identity> Identity::load_or_create(const std::filesystem::path& home) {
  auto text = load_or_create_private_file(home, file_name, []() -> Result<std::string> {
    auto fresh = make_parts();
    if (!fresh) return pass(fresh);
    return to_pem(fresh->key.get(), fresh->certificate.get());
  });
  if (!text) return pass(text);
  auto parts = from_pem(*text);
  OPENSSL_cleanse(text->data(), text->size());
  if (!parts) {
    const std::string path = (home / file_name).string();
    return fail(parts.error().kind,
                "{} is damaged: {}; restore it from a backup, or delete it to become a new node (peers must then be given a new token)",
                path, parts.error().message);
  }
  Identity identity;
  identity.private_key_ = std::move(parts->key);
  identity.certificate_ = std::move(parts->certificate);
  identity.key_ = parts->peer;
  return identity;
}

std::filesystem::path home_folder(const std::string& explicit_home) {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  if (!explicit_home.empty()) return explicit_home;
  if (const std::string home = variable("LINKCPP_HOME"); !home.empty()) return home;
  // The XDG rules tell to ignore relative paths.
  if (const std::filesystem::path config = variable("XDG_CONFIG_HOME"); config.is_absolute()) return config / "linkcpp";
  if (const std::string home = variable("HOME"); !home.empty()) return std::filesystem::path(home) / ".config" / "linkcpp";
  return std::filesystem::path(".config") / "linkcpp";
}

}  // namespace linkcpp::net
