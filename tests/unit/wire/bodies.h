// What tests of message bodies have in common.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/bytes.h"
#include "base/error.h"

namespace linkcpp::wire {

template <std::size_t N>
auto are(const std::uint8_t (&values)[N]) {
  return testing::ElementsAreArray(std::as_bytes(std::span(values)));
}

/// The message of a Result that must have failed with `invalid_input`.
template <class T>
std::string refusal(const Result<T>& result) {
  if (result) return "(accepted)";
  EXPECT_EQ(result.error().kind, ErrorKind::invalid_input);
  return result.error().message;
}

/// Every proper beginning of a body is refused, and so is a body with a byte too many.
template <class Decode>
void expect_exact_length(const Bytes& body, Decode decode) {
  ASSERT_TRUE(decode(ByteSpan(body)).has_value());
  for (std::size_t n = 0; n < body.size(); ++n) ASSERT_FALSE(decode(ByteSpan(body).first(n)).has_value()) << n;
  Bytes longer = body;
  longer.push_back({});
  EXPECT_FALSE(decode(ByteSpan(longer)).has_value());
}

template <class T>
void put_at(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace linkcpp::wire
