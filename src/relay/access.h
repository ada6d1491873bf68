// Which backbones may use a relay.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "base/error.h"
#include "net/identity.h"

namespace linkcpp::relay {

/// Keys of backbones, or everybody.
class Access {
 public:
  void allow(const net::PeerKey& key) { keys_.insert(key); }
  void allow_all() { open_ = true; }
  /// A key a line; empty lines and what follows a '#' are skipped. The error names the file and the line.
  Result<> allow_file(const std::filesystem::path& path);
  [[nodiscard]] bool allows(const net::PeerKey& key) const { return open_ || keys_.contains(key); }
  [[nodiscard]] bool nobody() const { return !open_ && keys_.empty(); }
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }

 private:
  std::set<net::PeerKey> keys_;
  bool open_ = false;
};

}  // namespace linkcpp::relay
