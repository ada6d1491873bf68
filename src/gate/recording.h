// A file of logits: what one run of a model computed, for a later run to be compared with.
//
// "LKLG", u32 version, u32 n_vocab, u32 length of a JSON text and the text (how it was made); then groups of rows: u32 length of a label
// and the label, u32 n_rows, then for each row i32 target and n_vocab floats. Little-endian machines only: recordings do not travel.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "gate/comparison.h"

namespace linkcpp::gate {

/// Takes rows of logits as they are computed.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual Result<> group(const std::string& label, std::uint32_t n_rows) = 0;
  virtual Result<> row(std::int32_t target, Row logits) = 0;
  /// After the last row: what came must be all.
  virtual Result<> finish() { return {}; }
};

/// A file that closes itself.
using FilePtr = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Writes a recording. A full disk shows as an error, at the latest by finish().
class Recorder final : public Sink {
 public:
  static Result<std::unique_ptr<Recorder>> create(const std::string& path, std::uint32_t n_vocab, const std::string& about);
  Result<> group(const std::string& label, std::uint32_t n_rows) override;
  Result<> row(std::int32_t target, Row logits) override;
  Result<> finish() override;

 private:
  Recorder(FilePtr file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Result<> bytes(const void* data, std::size_t n);
  Result<> number(std::uint32_t value) { return bytes(&value, sizeof value); }
  Result<> text(const std::string& value);

  FilePtr file_;
  std::string path_;
};

/// Reads a recording row by row; every length is bounded before memory is taken.
class Recording {
 public:
  struct Group {
    std::string label;
    std::uint32_t n_rows = 0;
  };
  struct RecordedRow {
    std::int32_t target = no_target;
    Row logits;  ///< lives until the next row is read
  };

  static Result<std::unique_ptr<Recording>> open(const std::string& path);
  [[nodiscard]] std::uint32_t n_vocab() const { return n_vocab_; }
  /// None at the end of the file.
  Result<std::optional<Group>> next_group();
  Result<RecordedRow> next_row();

 private:
  Recording(FilePtr file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Result<> bytes(void* data, std::size_t n);
  Result<std::uint32_t> number();
  Result<std::string> text(std::uint32_t limit);

  FilePtr file_;
  std::string path_;
  std::uint32_t n_vocab_ = 0;
  std::vector<float> row_;
};

/// Compares rows with a recording while they are computed.
class Comparer final : public Sink {
 public:
  static Result<std::unique_ptr<Comparer>> open(const std::string& path, std::uint32_t n_vocab);
  Result<> group(const std::string& label, std::uint32_t n_rows) override;
  Result<> row(std::int32_t target, Row logits) override;
  Result<> finish() override;
  [[nodiscard]] const Comparison& comparison() const { return comparison_; }

 private:
  explicit Comparer(std::unique_ptr<Recording> reference) : reference_(std::move(reference)) {}
  std::unique_ptr<Recording> reference_;
  Comparison comparison_;
  std::string label_;
  std::uint32_t index_ = 0;
};

}  // namespace linkcpp::gate
