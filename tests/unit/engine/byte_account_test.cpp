#include "engine/byte_account.h"

#include <gtest/gtest.h>

#include <vector>

#include "wire/frame.h"
#include "wire/messages.h"

namespace linkcpp::engine {
namespace {

using wire::CombineMode;
using wire::RowType;

/// A dispatch frame as it goes onto the wire, with rows of real floats.
Bytes dispatch_frame(const StepShape& shape, std::uint32_t n_tokens, std::uint32_t pairs_a_token, CombineMode mode, RowType type) {
  wire::Dispatch dispatch{.layer = 3, .mode = mode, .row_type = type, .program = 42, .n_tokens = n_tokens};
  for (std::uint32_t token = 0; token < n_tokens; ++token) {
    for (std::uint32_t i = 0; i < pairs_a_token; ++i) dispatch.pairs.push_back({token, static_cast<std::uint16_t>(i)});
  }
  Bytes frame = wire::begin_frame(wire::FrameType::dispatch, 7);
  wire::encode_dispatch_header(dispatch, frame);
  const auto append = [&](std::uint32_t n, std::size_t n_rows) {
    const std::vector<float> rows(n * n_rows, 0.5f);
    const RowType used = wire::effective_row_type(type, n);
    wire::encode_rows(used, rows.data(), n, n_rows, n, ByteWriter(frame).extend(n_rows * wire::row_bytes(used, n)));
  };
  append(shape.n_in, n_tokens);
  for (std::uint32_t i = 0; i < shape.pair_scalars; ++i) append(1, dispatch.pairs.size());
  wire::finish_frame(frame);
  return frame;
}

Bytes combine_frame(const StepShape& shape, std::uint32_t n_rows, CombineMode mode, RowType type) {
  const wire::Combine combine{.mode = mode, .row_type = type, .compute_us = 1, .queue_us = 2, .n_rows = n_rows, .n = shape.n_out};
  Bytes frame = wire::begin_frame(wire::FrameType::combine, 7);
  wire::encode_combine_header(combine, frame);
  const std::vector<float> rows(std::size_t{n_rows} * shape.n_out, 0.25f);
  const RowType used = wire::effective_row_type(type, shape.n_out);
  wire::encode_rows(used, rows.data(), shape.n_out, n_rows, shape.n_out,
                    ByteWriter(frame).extend(n_rows * wire::row_bytes(used, shape.n_out)));
  wire::finish_frame(frame);
  return frame;
}

TEST(ByteAccount, IsExactAgainstEncodedFrames) {
  for (const std::uint32_t n_in : {1u, 64u, 3072u}) {
    for (const std::uint32_t scalars : {0u, 1u, 2u}) {
      const StepShape shape{.n_in = n_in, .n_out = n_in + 5, .top_k = 8, .pair_scalars = scalars};
      for (const auto mode : {CombineMode::raw, CombineMode::sum}) {
        for (const auto type : wire::all_row_types) {
          for (const std::uint32_t n_tokens : {1u, 7u}) {
            for (const std::uint32_t pairs : {1u, 3u, 8u}) {
              const Bytes sent = dispatch_frame(shape, n_tokens, pairs, mode, type);
              const Bytes answer = combine_frame(shape, mode == CombineMode::raw ? n_tokens * pairs : n_tokens, mode, type);
              const auto parsed = wire::decode_dispatch(ByteSpan(sent).subspan(wire::frame_header_bytes));
              ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
              const StepBytes bytes = exchange_bytes(shape, n_tokens, std::uint64_t{n_tokens} * pairs, mode, type);
              EXPECT_EQ(bytes.dispatch, sent.size());
              EXPECT_EQ(bytes.combine, answer.size());
              EXPECT_EQ(bytes.combine - bytes.combine_rows, wire::frame_header_bytes + wire::combine_header_bytes);
            }
          }
        }
      }
    }
  }
}

TEST(ByteAccount, TokenIsTheSumOverItsWorkers) {
  const StepShape shape{.n_in = 3072, .n_out = 3072, .top_k = 8};
  // 8 pairs over 3 workers: 3, 3 and 2.
  StepBytes expected;
  for (const std::uint64_t pairs : {3, 3, 2}) expected += exchange_bytes(shape, 1, pairs, CombineMode::raw, RowType::f32);
  EXPECT_EQ(token_bytes(shape, 3, CombineMode::raw, RowType::f32), expected);
  EXPECT_EQ(token_bytes(shape, 100, CombineMode::sum, RowType::f16), token_bytes(shape, 8, CombineMode::sum, RowType::f16))
      << "top-k bounds";
  EXPECT_EQ(token_bytes(shape, 0, CombineMode::sum, RowType::f16), StepBytes{});
}

TEST(ByteAccount, WidthOf3072WithEightExperts) {
  const StepShape shape{.n_in = 3072, .n_out = 3072, .top_k = 8};
  struct Case {
    CombineMode mode;
    RowType type;
    std::uint64_t out, back;  ///< rows
  };
  for (const Case& c : {Case{CombineMode::raw, RowType::f32, 12288, 98304}, Case{CombineMode::sum, RowType::f32, 12288, 12288},
                        Case{CombineMode::raw, RowType::f16, 6144, 49152}, Case{CombineMode::sum, RowType::f16, 6144, 6144},
                        Case{CombineMode::sum, RowType::int8, 3264, 3264}, Case{CombineMode::sum, RowType::fp8, 3168, 3168}}) {
    const StepBytes bytes = token_bytes(shape, 1, c.mode, c.type);
    EXPECT_EQ(bytes.dispatch_rows, c.out);
    EXPECT_EQ(bytes.combine_rows, c.back);
    EXPECT_LT(static_cast<double>(bytes.dispatch), 1.02 * static_cast<double>(c.out) + 8 * sizeof(float))
        << "headers and expert ids under 2 %, and the router weights";
    EXPECT_LT(static_cast<double>(bytes.combine), 1.02 * static_cast<double>(c.back));
  }
}

}  // namespace
}  // namespace linkcpp::engine
