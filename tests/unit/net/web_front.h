// A web server's TLS in front of a node, as a reverse proxy is: ends the outer TLS and passes bytes on.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <format>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "net/endpoint.h"

namespace linkcpp::net {

/// A key and a self-signed certificate for "localhost" and 127.0.0.1, made once a process; its own authority.
class WebCertificate {
 public:
  static const WebCertificate& one() {
    static const WebCertificate certificate;
    return certificate;
  }
  ~WebCertificate() { std::filesystem::remove(file_); }
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] EVP_PKEY* key() const { return key_.get(); }
  [[nodiscard]] X509* certificate() const { return certificate_.get(); }

 private:
  WebCertificate()
      : key_(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"), EVP_PKEY_free),
        certificate_(X509_new(), X509_free),
        file_((std::filesystem::temp_directory_path() / std::format("linkcpp-web-{}.pem", ::getpid())).string()) {
    X509* const x = certificate_.get();
    X509_set_version(x, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_EXTENSION* const names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    X509_add_ext(x, names, -1);
    X509_EXTENSION_free(names);
    X509_sign(x, key_.get(), EVP_sha256());
    FILE* const out = std::fopen(file_.c_str(), "w");
    PEM_write_X509(out, x);
    std::fclose(out);
  }
  std::shared_ptr<EVP_PKEY> key_;
  std::shared_ptr<X509> certificate_;
  std::string file_;
};

class WebFront {
 public:
  /// Listens on `listen` ("127.0.0.1:0" picks a port) and passes on to `target`; both IPv4.
  WebFront(const std::string& listen, const std::string& target) : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes with write()
    SSL_CTX_use_certificate(context_.get(), WebCertificate::one().certificate());
    SSL_CTX_use_PrivateKey(context_.get(), WebCertificate::one().key());
    SSL_CTX_set_mode(context_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    target_ = address_of(target);
    acceptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(acceptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in where = address_of(listen);
    socklen_t length = sizeof where;
    if (::bind(acceptor_, reinterpret_cast<sockaddr*>(&where), length) != 0 || ::listen(acceptor_, 64) != 0)
      throw std::runtime_error("the web front cannot listen");
    ::getsockname(acceptor_, reinterpret_cast<sockaddr*>(&where), &length);
    port_ = ntohs(where.sin_port);
    thread_ = std::thread([this] { accept_all(); });
  }
  ~WebFront() {
    stop_ = true;
    thread_.join();
    ::close(acceptor_);
    for (std::thread& worker : workers_) worker.join();
  }
  WebFront(const WebFront&) = delete;
  WebFront& operator=(const WebFront&) = delete;
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  static sockaddr_in address_of(const std::string& text) {
    const Endpoint endpoint = parse_endpoint(text).value();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(endpoint.port);
    ::inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr);
    return address;
  }

  void accept_all() {
    while (!stop_) {
      pollfd entry{.fd = acceptor_, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 5) != 1) continue;
      const int fd = ::accept4(acceptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) workers_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int outer) {
    const int inner = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    for (const int fd : {outer, inner}) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(inner, reinterpret_cast<const sockaddr*>(&target_), sizeof target_) == 0) {
      const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(context_.get()), SSL_free);
      SSL_set_fd(ssl.get(), outer);
      if (complete(outer, [&] { return SSL_accept(ssl.get()); }, ssl.get()) == 1) pass(ssl.get(), outer, inner);
    }
    ::close(outer);
    ::close(inner);
  }

  /// Repeats an operation of OpenSSL until it is done or failed.
  template <class Operation>
  int complete(int fd, Operation operation, SSL* ssl) {
    for (;;) {
      const int rc = operation();
      const int why = SSL_get_error(ssl, rc);
      if (rc > 0 || stop_ || (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)) return rc;
      pollfd entry{.fd = fd, .events = static_cast<short>(why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN), .revents = 0};
      ::poll(&entry, 1, 5);
    }
  }

  /// One direction at a time: enough, since neither side of a link waits for the other to read.
  void pass(SSL* ssl, int outer, int inner) {
    std::vector<char> bytes(64u << 10);
    std::string to_inner, to_outer;
    const auto room = [](const std::string& held) { return held.size() < 1u << 20; };
    while (!stop_) {
      bool moved = false;
      if (room(to_inner)) {
        const int n = SSL_read(ssl, bytes.data(), static_cast<int>(bytes.size()));
        if (n > 0) {
          to_inner.append(bytes.data(), static_cast<std::size_t>(n));
          moved = true;
        } else if (const int why = SSL_get_error(ssl, n); why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
          ::send(inner, to_inner.data(), to_inner.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
          return;
        }
      }
      if (!to_inner.empty()) {
        const ssize_t n = ::send(inner, to_inner.data(), to_inner.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) return;
        if (n > 0) to_inner.erase(0, static_cast<std::size_t>(n)), moved = true;
      }
      if (room(to_outer)) {
        const ssize_t n = ::recv(inner, bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (n > 0) to_outer.append(bytes.data(), static_cast<std::size_t>(n)), moved = true;
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
          while (!to_outer.empty() && !stop_) {
            const int sent = complete(outer, [&] { return SSL_write(ssl, to_outer.data(), static_cast<int>(to_outer.size())); }, ssl);
            if (sent <= 0) return;
            to_outer.erase(0, static_cast<std::size_t>(sent));
          }
          return;
        }
      }
      if (!to_outer.empty()) {
        const int n = SSL_write(ssl, to_outer.data(), static_cast<int>(to_outer.size()));
        if (n > 0) to_outer.erase(0, static_cast<std::size_t>(n)), moved = true;
      }
      if (moved) continue;
      pollfd entries[2] = {{.fd = outer, .events = static_cast<short>(POLLIN | (to_outer.empty() ? 0 : POLLOUT)), .revents = 0},
                           {.fd = inner, .events = static_cast<short>(POLLIN | (to_inner.empty() ? 0 : POLLOUT)), .revents = 0}};
      ::poll(entries, 2, 5);
    }
  }

  std::shared_ptr<SSL_CTX> context_;
  sockaddr_in target_{};
  int acceptor_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_ = false;
  std::list<std::thread> workers_;
  std::thread thread_;
};

}  // namespace linkcpp::net
