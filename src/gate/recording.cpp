#include "gate/recording.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace linkcpp::gate {
namespace {

constexpr std::uint32_t magic = 0x474C4B4C, version = 1;
constexpr std::uint32_t max_label = 4096, max_about = 1 << 20, max_vocab = 1 << 24;

Result<FilePtr> open_file(const std::string& path, const char* mode) {
  FilePtr file(std::fopen(path.c_str(), mode), &std::fclose);
  if (!file) return fail(ErrorKind::io, "cannot open '{}': {}", path, std::strerror(errno));
  return file;
}

}  // namespace

// ---- writing ---------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Recorder>> Recorder::create(const std::string& path, std::uint32_t n_vocab, const std::string& about) {
  auto file = open_file(path, "wb");
  if (!file) return pass(file);
  std::unique_ptr<Recorder> recorder(new Recorder(std::move(*file), path));
  for (const std::uint32_t value : {magic, version, n_vocab}) {
    if (auto written = recorder->number(value); !written) return pass(written);
  }
  if (auto written = recorder->text(about); !written) return pass(written);
  return recorder;
}

Result<> Recorder::bytes(const void* data, std::size_t n) {
  if (std::fwrite(data, 1, n, file_.get()) != n) return fail(ErrorKind::io, "cannot write '{}': {}", path_, std::strerror(errno));
  return {};
}

Result<> Recorder::text(const std::string& value) {
  if (auto written = number(static_cast<std::uint32_t>(value.size())); !written) return written;
  return bytes(value.data(), value.size());
}

Result<> Recorder::group(const std::string& label, std::uint32_t n_rows) {
  if (auto written = text(label); !written) return written;
  return number(n_rows);
}

Result<> Recorder::row(std::int32_t target, Row logits) {
  if (auto written = bytes(&target, sizeof target); !written) return written;
  return bytes(logits.data(), logits.size_bytes());
}

Result<> Recorder::finish() {
  if (std::fclose(file_.release()) != 0) return fail(ErrorKind::io, "cannot write '{}': {}", path_, std::strerror(errno));
  return {};
}

// ---- reading ---------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Recording>> Recording::open(const std::string& path) {
  auto file = open_file(path, "rb");
  if (!file) return pass(file);
  std::unique_ptr<Recording> recording(new Recording(std::move(*file), path));
  for (const std::uint32_t expected : {magic, version}) {
    const auto value = recording->number();
    if (!value || *value != expected) return fail(ErrorKind::invalid_input, "'{}' is not a recording of logits", path);
  }
  auto n_vocab = recording->number();
  if (!n_vocab) return pass(n_vocab);
  if (*n_vocab == 0 || *n_vocab > max_vocab) return fail(ErrorKind::invalid_input, "'{}': implausible vocabulary of {}", path, *n_vocab);
  if (auto about = recording->text(max_about); !about) return pass(about);
  recording->n_vocab_ = *n_vocab;
  recording->row_.resize(*n_vocab);
  return recording;
}

Result<> Recording::bytes(void* data, std::size_t n) {
  if (std::fread(data, 1, n, file_.get()) != n) return fail(ErrorKind::invalid_input, "'{}' is cut off", path_);
  return {};
}

Result<std::uint32_t> Recording::number() {
  std::uint32_t value = 0;
  if (auto read = bytes(&value, sizeof value); !read) return pass(read);
  return value;
}

Result<std::string> Recording::text(std::uint32_t limit) {
  auto n = number();
  if (!n) return pass(n);
  if (*n > limit) return fail(ErrorKind::invalid_input, "'{}' is damaged: a text of {} bytes", path_, *n);
  std::string value(*n, '\0');
  if (auto read = bytes(value.data(), value.size()); !read) return pass(read);
  return value;
}

Result<std::optional<Recording::Group>> Recording::next_group() {
  const int c = std::fgetc(file_.get());
  if (c == EOF) return std::nullopt;
  std::ungetc(c, file_.get());
  auto label = text(max_label);
  if (!label) return pass(label);
  auto n_rows = number();
  if (!n_rows) return pass(n_rows);
  return Group{std::move(*label), *n_rows};
}

Result<Recording::RecordedRow> Recording::next_row() {
  RecordedRow result;
  if (auto read = bytes(&result.target, sizeof result.target); !read) return pass(read);
  if (auto read = bytes(row_.data(), row_.size() * sizeof(float)); !read) return pass(read);
  result.logits = row_;
  return result;
}

// ---- comparing -------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Comparer>> Comparer::open(const std::string& path, std::uint32_t n_vocab) {
  auto reference = Recording::open(path);
  if (!reference) return pass(reference);
  if ((*reference)->n_vocab() != n_vocab) {
    return fail(ErrorKind::invalid_input, "'{}' was recorded with a vocabulary of {}, the model has {}", path, (*reference)->n_vocab(),
                n_vocab);
  }
  return std::unique_ptr<Comparer>(new Comparer(std::move(*reference)));
}

Result<> Comparer::group(const std::string& label, std::uint32_t n_rows) {
  auto expected = reference_->next_group();
  if (!expected) return pass(expected);
  if (!*expected || (*expected)->label != label || (*expected)->n_rows != n_rows) {
    return fail(ErrorKind::invalid_input, "the reference has no group '{}' of {} rows here: same model, text and lengths?", label, n_rows);
  }
  label_ = label;
  index_ = 0;
  return {};
}

Result<> Comparer::row(std::int32_t target, Row logits) {
  auto reference = reference_->next_row();
  if (!reference) return pass(reference);
  if (reference->target != target)
    return fail(ErrorKind::invalid_input, "{} row {}: the text differs from the reference's", label_, index_);
  comparison_.add(std::format("{} row {}", label_, index_++), reference->logits, logits, target);
  return {};
}

Result<> Comparer::finish() {
  auto more = reference_->next_group();
  if (!more) return pass(more);
  if (*more) return fail(ErrorKind::invalid_input, "the reference holds more than was computed: same text and lengths?");
  return {};
}

}  // namespace linkcpp::gate
