// Bounded little-endian reading and writing of byte buffers.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace linkcpp {

/// Numbers that any bytes are a valid value of. Not bool: a byte of 2 would be undefined behaviour.
template <class T>
concept WireNumber = std::is_arithmetic_v<T> && !std::same_as<std::remove_cv_t<T>, bool>;

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and copied as it lies in memory");

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

/// Appends little-endian values to a buffer it does not own.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}

  template <WireNumber T>
  void put(T value) {
    raw({reinterpret_cast<const std::byte*>(&value), sizeof value});
  }
  void raw(ByteSpan bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  /// u16 length, then the bytes; longer text is cut at 65535.
  void text(std::string_view text) {
    text = text.substr(0, UINT16_MAX);
    put<std::uint16_t>(static_cast<std::uint16_t>(text.size()));
    raw(std::as_bytes(std::span(text)));
  }
  /// Grows the buffer by n bytes and returns them for writing in place.
  std::span<std::byte> extend(std::size_t n) {
    out_.resize(out_.size() + n);
    return std::span(out_).last(n);
  }
  [[nodiscard]] std::size_t size() const { return out_.size(); }

 private:
  Bytes& out_;
};

/// Reads little-endian values. Reading past the end yields zeros and makes ok() false for good,
/// so a parser may read a whole structure and check once.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan in) : in_(in) {}

  template <WireNumber T>
  T get() {
    T value{};
    ByteSpan from = take(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  /// The next n bytes, or an empty span if fewer are left.
  ByteSpan take(std::size_t n) {
    if (!ok_ || n > in_.size() - at_) {
      ok_ = false;
      return {};
    }
    ByteSpan part = in_.subspan(at_, n);
    at_ += n;
    return part;
  }
  /// Fills an array of bytes; zeros if fewer are left.
  template <std::size_t N>
  void fill(std::array<std::uint8_t, N>& to) {
    const ByteSpan bytes = take(N);
    to.fill(0);
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), N);
  }
  std::string text() {
    ByteSpan part = take(get<std::uint16_t>());
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::size_t left() const { return ok_ ? in_.size() - at_ : 0; }
  /// True when everything was read and nothing was missing.
  [[nodiscard]] bool finished() const { return ok_ && at_ == in_.size(); }

 private:
  ByteSpan in_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace linkcpp
