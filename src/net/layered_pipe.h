// A pipe over another one: what its layers have in common.
#pragma once

#include <memory>
#include <utility>

#include "net/pipe.h"

namespace linkcpp::net {

/// Everything that does not concern the bytes is the pipe's below.
class LayeredPipe : public Pipe {
 public:
  void wait_writable(OnWritable then) override { below_->wait_writable(std::move(then)); }
  void cancel() override { below_->cancel(); }
  [[nodiscard]] const Strand& strand() const override { return below_->strand(); }
  [[nodiscard]] bool unread() const override { return below_->unread(); }
  [[nodiscard]] std::uint64_t written() const override { return below_->written(); }
  [[nodiscard]] std::uint64_t acknowledged() const override { return below_->acknowledged(); }
  [[nodiscard]] const std::string& endpoint() const override { return below_->endpoint(); }

 protected:
  explicit LayeredPipe(std::unique_ptr<Pipe> below) : below_(std::move(below)) {}

  /// Writes what waits in output_, under the lock of whoever fills it. As Pipe::try_write(); output_ is empty when all of it has gone.
  Result<bool> write_output() {
    ByteSpan rest = ByteSpan(output_).subspan(output_at_);
    const auto gone = below_->try_write(rest);
    output_at_ = output_.size() - rest.size();
    if (!gone || !*gone) return gone;
    output_.clear();
    output_at_ = 0;
    return true;
  }

  const std::unique_ptr<Pipe> below_;
  Bytes output_;  ///< what the layer made of the bytes, and is not written yet

 private:
  std::size_t output_at_ = 0;
};

}  // namespace linkcpp::net
