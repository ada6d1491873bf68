#include "net/connection.h"

#include <utility>

namespace linkcpp::net {
namespace {

class Handle final : public Link {
 public:
  explicit Handle(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Handle() override { connection_->abandon(); }
  using Link::send;
  void start(Handlers handlers) override { connection_->start(std::move(handlers)); }
  void send(SharedFrame frame) override { connection_->send(std::move(frame)); }
  void close(Error reason) override { connection_->close(std::move(reason)); }
  [[nodiscard]] bool sending() const override { return connection_->sending(); }
  [[nodiscard]] LinkStats stats() const override { return connection_->stats(); }
  [[nodiscard]] const PeerKey& peer() const override { return connection_->peer(); }
  [[nodiscard]] std::string endpoint() const override { return connection_->endpoint(); }
  [[nodiscard]] std::string_view kind() const override { return connection_->kind(); }

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace

LinkPtr make_link(std::shared_ptr<Connection> connection) { return std::make_shared<Handle>(std::move(connection)); }

}  // namespace linkcpp::net
